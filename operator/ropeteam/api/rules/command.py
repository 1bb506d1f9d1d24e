"""Rules of what a job runs: a command is set, and no field is set twice with two values. Tests run the
examples through CEL and the Python function.

Limits: whether the image has such a program is only known in a pod.
"""

from __future__ import annotations

from typing import Any

from ropeteam.api.rule import Rule, Spec, cel_trainer_has, spec_with, template_with, trainer_container


def _is_set(spec: Spec, field: str) -> bool:
    """Whether spec or its container `trainer` has the field."""
    return field in spec or field in trainer_container(spec)


def _cel_is_set(field: str) -> str:
    """CEL expression of `_is_set`."""
    return f"(has(self.{field}) || {cel_trainer_has(f'has(c.{field})')})"


def _set_once_rule(field: str, value: Any, other: Any) -> Rule:
    """Rule: spec and its container `trainer` may both set `field` only to the same value. `value`, `other`:
    two different values, for the examples."""
    return Rule(
        path="spec",
        cel=f"!has(self.{field}) || !{cel_trainer_has(f'has(c.{field}) && c.{field} != self.{field}')}",
        holds=lambda spec: (
            field not in spec or trainer_container(spec).get(field, spec[field]) == spec[field]
        ),
        message=f"spec.{field}: spec.template sets another value for container trainer; keep one of the two",
        valid=spec_with(**{field: value}, template=template_with(**{field: value})),
        invalid=spec_with(**{field: value}, template=template_with(**{field: other})),
    )


COMMAND_RULES: tuple[Rule, ...] = (
    Rule(
        path="spec",
        cel=f"{_cel_is_set('command')} || {_cel_is_set('args')}",
        holds=lambda spec: _is_set(spec, "command") or _is_set(spec, "args"),
        message="spec.command: is missing; set what to run, for example [python, train.py]",
        valid=spec_with(),
        invalid={"workers": 2},
    ),
    # In a pod such args go to the image's entrypoint. Our agent is in its place: it would run the
    # first of them as a program.
    Rule(
        path="spec",
        cel=f"{_cel_is_set('command')} || !{_cel_is_set('args')}",
        holds=lambda spec: _is_set(spec, "command") or not _is_set(spec, "args"),
        message=(
            "spec.command: is missing beside args, and the API does not know the image's entrypoint; set it "
            "here: `crane config IMAGE`, or `docker inspect --format '{{json .Config.Entrypoint}}' IMAGE`, "
            "shows it"
        ),
        valid=spec_with(args=["--lr", "0.1"]),
        invalid={"workers": 2, "args": ["--lr", "0.1"]},
    ),
    _set_once_rule("image", "train:1", "train:2"),
    _set_once_rule("command", ["python", "a.py"], ["python", "b.py"]),
    _set_once_rule("args", ["--a"], ["--b"]),
    _set_once_rule("workingDir", "/a", "/b"),
)
