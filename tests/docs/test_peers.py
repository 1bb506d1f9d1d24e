"""Figures of the README and of docs/peers.md that were measured beside a peer are those of the results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PEERS = (ROOT / "docs" / "peers.md").read_text()
TABLE = README.partition("## Beside others")[2].partition("## ")[0]


def figure(name: str, row: str) -> dict[str, Any]:
    result = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    [found] = [each for each in (result["rows"] if isinstance(result, dict) else result) if each["id"] == row]
    return found


def section(title: str) -> str:
    return PEERS.partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("line", "name", "row", "digits"),
    [
        ("one machine", "gang_restart", "ropeteam fork: kill to first step of all ranks", 2),
        ("one machine", "gang_restart", "ropeteam exec: kill to first step of all ranks", 1),
        ("one machine", "gang_restart", "torchrun 1x2, store not shared: kill to first step of all ranks", 1),
        ("six pods", "cluster_kills", "rank killed, six pods: seconds", 2),
        ("six pods", "cluster_kills", "the same, JobSet: seconds", 1),
        ("six pods", "cluster_kills", "the same, JobSet in place: seconds", 1),
        ("node is lost", "cluster_recovery", "node off: seconds", 1),
    ],
)
def test_a_figure_of_the_table_is_that_of_the_results(line: str, name: str, row: str, digits: int) -> None:
    [cells] = [each for each in TABLE.splitlines() if line in each]
    assert re.search(rf"\| ?.*\b{figure(name, row)['value']:.{digits}f} s\b", cells)


def test_every_figure_that_was_measured_in_one_run_with_ours_is_that_of_the_results() -> None:
    lines = [line for line in section("Measured in the same run as ours").splitlines() if " s | " in line]
    listed = {tuple(cell.strip() for cell in line.split("|")[3:6]) for line in lines}
    wanted = [
        *(figure("gang_restart", f"{name}: kill to first step of all ranks") for name in CONTENDERS),
        figure("cluster_kills", "rank killed, six pods: seconds"),
        figure("cluster_kills", "the same, JobSet: seconds"),
        figure("cluster_kills", "the same, JobSet in place: seconds"),
        figure("cluster_kills", "the same, JobSet in place, capped: seconds"),
        figure("cluster_recovery", "node off: seconds"),
    ]
    assert {(median, n) for median, n, _ in listed} == {
        (f"{each['value']} s", str(each["n"])) for each in wanted
    }
    worst = {f"{each['worst']} s" for each in wanted if each["worst"] < 60}
    lost = {
        f"not in 60 s, {figure('gang_restart', f'{name}: not recovered in 60 s')['value']} times"
        for name in ("torchrun 1x2", "torchrun 2x1")
    }
    assert {each for _, _, each in listed} == worst | lost


CONTENDERS = (
    "ropeteam fork",
    "ropeteam exec",
    "torchrun 1x2, store not shared",
    "torchrun 2x1, store not shared",
    "torchrun 1x2",
    "torchrun 2x1",
)


def test_readme_lists_what_we_are_not() -> None:
    assert {"Kueue", "elastic", "GPU"} <= set(re.findall(r"\w+", README.partition("## What it is not")[2]))
