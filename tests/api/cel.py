"""Helpers of the tests of rules: CEL, run by cel-python, and specs as a server would see them."""

from __future__ import annotations

from functools import cache
from typing import Any

import celpy
from celpy.adapter import json_to_cel

from ropeteam.api.rule import Spec
from ropeteam.api.rules.validate import spec_schema
from ropeteam.api.schema.structural import with_defaults


def _quantity(text: str) -> Any:
    """As Kubernetes adds it to CEL: https://kubernetes.io/docs/reference/using-api/cel/."""
    suffixes = {"": 0, "Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}
    number = text.rstrip("KMGTi")
    return celpy.celtypes.IntType(int(number) << suffixes[text[len(number) :]])


_FUNCTIONS: dict[str, Any] = {
    "quantity": _quantity,
    "isQuantity": lambda text: celpy.celtypes.BoolType(text.rstrip("KMGTi").isdigit()),
    "isLessThan": lambda one, two: celpy.celtypes.BoolType(one < two),
}


@cache
def _program(cel: str) -> celpy.Runner:
    environment = celpy.Environment()
    return environment.program(environment.compile(cel), functions=_FUNCTIONS)


def cel_bool(cel: str, **variables: Any) -> bool:
    return bool(_evaluated(cel, variables))


def cel_text(cel: str, **variables: Any) -> str:
    return str(_evaluated(cel, variables))


def _evaluated(cel: str, variables: dict[str, Any]) -> Any:
    return _program(cel).evaluate({name: json_to_cel(value) for name, value in variables.items()})


def as_job(spec: Spec) -> dict[str, Any]:
    return {"metadata": {"name": "job"}, "spec": with_defaults(spec_schema(), spec)}
