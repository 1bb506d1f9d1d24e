"""docs/security.md says what is so: the tests that it names exist, and it leaves out no port and no right."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from ropeteam.local.cluster import NETWORK_PORT
from ropeteam_trainer.contract import config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
CHART = ROOT / "helm" / "ropeteam" / "templates"
OPERATOR_PORT = 8080


def section(title: str) -> list[list[str]]:
    """The rows of its first table, without the head."""
    text = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(tests/[^`]+)`", PAGE))))
def test_every_test_that_it_names_exists(named: str) -> None:
    file, _, name = named.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    functions = {
        each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert not name or name in functions
    assert any(each.startswith("test_") for each in functions)


def test_what_is_called_closed_has_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if re.search(r"\| closed[^|]*\|", line)]
    assert len(rows) >= 30
    assert [row for row in rows if "`tests/" not in row] == []


def test_every_attack_has_one_row() -> None:
    """Two rows about one attack soon contradict each other."""
    attacks = PAGE.partition("\n## Attacks")[2].partition("\n## ")[0]
    rows_by_attack = Counter(line.split("|")[1] for line in attacks.splitlines() if line.startswith("| "))
    assert {attack for attack, rows in rows_by_attack.items() if rows > 1} == {" attack "}


def test_every_port_is_in_its_table() -> None:
    ours = {value for name, value in vars(config).items() if name.endswith("_PORT")}
    assert len(ours) >= 4
    named = {int(row[0]) for row in section("Ports") if row[0].isdecimal()}
    assert named == ours | {OPERATOR_PORT, NETWORK_PORT}
    deployment = (CHART / "deployment.yaml").read_text()
    assert set(re.findall(r"containerPort: (\d+)", deployment)) == {str(OPERATOR_PORT)}


def test_every_right_of_the_chart_is_in_its_table() -> None:
    """As the templates have them, because Helm is not everywhere; people's are in people.yaml."""
    helpers = (CHART / "_helpers.tpl").read_text().partition('define "ropeteam.jobRules"')[2]
    roles = (CHART / "rbac.yaml").read_text()
    rules = r"- apiGroups: .*\n  resources: .*\n  verbs: .*\n"
    granted = {
        (group or "core", resource, verb)
        for text in (helpers, roles)
        for rule in yaml.safe_load("".join(re.findall(rules, text)))
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    named = {(row[0], row[1], verb.strip()) for row in section("Rights") for verb in row[2].split(",")}
    assert len(granted) > 20
    assert named == granted
