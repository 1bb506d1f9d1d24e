"""The rendered chart before a public linter; rules that we do not follow are in helm/checkov.yaml."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from lab.kube.site import ROOT
from tests.cluster.test_chart import render

CHECKOV = "checkov==3.3.30"
CONFIG = ROOT / "helm" / "checkov.yaml"


def failures(rendered: Path, *flags: str) -> set[str]:
    command = ["uv", "tool", "run", "--from", CHECKOV, "checkov", "-f", str(rendered), *flags]
    done = subprocess.run(command, text=True, capture_output=True)
    assert "Passed checks:" in done.stdout, done.stdout + done.stderr
    return {line.split(":")[1].strip() for line in done.stdout.splitlines() if line.startswith("Check:")}


@pytest.mark.skipif(not shutil.which("uv"), reason="needs uv, to fetch checkov")
def test_checkov_finds_nothing_but_what_has_a_reason(tmp_path: Path) -> None:
    rendered = tmp_path / "chart.yaml"
    rendered.write_text(yaml.safe_dump_all(render()))
    assert failures(rendered, "--config-file", str(CONFIG)) == set()
    reasons = set(yaml.safe_load(CONFIG.read_text())["skip-check"])
    assert failures(rendered, "--framework", "kubernetes", "--quiet", "--compact") == reasons, (
        "all still needed"
    )
