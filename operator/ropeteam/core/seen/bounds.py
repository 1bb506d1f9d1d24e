"""Bounds of a coordinator's report: a field is accepted if a coordinator of ours could send its size.

Anybody who may create pods in a job's namespace can answer in its coordinator's place. Fields that go from a
report into status must fit there, or no later reconcile could write it. So every field has a bound, also
one that is added later: texts are truncated and numbers clamped to 0 at least, for people read them; names,
lists, and numbers that decisions depend on are refused, with the name of the field.
Limits: a report within bounds may still be false, about that job alone.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any, TypeVar

from ropeteam_trainer.contract.desired import JobReport
from ropeteam_trainer.contract.errors import ProtocolError

T = TypeVar("T")

LONGEST_TEXT = 4096
LONGEST_NAME = 64
HIGHEST_COUNT = (1 << 31) - 1
_ENTRY_LIMITS = {"incidents": 10, "lineage": 10, "last_lines": 20, "process_groups": 10}
"""Entries that a coordinator keeps. Other collections: one entry for each slot."""
MOST_SLOTS_NAMED = 16
"""Bound for one process group."""
_NAMES = frozenset({"id", "job_uid", "pod_uid", "digest", "run"})
"""Identifiers: truncated they would name something else."""
_COUNTS = frozenset({"term", "newer_term", "boot", "n", "incarnation"})
"""Numbers that decisions depend on, and parts of pods' names."""
_SIGNED = frozenset({"code", "signal", "unix_ms", "checkpoint_unix_ms", "total_steps"})


class OutOfBounds(ProtocolError, ValueError):
    """A field out of bounds. The text names the field and what was expected."""

    where = ""

    def inside(self, outer: str) -> OutOfBounds:
        self.where = outer + self.where
        return self

    def __str__(self) -> str:
        return f"{self.where.lstrip('.')} {self.args[0]}"


def bounded(report: JobReport, slots: int) -> JobReport:
    """The report with texts truncated, for a job of so many slots. Raises OutOfBounds."""
    return _bounded_fields(report, slots)


def _bounded_fields(value: T, slots: int) -> T:
    """A dataclass with bounded fields. Most are within bounds: nothing is copied then."""
    changed, name = {}, ""
    try:
        for name, old in vars(value).items():
            new = _bounded(name, old, slots)
            if new is not old:
                changed[name] = new
    except OutOfBounds as error:
        raise error.inside(f".{name}") from None
    return replace(value, **changed) if changed else value  # type: ignore[type-var]


def _bounded(name: str, value: Any, slots: int) -> Any:
    if type(value) is int:
        return _bounded_number(name, value)
    if type(value) is str:
        return _bounded_text(name, value)
    if type(value) in (tuple, dict) and len(value) > (limit := _entry_limit(name, value, slots)):
        raise OutOfBounds(f"has {len(value)} entries, at most {limit} are expected")
    if type(value) is tuple:
        return tuple(_bounded_entry(f"[{index}]", name, entry, slots) for index, entry in enumerate(value))
    if type(value) is dict:
        return {key: _bounded_entry(f".{key[:20]}", name, entry, slots) for key, entry in value.items()}
    return _bounded_fields(value, slots) if is_dataclass(value) else value  # an enum, a float, None


def _entry_limit(name: str, value: Any, slots: int) -> int:
    """The most entries of a field. A report's `slots` are a dict of all, a process group's a list of some."""
    return MOST_SLOTS_NAMED if name == "slots" and type(value) is tuple else _ENTRY_LIMITS.get(name, slots)


def _bounded_entry(location: str, name: str, value: Any, slots: int) -> Any:
    try:
        return _bounded(name, value, slots)
    except OutOfBounds as error:
        raise error.inside(location) from None


def _bounded_number(name: str, value: int) -> int:
    """A bounded number. The decoder accepts no more than 64 bits."""
    if name in _COUNTS and not 0 <= value <= HIGHEST_COUNT:
        raise OutOfBounds(f"is {value}, 0 to {HIGHEST_COUNT} are expected")
    return value if name in _SIGNED else max(value, 0)


def _bounded_text(name: str, value: str) -> str:
    if len(value) > LONGEST_NAME and name in _NAMES:
        raise OutOfBounds(f"has {len(value)} characters, at most {LONGEST_NAME} are expected")
    return value[:LONGEST_TEXT]
