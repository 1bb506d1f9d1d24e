"""Requests of the operator, from the API server's own audit log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from benchmarks.scale.realcluster import ADMIN, OPERATOR

Object = dict[str, Any]
WRITES = frozenset({"create", "update", "patch", "delete"})
_JOB = re.compile(r"^[a-z]+-\d+")


@dataclass(frozen=True)
class Call:
    """One request that was answered. Seconds since 1970."""

    user: str
    verb: str
    resource: str
    subresource: str
    name: str
    code: int
    begin: float
    end: float

    @property
    def job(self) -> str:
        """The job that the object belongs to: names begin with the job's."""
        found = _JOB.match(self.name)
        return found.group() if found else ""

    @property
    def what(self) -> str:
        return f"{self.verb} {self.resource}" + (f"/{self.subresource}" if self.subresource else "")


def calls(log: Path, offset: int = 0) -> list[Call]:
    """All complete calls from `offset` on, watches left out."""
    with log.open("rb") as file:
        file.seek(offset)
        return [call for line in file if (call := _call(orjson.loads(line))) is not None]


def _call(event: Object) -> Call | None:
    if event["verb"] == "watch" or event["stage"] != "ResponseComplete":
        return None
    where, status = event.get("objectRef") or {}, event.get("responseStatus") or {}
    return Call(
        user=str(event["user"]["username"]),
        verb=str(event["verb"]),
        resource=str(where.get("resource", "")),
        subresource=str(where.get("subresource", "")),
        name=str(where.get("name", "")),
        code=int(status.get("code", 0)),
        begin=_seconds(str(event["requestReceivedTimestamp"])),
        end=_seconds(str(event["stageTimestamp"])),
    )


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def by_operator(all_calls: list[Call]) -> Iterator[Call]:
    return (call for call in all_calls if call.user == OPERATOR)


def writes(all_calls: list[Call]) -> list[Call]:
    return [call for call in by_operator(all_calls) if call.verb in WRITES]


def kinds(all_calls: list[Call]) -> Counter[str]:
    """Requests of the operator by verb and resource, with how often."""
    return Counter(call.what for call in by_operator(all_calls))


def per_job(all_calls: list[Call]) -> Counter[str]:
    return Counter(call.job for call in by_operator(all_calls) if call.job)


def reactions(all_calls: list[Call], verb: str, resource: str) -> list[float]:
    """Seconds from each such call of ours until the operator's first write for that job begins."""
    ours = {c.job: c.end for c in all_calls if c.user == ADMIN and (c.verb, c.resource) == (verb, resource)}
    first: dict[str, float] = {}
    for call in sorted(writes(all_calls), key=lambda call: call.begin):
        if call.job in ours and call.begin >= ours[call.job]:
            first.setdefault(call.job, call.begin)
    return [first[job] - ours[job] for job in first]
