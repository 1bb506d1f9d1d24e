"""Validation of a TrainingJob: a sentence for each problem, with the field and what to change.

Shape first (types, limits, unknown fields), then the rules of `rulebook.py`: a rule reads only what has
shape. The same schema and rules are in the CRD, so a server reports the same; this is for where no server
validates: the local cluster, `ropeteam run`, and the operator itself.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ropeteam.api.job import TrainingJobSpec
from ropeteam.api.rule import Spec, at
from ropeteam.api.rules.rulebook import CHANGES, RULES
from ropeteam.api.schema.sentences import problems
from ropeteam.api.schema.structural import Schema, defaulted, structural


@cache
def spec_schema() -> Schema:
    return structural(TrainingJobSpec)


def validate(spec: Any) -> tuple[str, ...]:
    """Problems of a spec as the user wrote it. Empty: TrainingJobSpec takes it. Never raises."""
    wrong_shape = tuple(problems(spec_schema(), spec, "spec"))
    if wrong_shape:
        return wrong_shape
    job = {"spec": defaulted(spec_schema(), spec)}
    values = ((rule, at(job, rule.path)) for rule in RULES if rule.path)
    return tuple(rule.message for rule, value in values if value is not None and not rule.holds(value))


def validate_name(name: str) -> tuple[str, ...]:
    job = {"metadata": {"name": name}}
    return tuple(rule.message for rule in RULES if not rule.path and not rule.holds(job))


def validate_update(old: Spec, new: Spec, suspended: bool) -> tuple[str, ...]:
    """Changes that are refused. `suspended`: by status.state no pod is active (CHANGEABLE_STATES)."""
    was, is_now = defaulted(spec_schema(), old), defaulted(spec_schema(), new)
    refusal = CHANGES.refusal(was, is_now, suspended)
    return (refusal,) if refusal else ()
