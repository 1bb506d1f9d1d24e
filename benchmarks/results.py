"""Results of benchmarks: results/NAME.json, with every sample (of scale: some 200 of each series) and with
where they were measured.

A row is one figure; a series has all samples of one contender. Pictures are drawn from these files alone
(pictures.py). A row and a series take a line each, so that a diff shows which figure has changed.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_MEASURED_CODE = ("operator", "trainer-image", "benchmarks", "lab")
_START, _LOAD = time.monotonic(), os.getloadavg()[0]
"""Of the process, before it measures."""

Samples = dict[str, list[float]]


@dataclass(frozen=True)
class Row:
    """One figure. `value` is the median of `n` samples; `beside` names what it is compared with."""

    id: str
    value: float
    unit: str
    n: int
    worst: float
    goal: str
    holds: bool | None
    beside: str


@dataclass(frozen=True)
class Taken:
    """Provenance of a result. None: nobody recorded it, which holds for results before this class only."""

    commit: str
    date: str
    machine: str
    cpus: int | None = None
    clean: bool | None = None
    """Whether the code that was measured is that of the commit."""
    memory_gib: float | None = None
    kernel: str | None = None
    load: float | None = None
    """Load average over a minute, before."""
    seconds: float | None = None
    command: str | None = None
    versions: dict[str, str] | None = None
    note: str = ""


@dataclass(frozen=True)
class Result:
    taken: Taken
    unit: str
    """Of the samples."""
    rows: list[Row]
    samples: Samples


def row(name: str, samples: list[float], *, unit: str = "s", beside: str = "") -> Row:
    """Median and worst of samples, without a goal."""
    median, worst = round(statistics.median(samples), 3), round(max(samples), 3)
    return Row(name, median, unit, len(samples), worst, "", None, beside)


def write(name: str, rows: list[Row], samples: Samples, unit: str, **versions: str) -> None:
    """`versions`: of programs beside Python and torch, Kubernetes for example."""
    rounded = {series: [float(f"{each:.4g}") for each in values] for series, values in samples.items()}
    RESULTS.mkdir(exist_ok=True)
    path_of(name).write_text(encode(Result(_taken_now(versions), unit, rows, rounded)))


def load(name: str) -> Result:
    plain = json.loads(path_of(name).read_text())
    rows = [Row(**each) for each in plain["rows"]]
    return Result(Taken(**plain["taken"]), plain["unit"], rows, plain["samples"])


def path_of(name: str) -> Path:
    return RESULTS / f"{name}.json"


def names() -> list[str]:
    return sorted(path.stem for path in RESULTS.glob("*.json"))


def encode(result: Result) -> str:
    taken = {field: value for field, value in asdict(result.taken).items() if value not in (None, "")}
    rows = [json.dumps(asdict(each)) for each in result.rows]
    series = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in result.samples.items()]
    parts = [
        f'"taken": {json.dumps(taken)}',
        f'"unit": {json.dumps(result.unit)}',
        f'"rows": {_lines("[", rows, "]")}',
        f'"samples": {_lines("{", series, "}")}',
    ]
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def _lines(opening: str, entries: list[str], closing: str) -> str:
    return f"{opening}\n  " + ",\n  ".join(entries) + f"\n {closing}" if entries else opening + closing


def print_rows(rows: list[Row]) -> int:
    """Print them. The exit status: 1 if a goal is missed."""
    for each in rows:
        outcome = {True: "met", False: "MISSED", None: ""}[each.holds]
        figures = f"{each.value:9} {each.unit:6} n={each.n:<5} worst={each.worst:<9}"
        print(f"{each.id:62} {figures} {each.goal:16} {outcome}".rstrip(), flush=True)
    return 0 if all(each.holds is not False for each in rows) else 1


def _taken_now(versions: dict[str, str]) -> Taken:
    commit = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--", *_MEASURED_CODE, ":!benchmarks/results/")
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    packages = {"python": platform.python_version(), "torch": version("torch")}
    return Taken(
        commit=commit or "unknown",
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=cpu[1] if cpu else platform.machine(),
        cpus=len(os.sched_getaffinity(0)),
        clean=not changed if commit else None,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        kernel=platform.release(),
        load=round(_LOAD, 2),
        seconds=round(time.monotonic() - _START, 1),
        command=" ".join(["python", *sys.orig_argv[1:]]),
        versions=packages | versions,
    )


def _git(*arguments: str) -> str:
    """Output of git; nothing where there is no repository."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()
