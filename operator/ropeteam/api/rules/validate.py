"""Validation of a TrainingJob: a sentence for each problem, with the field and what to change.

Schema first (types, limits, unknown fields), then the rules of `rulebook.py`, which need a spec that is valid
by the schema. The same schema and rules are in the CRD, so an API server refuses the same. This is for where
no server validates: the local cluster, `ropeteam validate` and `ropeteam run`, and the operator itself.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ropeteam.api.job import TrainingJobSpec
from ropeteam.api.rule import Spec, at
from ropeteam.api.rules.rulebook import CHANGES, RULES
from ropeteam.api.schema.sentences import problems
from ropeteam.api.schema.structural import Schema, structural_schema, with_defaults


@cache
def spec_schema() -> Schema:
    """The structural schema of spec, with defaults. Shared by all callers: do not change it in place."""
    return structural_schema(TrainingJobSpec)


def validate(spec: Any) -> tuple[str, ...]:
    """Problems of a spec as the user wrote it, any JSON value. Those of the schema, if there are any, else
    those of the rules. Empty: TrainingJobSpec.model_validate accepts it."""
    wrong_shape = tuple(problems(spec_schema(), spec, "spec"))
    if wrong_shape:
        return wrong_shape
    job = {"spec": with_defaults(spec_schema(), spec)}
    values = ((rule, at(job, rule.path)) for rule in RULES if rule.path)
    return tuple(rule.message for rule, value in values if value is not None and not rule.holds(value))


def validate_name(name: str) -> tuple[str, ...]:
    """Problems of metadata.name, by the rules of the whole object. Empty: it is valid."""
    job = {"metadata": {"name": name}}
    return tuple(rule.message for rule in RULES if not rule.path and not rule.holds(job))


def validate_update(old: Spec, new: Spec, suspended: bool) -> tuple[str, ...]:
    """Problems of a change from `old` to `new`, two specs that are valid by the schema. At most one: the
    first field that may not change. Empty: the change is allowed, as all are while `suspended` (status.state
    is one of CHANGEABLE_STATES)."""
    was, is_now = with_defaults(spec_schema(), old), with_defaults(spec_schema(), new)
    refusal = CHANGES.refusal(was, is_now, suspended)
    return (refusal,) if refusal else ()
