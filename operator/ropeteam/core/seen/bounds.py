"""Bounds of a coordinator's report: no field is larger than a coordinator of ours could send it.

Anybody who may create pods in a job's namespace can answer in its coordinator's place. Fields that go from a
report into status must fit there, or no later reconcile could write it. So every field has a bound, also one
that is added later. Texts for people are truncated, and most numbers are 0 at least. Identifiers, lists and
numbers that decisions depend on are refused when out of bounds, with the name of the field.
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
"""Numbers that decisions and names of pods depend on: refused if out of bounds."""
_SIGNED = frozenset({"code", "signal", "unix_ms", "checkpoint_unix_ms", "total_steps"})


class OutOfBounds(ProtocolError, ValueError):
    """A field out of bounds. Its text is the path of the field, its size, and what was expected."""

    path = ""

    def add_prefix(self, prefix: str) -> OutOfBounds:
        """Put `prefix` before the path, in place; each level of the report adds its own. Returns self."""
        self.path = prefix + self.path
        return self

    def __str__(self) -> str:
        return f"{self.path.lstrip('.')} {self.args[0]}"


def bounded(report: JobReport, slots: int) -> JobReport:
    """The report of a job of so many slots, with texts truncated and most numbers at least 0. Raises
    OutOfBounds."""
    return _bounded_fields(report, slots)


def _bounded_fields(value: T, slots: int) -> T:
    """The dataclass with bounded fields. Itself, if none has changed; lists and dicts are always rebuilt."""
    changed, name = {}, ""
    try:
        for name, old in vars(value).items():
            new = _bounded(name, old, slots)
            if new is not old:
                changed[name] = new
    except OutOfBounds as error:
        raise error.add_prefix(f".{name}") from None
    return replace(value, **changed) if changed else value  # type: ignore[type-var]


def _bounded(name: str, value: Any, slots: int) -> Any:
    """The value of the field `name` within its bounds, by type; entries of a list or dict have its name."""
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
    """The most entries that a field may have. `slots` of a report is a dict of all slots; that of a process
    group is a list of some."""
    return MOST_SLOTS_NAMED if name == "slots" and type(value) is tuple else _ENTRY_LIMITS.get(name, slots)


def _bounded_entry(location: str, name: str, value: Any, slots: int) -> Any:
    """An entry within the bounds of the field `name`. `location`: its index or key, for the error."""
    try:
        return _bounded(name, value, slots)
    except OutOfBounds as error:
        raise error.add_prefix(location) from None


def _bounded_number(name: str, value: int) -> int:
    """The number, at least 0 unless it may be negative. Only _COUNTS have another upper bound than the
    decoder's 64 bits. Raises OutOfBounds for these."""
    if name in _COUNTS and not 0 <= value <= HIGHEST_COUNT:
        raise OutOfBounds(f"is {value}, 0 to {HIGHEST_COUNT} are expected")
    return value if name in _SIGNED else max(value, 0)


def _bounded_text(name: str, value: str) -> str:
    """The text, truncated. Raises OutOfBounds for an identifier that is too long."""
    if len(value) > LONGEST_NAME and name in _NAMES:
        raise OutOfBounds(f"has {len(value)} characters, at most {LONGEST_NAME} are expected")
    return value[:LONGEST_TEXT]
