"""TrainingJobs on this server: their CRD, and the rules that a real server evaluates as CEL."""

from __future__ import annotations

from ropeteam.api.crd import crd
from ropeteam.api.rule import CHANGEABLE_STATES, at
from ropeteam.api.rules.rulebook import RULES
from ropeteam.api.rules.validate import validate_update
from ropeteam.local.fielderrors import ErrorType, FieldError
from ropeteam.local.resources import Object

__all__ = ["crd", "rule_errors"]


def rule_errors(new: Object, old: Object | None) -> list[FieldError]:
    """Errors by the rules of a TrainingJob that is valid by its schema: of RULES, and with `old` of
    CHANGES."""
    checked = ((rule, at(new, rule.path) if rule.path else new) for rule in RULES)
    broken = [
        _broken_rule_error(rule.path or "<nil>", rule.message)
        for rule, value in checked
        if value is not None and not rule.holds(value)
    ]
    if old:
        idle = old.get("status", {}).get("state") in CHANGEABLE_STATES
        refused = validate_update(old["spec"], new["spec"], idle)
        broken += [_broken_rule_error("<nil>", message) for message in refused]
    return broken


def _broken_rule_error(path: str, message: str) -> FieldError:
    return FieldError(path, ErrorType.INVALID, detail=message)
