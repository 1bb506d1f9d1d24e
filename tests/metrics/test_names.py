"""Names: what is exported is documented, what is queried is exported, and none breaks Prometheus' rules."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.metrics.exporters import Family, all_families, texts
from tests.metrics.prometheus import program, queries
from tools.dashboards import files
from tools.panels import DASHBOARDS

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "helm" / "ropeteam" / "files" / "alerts.yaml"
OURS = re.compile(r"\b(?:ropeteam|workqueue|controller_runtime|rest_client|process)_\w+")
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
EXPORTERS = ("operator", "coordinator", "agent")


def every_family() -> dict[str, Family]:
    return {name: family for families in all_families().values() for name, family in families.items()}


def used_expressions() -> dict[str, str]:
    """Expressions by where they are."""
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    return queries() | {rule["alert"]: rule["expr"] for rule in rules}


def sections() -> dict[str, dict[str, tuple[str, frozenset[str]]]]:
    """Of the document: by exporter, the name, kind and labels of each row."""
    parts = (ROOT / "docs" / "metrics.md").read_text().split("\n## ")
    found = {}
    for part in parts:
        rows = {n: (k, frozenset(re.findall(r"`(\w+)`", ls))) for n, k, ls in ROW.findall(part)}
        if rows:
            found[part.split("\n")[0].rpartition(" ")[2]] = rows
    return found


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_every_metric_is_documented_with_its_kind_and_labels(exporter: str) -> None:
    exported = {name: (each.kind, each.labels) for name, each in all_families()[exporter].items()}
    assert sections()[exporter] == exported


def test_every_metric_that_a_panel_or_an_alert_names_is_exported() -> None:
    exported = {series for family in every_family().values() for series in family.series}
    for place, expression in used_expressions().items():
        names = set(OURS.findall(expression))
        assert names, f"{place}: {expression}"
        assert names <= exported, place


def test_every_metric_of_ours_is_in_a_panel_or_an_alert() -> None:
    """Metrics of the process and the rest are in the document only."""
    used = {name for expression in used_expressions().values() for name in OURS.findall(expression)}
    ours = [each for name, each in every_family().items() if name.startswith("ropeteam_")]
    assert len(ours) > 20
    assert [each.name for each in ours if not each.series & used] == []


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_promtool_finds_no_fault_with_the_names(exporter: str) -> None:
    argv = [str(program("promtool")), "check", "metrics"]
    done = subprocess.run(argv, input=texts()[exporter], text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_dashboards_are_those_of_the_code_and_every_panel_explains_itself() -> None:
    assert {path.name: path.read_text() for path in files()} == {p.name: t for p, t in files().items()}
    panels = [panel for dashboard in DASHBOARDS for panel in dashboard.panels]
    assert all(panel.why and panel.queries for panel in panels)
    assert len({(panel.title, panel.why) for panel in panels}) == len(panels) >= 30
