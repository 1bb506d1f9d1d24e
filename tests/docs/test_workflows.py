"""Files that a public forge reads: workflows do what `.ci/run` does, and run nobody else's code; forms name
commands that exist; the contributors' page runs tests that exist.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ropeteam.cli.main import cli

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
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


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_is_one_that_github_shows(form: Path) -> None:
    parsed = yaml.safe_load(form.read_text())
    assert set(parsed) == {"name", "description", "body"}
    for part in parsed["body"]:
        needs = "value" if part["type"] == "markdown" else "label"
        assert part["attributes"][needs], part
        assert part["type"] in ("markdown", "textarea", "input")
    ids = [part["id"] for part in parsed["body"] if part["type"] != "markdown"]
    assert len(ids) == len(set(ids)) >= 1


def test_issue_forms_name_commands_that_we_have() -> None:
    named = {name for form in FORMS for name in re.findall(r"`ropeteam ([a-z]+)", form.read_text())}
    assert {"snapshot", "logs"} <= named <= set(cli.commands)


def test_the_contributors_page_runs_tests_that_there_are() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    [arguments] = re.findall(r"^\.venv/bin/python (-m pytest .*)$", page, re.MULTILINE)
    command = [sys.executable, *arguments.split(), "--collect-only"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout  # 5: no such test


def test_whatever_they_make_is_a_target() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for path in WORKFLOWS for step in steps(path) for name in MAKE.findall(step["run"])}
    assert {"check", "release"} <= named <= targets
