"""Run public programs, unmodified, on the local cluster: `python -m tests.programs [ROW...]`.

Rows that have a result for the present product commit are skipped unless `--again` is given; the summary
comes at the end, or alone with `--report`. Exit status 1: a run was red. Not a part of CI: sources come from
elsewhere, see places.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from lab.local.cluster import Cluster
from tests.programs import places, results, rows
from tests.programs.outcome import Outcome, Seen, outcome_of
from tests.programs.running import Run


def table() -> list[rows.Row]:
    """All rows of the TOML files beside this one."""
    files = sorted(places.HERE.glob("*.toml"))
    return rows.read({file.name: tomllib.loads(file.read_text()) for file in files})


def main() -> int:
    options = _options()
    known, recorded = table(), results.Results(_folder() / "results.json")
    selected = {row.name: row for each in options.rows or ["*"] for row in known if fnmatch(row.name, each)}
    chosen = list(selected.values())
    commit, red = results.product(), 0
    wanted = [
        (row, shape)
        for row in chosen
        for shape in (row.shapes[:1] if options.first else row.shapes)
        if options.shape in ("", shape) and (options.again or not recorded.has(row, shape, commit))
    ]
    if options.prepare:
        return _prepare(chosen)
    if wanted and not options.report:
        with tempfile.TemporaryDirectory() as home:
            cluster = Cluster(Path(home) / "home")
            try:
                for row, shape in wanted:
                    red += not _once(cluster, recorded, row, shape, commit)
            finally:
                cluster.stop()
    print(results.table(recorded.records.values(), known))
    return min(red, 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="names or patterns; omitted: all")
    parser.add_argument("--again", action="store_true", help="also those that have a result")
    parser.add_argument("--shape", default="", choices=["", *rows.SHAPES], help="this one only")
    parser.add_argument("--first", action="store_true", help="the first shape of each row only")
    parser.add_argument("--prepare", action="store_true", help="make environments and copies only")
    parser.add_argument("--report", action="store_true", help="run nothing, print the table")
    return parser.parse_args()


def _folder() -> Path:
    places.CACHE.mkdir(parents=True, exist_ok=True)
    return places.CACHE


def _prepare(chosen: list[rows.Row]) -> int:
    """Everything that needs the network and time, without a run."""
    red = 0
    for row in chosen:
        try:
            places.prepared(row, places.interpreter(row.project))
        except places.Missing as error:
            red += 1
            print(f"{row.name} missing: {error}", flush=True)
    return min(red, 1)


def _once(cluster: Cluster, recorded: results.Results, row: rows.Row, shape: str, commit: str) -> bool:
    """Run it, and record the outcome. A row without sources has none, and is no failure."""
    began = time.monotonic()
    print(f"{row.name} {shape} ...", end=" ", flush=True)
    try:
        programs = places.interpreter(row.project)
        places.fresh(row, programs, cluster.home.parent / "run")
        run = Run(cluster, row, shape, cluster.home.parent / "run", programs)
    except places.Missing as error:
        print(f"missing: {error}")
        return True
    try:
        seen = run.watch()
        outcome = outcome_of(row, seen)
        _log(row, shape, run, seen, outcome)
    finally:
        run.clean()
    recorded.add(row, shape, commit, seen, outcome)
    mark = "green" if outcome.green else "RED"
    print(f"{mark}: {outcome.name} ({outcome.why[:300]}), {time.monotonic() - began:.0f} s")
    return outcome.green


def _log(row: rows.Row, shape: str, run: Run, seen: Seen, outcome: Outcome) -> None:
    """The log of a red run's pods; a green one leaves none."""
    file = _folder() / "logs" / f"{row.name}-{shape}.log"
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    if not outcome.green:
        file.write_text(f"{outcome}\n{seen}\n{run.logs()}")


if __name__ == "__main__":
    sys.exit(main())
