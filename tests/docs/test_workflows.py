"""The workflows of a public forge do what `.ci/run` does, and run nobody else's code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKE = re.compile(r"\bmake (?:--\S+ )*([a-z0-9-]+)")


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_no_step_is_an_action_and_none_runs_what_others_have_written(workflow: Path) -> None:
    assert steps(workflow)
    for step in steps(workflow):
        assert "uses" not in step, "an action is code of other people, with our token"
        assert "${{" not in step["run"], "an expression in a script is a place for somebody's words: use env"
    assert "permissions" in yaml.safe_load(workflow.read_text())


def test_it_runs_the_stages_of_our_own_script_in_their_order() -> None:
    stages = re.findall(r"^stage ([a-z0-9-]+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    (ours,) = [path for path in WORKFLOWS if path.name == "ci.yml"]
    assert [found[1] for step in steps(ours) if (found := MAKE.search(step["run"]))] == stages


def test_whatever_they_make_is_a_target() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for path in WORKFLOWS for step in steps(path) for name in MAKE.findall(step["run"])}
    assert {"check", "release"} <= named <= targets
