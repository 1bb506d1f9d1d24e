"""Alerts and panels before a real promtool: the syntax of all, and when each alert fires, and when not."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml
from tests.metrics.prometheus import program, queries
from tests.metrics.test_names import ALERTS

TESTS = Path(__file__).with_name("alerts.yaml")


def promtool(*arguments: str) -> str:
    done = subprocess.run([program("promtool"), *arguments], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def test_the_alerts_are_rules() -> None:
    assert f"SUCCESS: {len(rules())} rules found" in promtool("check", "rules", "--lint-fatal", str(ALERTS))


def test_each_alert_fires_and_ends_as_its_tests_expect() -> None:
    promtool("test", "rules", str(TESTS))
    cases = [each for test in yaml.safe_load(TESTS.read_text())["tests"] for each in test["alert_rule_test"]]
    for rule in rules():
        fires = [bool(each["exp_alerts"]) for each in cases if each["alertname"] == rule["alert"]]
        assert fires[0] is False, f"{rule['alert']} is seen silent, firing and silent again"
        assert True in fires
        assert False in fires[fires.index(True) :]


def test_each_alert_states_what_how_bad_and_what_to_do() -> None:
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_every_query_of_a_panel_is_promql(tmp_path: Path) -> None:
    recorded = [{"record": f"panel:{n}", "expr": query} for n, query in enumerate(queries().values())]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    assert f"SUCCESS: {len(recorded)} rules found" in promtool("check", "rules", str(file))
