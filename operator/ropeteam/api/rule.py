"""Rules: each states one thing twice, in CEL for the server and in Python for everywhere else.

A `Rule` holds or not for the value at its path; `Changes` compare two specs. Messages name the field and
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
    valid: Spec
    invalid: Spec
    """Examples: whole specs (for path "": whole objects)."""


@dataclass(frozen=True)
class Change:
    """A field of spec, dotted, and two values that differ."""

    field: str
    examples: tuple[Any, Any]

    @property
    def same(self) -> str:
        """CEL: the field has not changed."""
        new, old = f"self.spec.{self.field}", f"oldSelf.spec.{self.field}"
        return f"(has({new}) == has({old}) && (!has({new}) || {new} == {old}))"


@dataclass(frozen=True)
class Changes:
    """Fields that may change in CHANGEABLE_STATES only. One rule of the server for all: it judges every write
    of status too, which ends at the first comparison. A rule per field took 8 of the 13 ms that such a write
    costs a server.
    """

    fields: tuple[Change, ...]
    advice: str

    @property
    def cel(self) -> str:
        state = "oldSelf.status.state"
        idle = f"(has(oldSelf.status) && has({state}) && {state} in {list(CHANGEABLE_STATES)})"
        same = " && ".join(each.same for each in self.fields)
        return f"self.spec == oldSelf.spec || {idle} || ({same})"

    @property
    def message_cel(self) -> str:
        """Names the first that has changed: to join the names of all would cost a server too much."""
        *others, last = self.fields
        names = "".join(f"!{each.same} ? 'spec.{each.field}' : " for each in others)
        return f"({names}'spec.{last.field}') + ': {self.advice}'"

    def refusal(self, old: Spec, new: Spec, idle: bool) -> str:
        """Empty: `new` may follow. `idle`: the job is in one of CHANGEABLE_STATES."""
        if idle:
            return ""
        changed = (each.field for each in self.fields if at(old, each.field) != at(new, each.field))
        first = next(changed, None)
        return f"spec.{first}: {self.advice}" if first else ""


def at(value: Any, path: str) -> Any:
    """The value at a dotted path; None where there is none."""
    for name in filter(None, path.split(".")):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def trainer(spec: Spec) -> Spec:
    """The container `trainer` of the template; empty if there is none."""
    containers = at(spec, "template.spec.containers") or []
    return next((each for each in containers if each["name"] == TRAINER_CONTAINER), {})


def trainer_has(condition: str) -> str:
    """CEL: the template has a container `trainer`, `c`, for which `condition` is true."""
    containers = "self.template.spec.containers"
    given = f"has(self.template) && has(self.template.spec) && has({containers})"
    return f"({given} && {containers}.exists(c, c.name == '{TRAINER_CONTAINER}' && {condition}))"


def spec_with(**more: Any) -> Spec:
    """An example: the smallest spec, and this."""
    return {"workers": 2, "command": ["python", "train.py"], **more}


def template_with(**of_trainer: Any) -> Spec:
    """A template whose container `trainer` has these fields."""
    return {"spec": {"containers": [{"name": TRAINER_CONTAINER, **of_trainer}]}}
