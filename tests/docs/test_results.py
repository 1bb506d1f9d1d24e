"""Results of benchmarks: provenance, rows that follow from samples, pictures drawn from them."""

from __future__ import annotations

import ast
import json
import re
import statistics
from pathlib import Path

import pytest
from benchmarks import pictures, results
from benchmarks.__main__ import BENCHMARKS, HISTORY, main
from benchmarks.results import ROOT, Result, Row

EACH = pytest.mark.parametrize("name", results.names())
DERIVED = {
    "coordinator": "processor time is shown per agent",
    "pipelines": "a share of what a formula promises",
    "scale_local": "percentiles of jobs",
    "scale_one": "percentiles of pods",
    "scale_real": "percentiles of jobs",
}
"""Results whose rows are no medians of their series."""


def follows(row: Row, values: list[float]) -> bool:
    """Rows have three decimals, samples four digits."""
    median = statistics.median(values)
    worst = min(abs(row.worst - each) for each in (min(values), max(values)))
    return (
        row.n == len(values)
        and abs(row.value - median) <= 0.002 * abs(median) + 0.0006
        and worst <= 0.002 * max(map(abs, values)) + 0.0006
    )


@EACH
def test_a_result_has_its_provenance(name: str) -> None:
    taken = results.load(name).taken
    assert re.fullmatch(r"[0-9a-f]{40}", taken.commit)
    assert re.match(r"2\d{3}-\d\d-\d\dT", taken.date)
    assert taken.machine
    assert taken.versions
    missing = [field for field, value in vars(taken).items() if value is None]
    assert not missing or taken.note, f"{missing} are not known: a note says why"


@EACH
def test_rows_follow_from_samples(name: str) -> None:
    result = results.load(name)
    assert result.samples or result.taken.note
    if name not in DERIVED:
        astray = {
            series: values
            for series, values in result.samples.items()
            if not any(follows(row, values) for row in result.rows)
        }
        assert astray == {}


def test_every_result_is_listed_and_written_by_the_module_that_is_named() -> None:
    assert sorted(each.name for each in BENCHMARKS) == results.names()
    callers = {
        path.parent.name if path.name == "__main__.py" else path.stem
        for path in (ROOT / "benchmarks").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "write"
    }
    assert {each.module for each in BENCHMARKS} == callers


def test_benchmarks_are_listed_with_their_needs_and_an_unknown_one_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--list"]) == 0
    assert HISTORY in capsys.readouterr().out
    assert main(["gang_restarts"]) == 2
    assert "gang_restart," in capsys.readouterr().out


def test_a_picture_of_a_page_is_that_of_its_result() -> None:
    drawn = {path.stem: path.read_text() for path in pictures.SHOWN.glob("*.svg")}
    stale = [name for name in pictures.OF_PAGES if pictures.source(name) not in drawn[name]]
    assert stale == [], "run `make pictures ONLY=--shown`"
    assert list(results.RESULTS.glob("*.svg")) == []


def test_what_is_written_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    samples = {"one, two": [1.23456, 2.0], "none": []}
    rows = [results.row("one", [1.23456, 2.0])]
    results.write("some", rows, samples, "seconds", kubernetes="1.0")
    read = results.load("some")
    assert read == Result(read.taken, "seconds", rows, {"one, two": [1.235, 2.0], "none": []})
    assert (read.taken.cpus or 0) > 0
    assert read.taken.versions is not None
    assert read.taken.versions["kubernetes"] == "1.0"
    assert json.loads((tmp_path / "some.json").read_text())["rows"][0]["id"] == "one"


def test_a_missed_goal_is_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    row = results.row("one", [1.0])
    assert results.print_rows([row]) == 0
    assert results.print_rows([Row("two", 3, "s", 1, 3, "<= 2", False, "")]) == 1
    assert "MISSED" in capsys.readouterr().out
