"""Make two servers' answers comparable, and say where they differ. Pure.

Masked: uids (by order of appearance), resourceVersions of objects (by rank), those of lists and bookmarks,
times, addresses, ages, generated names, continue tokens. managedFields and plain bookmarks are left out.
Lists of things with names are compared by name, items of a list and events by place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.differential.scenario import Answer

ABSENT = "(absent)"
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_ADDRESS = re.compile(r"\b(10|127)\.\d+\.\d+\.\d+\b")
_REVISION = re.compile(r"((?:resource ?[vV]ersion|ResourceVersion)[^\d]{0,30})\d+(?: \(\d+\))?")
_CURRENT = re.compile(r"(current: )\d+")
_AGE = re.compile(r"^(\d+[smhd])+$")


@dataclass(frozen=True)
class Difference:
    """At `path` of answer number `call`."""

    scenario: str
    call: int
    path: str
    local: Any
    real: Any

    def __str__(self) -> str:
        return (
            f"{self.scenario} #{self.call} {self.path}\n    local: {self.local!r}\n    real:  {self.real!r}"
        )


def differences(name: str, local: Sequence[Answer], real: Sequence[Answer]) -> list[Difference]:
    pairs = enumerate(zip(masked(local), masked(real), strict=True))
    return [
        Difference(name, number, *found)
        for number, (ours, theirs) in pairs
        for found in _answer_diff(ours, theirs)
    ]


def _answer_diff(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Bodies of different kinds are one difference, not one for each field."""
    for path, key in (("status", "status"), ("kind", "kind")):
        mine, other = (side[key] if key in side else _kind(side["body"]) for side in (ours, theirs))
        if mine != other:
            yield path, f"{mine} {_gist(ours['body'])}", f"{other} {_gist(theirs['body'])}"
            return
    yield from _diff(ours, theirs)


def _kind(body: Any) -> str:
    return str(body.get("kind")) if isinstance(body, dict) else type(body).__name__


def _gist(body: Any) -> str:
    return str(body.get("message", body.get("kind"))) if isinstance(body, dict) else str(body)[:200]


def masked(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    mask = _Mask([answer.body for answer in answers])
    return [
        {
            "status": answer.status,
            "content": answer.content,
            "warnings": [mask.text(each) for each in answer.warnings],
            "body": mask.of(answer.body),
        }
        for answer in answers
    ]


class _Mask:
    """Knows all answers of one server to one scenario."""

    def __init__(self, bodies: Sequence[Any]) -> None:
        metas = [meta for body in bodies for meta in _metas(body)]
        self._uids = {uid: f"uid{n}" for n, uid in enumerate(dict.fromkeys(m["uid"] for m in metas), 1)}
        ranked = sorted({int(meta["resourceVersion"]) for meta in metas if "resourceVersion" in meta})
        self._revisions = {str(revision): f"rv{n}" for n, revision in enumerate(ranked, 1)}
        self._names = {
            meta["name"]: f"{meta['generateName']}<random>"
            for meta in metas
            if "generateName" in meta and meta["name"].startswith(meta["generateName"])
        }

    def of(self, value: Any) -> Any:
        if isinstance(value, dict):
            value = _in_order(value)
            return {name: self._field(name, each, value) for name, each in value.items() if _counts(name)}
        if isinstance(value, list):
            return [self.of(each) for each in value if not _is_plain_bookmark(each)]
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        for found, name in (self._uids | self._names).items():
            text = text.replace(found, name)
        text = _CURRENT.sub(r"\1<revision>", _REVISION.sub(r"\1<revision>", text))
        return _ADDRESS.sub("<address>", _TIME.sub("<time>", text))

    def _field(self, name: str, value: Any, home: dict[str, Any]) -> Any:
        if name == "resourceVersion":
            return self._revisions.get(value, "<revision>") if "uid" in home else "<revision>"
        if name == "continue":
            return "<continue>" if value else value
        if name == "cells":
            return ["<age>" if _AGE.match(str(each)) else self.of(each) for each in value]
        return self.of(value)


def _is_plain_bookmark(event: Any) -> bool:
    """Bookmarks come whenever a server sends one."""
    if not isinstance(event, dict) or event.get("type") != "BOOKMARK":
        return False
    return "annotations" not in str(event)


def _in_order(value: dict[str, Any]) -> dict[str, Any]:
    """Faults of a shape come in the order of a Go map, in any; and one that is listed twice counts once."""
    details = value.get("details")
    if value.get("reason") != "Invalid" or not isinstance(details, dict) or "causes" not in details:
        return value
    causes = {(each.get("field", ""), each.get("message", "")): each for each in details["causes"]}
    start, _, rest = value["message"].partition(" is invalid: ")
    message = f"{start} is invalid: {', '.join(sorted(rest.strip('[]').split(', ')))}"
    return {
        **value,
        "message": message,
        "details": {**details, "causes": [causes[k] for k in sorted(causes)]},
    }


def _counts(name: str) -> bool:
    return name != "managedFields"


def _metas(value: Any) -> Iterator[dict[str, Any]]:
    """The metadata of every object in it."""
    if isinstance(value, dict):
        meta = value.get("metadata")
        if isinstance(meta, dict) and "uid" in meta:
            yield meta
        for each in value.values():
            yield from _metas(each)
    elif isinstance(value, list):
        for each in value:
            yield from _metas(each)


def _diff(local: Any, real: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    ours, theirs = _parts(local, path), _parts(real, path)
    if ours is None or theirs is None or type(local) is not type(real):
        if local != real or type(local) is not type(real):
            yield path, local, real
        return
    for name in ours | theirs:
        here = f"{path}{name}" if name.startswith("[") else f"{path}.{name}".lstrip(".")
        if name not in ours:
            yield here, ABSENT, theirs[name]
        elif name not in theirs:
            yield here, ours[name], ABSENT
        else:
            yield from _diff(ours[name], theirs[name], here)


def _parts(value: Any, path: str) -> dict[str, Any] | None:
    if isinstance(value, dict):
        return value
    if not isinstance(value, list):
        return None
    names = [each.get("name") for each in value if isinstance(each, dict)]
    named = len(set(names) - {None}) == len(value) and not path.endswith("items")
    return {f"[{names[n] if named else n}]": each for n, each in enumerate(value)}
