"""Rules of what a job runs: there is a command, given once. The examples are run through CEL and twin by the
tests.

Limits: whether the image has such a program is only known in a pod.
"""

from __future__ import annotations

from typing import Any

from ropeteam.api.rule import Rule, Spec, spec_with, template_with, trainer, trainer_has


def _gives(spec: Spec, field: str) -> bool:
    return field in spec or field in trainer(spec)


def _cel_gives(field: str) -> str:
    return f"(has(self.{field}) || {trainer_has(f'has(c.{field})')})"


def given_twice(field: str, value: Any, other: Any) -> Rule:
    return Rule(
        path="spec",
        cel=f"!has(self.{field}) || !{trainer_has(f'has(c.{field}) && c.{field} != self.{field}')}",
        holds=lambda spec: field not in spec or trainer(spec).get(field, spec[field]) == spec[field],
        message=f"spec.{field}: spec.template sets another value for container trainer; keep one of the two",
        valid=spec_with(**{field: value}, template=template_with(**{field: value})),
        invalid=spec_with(**{field: value}, template=template_with(**{field: other})),
    )


COMMAND_RULES: tuple[Rule, ...] = (
    Rule(
        path="spec",
        cel=f"{_cel_gives('command')} || {_cel_gives('args')}",
        holds=lambda spec: _gives(spec, "command") or _gives(spec, "args"),
        message="spec.command: is missing; set what to run, for example [python, train.py]",
        valid=spec_with(),
        invalid={"workers": 2},
    ),
    # In a pod such args go to the image's entrypoint. Our agent is in its place: it would run the
    # first of them as a program.
    Rule(
        path="spec",
        cel=f"{_cel_gives('command')} || !{_cel_gives('args')}",
        holds=lambda spec: _gives(spec, "command") or not _gives(spec, "args"),
        message=(
            "spec.command: is missing beside args, and the API does not know the image's entrypoint; set it "
            "here: `crane config IMAGE`, or `docker inspect --format '{{json .Config.Entrypoint}}' IMAGE`, "
            "shows it"
        ),
        valid=spec_with(args=["--lr", "0.1"]),
        invalid={"workers": 2, "args": ["--lr", "0.1"]},
    ),
    given_twice("image", "train:1", "train:2"),
    given_twice("command", ["python", "a.py"], ["python", "b.py"]),
    given_twice("args", ["--a"], ["--b"]),
    given_twice("workingDir", "/a", "/b"),
)
