"""Outcome of a program's run. Pure: observations in, an outcome out.

Green is: one world of the right size that survived the loss of a rank, a refusal that names the fix, a
failure reported with the right reason. Everything else is red, and a job that goes wrong unreported is the
worst of it: Complete although two worlds trained, Running with nothing happening.
Limit: a group that the witness in the program's interpreter does not see (no torch, no Python) is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tests.programs.rows import Row


@dataclass(frozen=True)
class Joined:
    """One process in one group, as the witness wrote it."""

    pid: int
    group: str
    rank: int
    size: int
    time: float = 0.0
    """When it joined, in seconds since 1970."""


@dataclass
class Seen:
    """One run, from outside."""

    expected: int
    refusal: str = ""
    """The words with which the API, the operator or an agent refused the job."""
    end: str = ""
    """Complete, Failed, or nothing when the patience ended."""
    message: str = ""
    """Of that end."""
    reasons: set[str] = field(default_factory=set)
    """Of all conditions at any time."""
    reported: dict[str, tuple[float, str]] = field(default_factory=dict)
    """When each reason of the condition Degraded was first seen (seconds since 1970), and its message."""
    degraded: str = ""
    """The reason of that condition when the job ended, if it was True."""
    smaller: float = 0.0
    """When the first group formed that is smaller than the job, or 0."""
    incident: Mapping[str, Any] = field(default_factory=dict)
    """The newest of the job's status."""
    whole: int = 0
    """The most groups of the right size that were alive at once, with all their ranks."""
    other: int = 0
    """The most groups of another size that were alive at once."""
    killed: int = 0
    """The process that was killed."""
    again: bool = False
    """After that a new world formed, and trained."""


@dataclass(frozen=True)
class Outcome:
    green: bool
    name: str
    why: str = ""


def joined(text: str) -> list[Joined]:
    """The lines of the witness; a line that is being written is left for later."""
    rows = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    keys = [each.name for each in fields(Joined)]
    return [Joined(**{key: row[key] for key in keys}) for row in rows if row["group"]]


def imported(text: str) -> list[int]:
    """Processes of the program that imported torch, in that order."""
    rows = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [row["pid"] for row in rows if not row["group"]]


def groups(lines: Iterable[Joined], alive: Iterable[int]) -> dict[str, dict[int, Joined]]:
    """Of each group its ranks that are alive. A process is in the group that it joined last."""
    last = {line.pid: line for line in lines if line.pid in set(alive)}
    found: dict[str, dict[int, Joined]] = {}
    for line in last.values():
        found.setdefault(line.group, {})[line.rank] = line
    return found


def whole(found: dict[str, dict[int, Joined]], size: int) -> list[str]:
    """The groups of this size all of whose ranks are alive."""
    return [
        name
        for name, ranks in found.items()
        if len(ranks) == size and all(each.size == size for each in ranks.values())
    ]


def outcome_of(row: Row, seen: Seen) -> Outcome:
    if row.refused:
        return _refused(row.refused, seen)
    if row.end:
        return _ended(row, seen)
    if row.reason:
        return _reported(row, seen)
    if seen.refusal:
        return Outcome(False, "refused", seen.refusal)
    if seen.end == "Failed":
        return Outcome(False, "failed", seen.message)
    lonely = _lonely(seen)
    if lonely:
        return lonely
    if row.kill and not seen.killed:
        return Outcome(False, "no kill", f"it was never seen to train; it ended as {seen.end or 'Running'}")
    if seen.end != "Complete" and not (seen.killed and seen.again):
        after = " after the kill" if seen.killed else ""
        return Outcome(False, "silent hang", f"nothing happened{after} until the end of the patience")
    return Outcome(True, "survived" if row.kill else "one world", seen.end or "trains on")


def _lonely(seen: Seen) -> Outcome | None:
    """Not one world of the right size."""
    if seen.whole > 1:
        return Outcome(False, "silent split", f"{seen.whole} worlds of {seen.expected} at once")
    if seen.whole == 1 or (seen.expected == 1 and not seen.other):
        return None
    if seen.other:
        return Outcome(False, "silent split", f"{seen.other} groups at once, none of {seen.expected} ranks")
    if seen.end == "Complete":
        return Outcome(False, "silent split", f"Complete, and no group of {seen.expected} ranks ever formed")
    return Outcome(False, "silent hang", "no group formed until the end of the patience")


def _refused(message: str, seen: Seen) -> Outcome:
    if message in seen.refusal:
        return Outcome(True, "refused", seen.refusal)
    if seen.refusal:
        return Outcome(False, "refused otherwise", seen.refusal)
    return Outcome(False, "not refused", f"{seen.end or 'Running'}: {seen.message}")


def _reported(row: Row, seen: Seen) -> Outcome:
    if row.reason in seen.reasons:
        message = seen.reported.get(row.reason, (0.0, ""))[1]
        return Outcome(bool(re.search(row.message, message)), "reported", message or row.reason)
    end = "silent split" if seen.end == "Complete" else "not reported"
    return Outcome(False, end, f"{seen.end or 'Running'}: {seen.message}; reasons {sorted(seen.reasons)}")


def _ended(row: Row, seen: Seen) -> Outcome:
    """By its end, by the reports before it, and by why it failed."""
    reason = seen.message.partition(":")[0]
    if reason != row.end:
        return Outcome(False, "another end", f"{seen.end or 'Running'}: {seen.message or seen.refusal}")
    when, message = seen.reported.get(row.reason, (0.0, ""))
    late = when - seen.smaller if when and seen.smaller else 0.0
    if row.reason and not when:
        return Outcome(False, "not reported", f"reasons {sorted(seen.reasons)}")
    if not re.search(row.message, message):
        return Outcome(False, "reported otherwise", message)
    if row.within and late > row.within:
        return Outcome(False, "reported late", f"after {late:.1f} s: {message}")
    if seen.degraded not in ("", row.reason, row.end):
        return Outcome(False, "falsely reported", f"{seen.degraded}: {seen.reported[seen.degraded][1]}")
    message, rank = seen.incident.get("message", ""), seen.incident.get("rank")
    if not re.search(row.cause, message) or (row.rank is not None and rank != row.rank):
        return Outcome(False, "another cause", f"rank {rank}: {message}")
    return Outcome(True, "as it has to", f"{late:.1f} s; {seen.message}" if row.reason else message)
