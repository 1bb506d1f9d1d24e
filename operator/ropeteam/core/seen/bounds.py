"""What of a coordinator's report is believed: whatever is of a size that a coordinator of ours would tell.

Whoever may make pods in a job's namespace can answer in its coordinator's place. What goes from a report into
status must fit there, or no later round could write it. So every field has a bound, also one that is added
later: texts are cut and numbers made 0 at least, for they are for people; names, lists, and numbers that we
go on from are refused with the field.
Limits: what is within bounds may still be a lie, about that job alone.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any, TypeVar

from ropeteam_trainer.contract.desired import JobReport

T = TypeVar("T")

LONGEST_TEXT = 4096
LONGEST_NAME = 64
HIGHEST_COUNT = (1 << 31) - 1
_MOST = {"incidents": 10, "lineage": 10, "last_lines": 20, "process_groups": 10}
"""As a coordinator keeps. Of all else: one for each slot."""
MOST_SLOTS_NAMED = 16
"""Of one process group."""
_NAMES = frozenset({"id", "job_uid", "pod_uid", "digest", "run"})
"""Cut they would be others."""
_COUNTS = frozenset({"term", "newer_term", "boot", "n", "incarnation"})
"""We go on from them, and they are parts of pods' names."""
_SIGNED = frozenset({"code", "signal", "unix_ms", "checkpoint_unix_ms", "total_steps"})


class OutOfBounds(ValueError):
    """The text names the field and says what was expected."""

    where = ""

    def inside(self, part: str) -> OutOfBounds:
        self.where = part + self.where
        return self

    def __str__(self) -> str:
        return f"{self.where.lstrip('.')} {self.args[0]}"


def bounded(report: JobReport, slots: int) -> JobReport:
    """With texts cut, of a job that has so many slots. Raises OutOfBounds."""
    return _parts(report, slots)


def _parts(value: T, slots: int) -> T:
    """A dataclass. Most are as they should be: nothing is made anew then."""
    cut, name = {}, ""
    try:
        for name, part in vars(value).items():
            taken = _field(name, part, slots)
            if taken is not part:
                cut[name] = taken
    except OutOfBounds as wrong:
        raise wrong.inside(f".{name}") from None
    return replace(value, **cut) if cut else value  # type: ignore[type-var]


def _field(name: str, value: Any, slots: int) -> Any:
    if type(value) is int:
        return _number(name, value)
    if type(value) is str:
        return _text(name, value)
    if type(value) in (tuple, dict) and len(value) > (most := _most(name, value, slots)):
        raise OutOfBounds(f"has {len(value)} entries, at most {most} are expected")
    if type(value) is tuple:
        return tuple(_entry(f"[{index}]", name, each, slots) for index, each in enumerate(value))
    if type(value) is dict:
        return {key: _entry(f".{key[:20]}", name, each, slots) for key, each in value.items()}
    return _parts(value, slots) if is_dataclass(value) else value  # one of few words, a float, nothing


def _most(name: str, value: Any, slots: int) -> int:
    """A report's `slots` are a dict of all of them, those of a process group a list of some."""
    return MOST_SLOTS_NAMED if name == "slots" and type(value) is tuple else _MOST.get(name, slots)


def _entry(place: str, name: str, value: Any, slots: int) -> Any:
    try:
        return _field(name, value, slots)
    except OutOfBounds as wrong:
        raise wrong.inside(place) from None


def _number(name: str, value: int) -> int:
    """More than 64 bits are not decoded."""
    if name in _COUNTS and not 0 <= value <= HIGHEST_COUNT:
        raise OutOfBounds(f"is {value}, 0 to {HIGHEST_COUNT} are expected")
    return value if name in _SIGNED else max(value, 0)


def _text(name: str, value: str) -> str:
    if len(value) > LONGEST_NAME and name in _NAMES:
        raise OutOfBounds(f"has {len(value)} characters, at most {LONGEST_NAME} are expected")
    return value[:LONGEST_TEXT]
