"""What a rule is: a row that says one thing twice, in CEL for the server and in Python for everywhere else.

A `Rule` holds or not for the value at its path; a `Change` compares two specs. Messages name the field and
the fix, because they are all that a user of kubectl sees. Pure; twins read a spec that fits the schema and
has its defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ropeteam_trainer.contract.config import TRAINER_CONTAINER

Spec = dict[str, Any]

CHANGEABLE_STATES = ("Suspended", "Invalid")
"""`status.state` in which no pod is active, so that fields that shape pods may change."""


@dataclass(frozen=True)
class Rule:
    """`cel` and `holds` judge the value at `path` of a TrainingJob, `self`; "" is the whole object."""

    path: str
    cel: str
    holds: Callable[[Any], bool]
    message: str
    good: Spec
    bad: Spec
    """Examples: whole specs (for path "": whole objects)."""


@dataclass(frozen=True)
class Change:
    """A field of spec, dotted, that may not change: never, or only in CHANGEABLE_STATES."""

    field: str
    examples: tuple[Any, Any]
    """Two values that differ."""
    ever: bool = True

    @property
    def cel(self) -> str:
        new, old = f"self.spec.{self.field}", f"oldSelf.spec.{self.field}"
        same = f"has({new}) == has({old}) && (!has({new}) || {new} == {old})"
        if not self.ever:
            return same
        state = "oldSelf.status.state"
        return f"(has(oldSelf.status) && has({state}) && {state} in {list(CHANGEABLE_STATES)}) || ({same})"

    @property
    def message(self) -> str:
        if not self.ever:
            return f"spec.{self.field}: cannot change; delete the job and create it with the new value"
        return (
            f"spec.{self.field}: can change only while the job is suspended; "
            "set spec.suspend to true, wait for condition Suspended, then change it"
        )

    def holds(self, old: Spec, new: Spec, changeable: bool) -> bool:
        return (self.ever and changeable) or at(old, self.field) == at(new, self.field)


def at(value: Any, path: str) -> Any:
    """The value at a dotted path; None where there is none."""
    for name in filter(None, path.split(".")):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def trainer(spec: Spec) -> Spec:
    """The container `trainer` of the template; empty if there is none."""
    containers = at(spec, "template.spec.containers") or []
    return next((each for each in containers if each["name"] == TRAINER_CONTAINER), {})
