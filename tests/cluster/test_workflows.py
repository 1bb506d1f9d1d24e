"""The workflows before the linter of their forge."""

from __future__ import annotations

import subprocess

import pytest
from lab.kube import programs
from lab.kube.site import ROOT


def test_actionlint_finds_nothing_in_the_workflows() -> None:
    try:
        program = programs.ensure(("actionlint",)) / "actionlint"
    except programs.CannotBuild as problem:
        pytest.skip(f"the workflows were NOT linted: {problem}")
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert workflows
    done = subprocess.run([program, "-no-color", *workflows], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
