"""Validation rules, each written twice: in CEL for the API server, in Python for where no server validates.

A `Rule` is about the value at its path; `Changes` compares two specs. Messages name the field and the fix,
because they are all that a user of kubectl sees. Pure. The Python functions need a spec that is valid by the
schema and has its defaults.
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
    """A rule about the value at `path` of a TrainingJob, which `cel` knows as `self`; "" is the whole object.
    A rule whose value is absent is not evaluated. `holds` is the Python equivalent of `cel`: True if the
    value is valid."""

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
    def unchanged_cel(self) -> str:
        """CEL expression: true if the field has not changed, or is absent in both."""
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
        """CEL expression of the rule, for the whole object. The specs are compared as a whole first: that
        ends the evaluation for writes of status."""
        state = "oldSelf.status.state"
        idle = f"(has(oldSelf.status) && has({state}) && {state} in {list(CHANGEABLE_STATES)})"
        same = " && ".join(each.unchanged_cel for each in self.fields)
        return f"self.spec == oldSelf.spec || {idle} || ({same})"

    @property
    def message_cel(self) -> str:
        """CEL expression of the message. It names only the first changed field: the API server limits the
        estimated cost of expressions, and one that joins all names exceeds it."""
        *others, last = self.fields
        names = "".join(f"!{each.unchanged_cel} ? 'spec.{each.field}' : " for each in others)
        return f"({names}'spec.{last.field}') + ': {self.advice}'"

    def refusal(self, old: Spec, new: Spec, idle: bool) -> str:
        """Message for the first field that has changed and may not. Empty: `new` may replace `old`. `idle`:
        the job is in one of CHANGEABLE_STATES. Both specs have their defaults."""
        if idle:
            return ""
        changed = (each.field for each in self.fields if at(old, each.field) != at(new, each.field))
        first = next(changed, None)
        return f"spec.{first}: {self.advice}" if first else ""


def at(value: Any, path: str) -> Any:
    """The value at a dotted path of names in nested maps. None: a name is missing, or its parent is no map (a
    list is not entered). "" is `value` itself."""
    for name in filter(None, path.split(".")):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def trainer_container(spec: Spec) -> Spec:
    """The container `trainer` of the template; empty if there is none. Raises KeyError for a container
    without a name: the schema requires it."""
    containers = at(spec, "template.spec.containers") or []
    return next((each for each in containers if each["name"] == TRAINER_CONTAINER), {})


def cel_trainer_has(condition: str) -> str:
    """CEL expression: true if the template has a container `trainer` and `condition`, a CEL expression in
    which it is `c`, is true."""
    containers = "self.template.spec.containers"
    given = f"has(self.template) && has(self.template.spec) && has({containers})"
    return f"({given} && {containers}.exists(c, c.name == '{TRAINER_CONTAINER}' && {condition}))"


def spec_with(**more: Any) -> Spec:
    """An example for a rule: the smallest valid spec, with `more` fields."""
    return {"workers": 2, "command": ["python", "train.py"], **more}


def template_with(**of_trainer: Any) -> Spec:
    """An example for a rule: a pod template whose container `trainer` has these fields."""
    return {"spec": {"containers": [{"name": TRAINER_CONTAINER, **of_trainer}]}}
