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

from tests.e2e.harness import Cluster
from tests.programs import places, results, rows
from tests.programs.running import Run
from tests.programs.verdict import Seen, Verdict, judge


def table() -> list[rows.Row]:
    """All rows of the TOML files beside this one."""
    files = sorted(places.HERE.glob("*.toml"))
    return rows.read({file.name: tomllib.loads(file.read_text()) for file in files})


def main() -> int:
    options = _options()
    known, kept = table(), results.Results(_folder() / "results.json")
    asked = {row.name: row for each in options.rows or ["*"] for row in known if fnmatch(row.name, each)}
    chosen = list(asked.values())
    commit, red = results.product(), 0
    wanted = [
        (row, shape)
        for row in chosen
        for shape in (row.shapes[:1] if options.first else row.shapes)
        if options.shape in ("", shape) and (options.again or not kept.has(row, shape, commit))
    ]
    if options.prepare:
        return _prepare(chosen)
    if wanted and not options.report:
        with tempfile.TemporaryDirectory() as home:
            cluster = Cluster(Path(home) / "home")
            try:
                for row, shape in wanted:
                    red += not _once(cluster, kept, row, shape, commit)
            finally:
                cluster.stop()
    print(results.table(kept.records.values(), known))
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


def _once(cluster: Cluster, kept: results.Results, row: rows.Row, shape: str, commit: str) -> bool:
    """Run, judge, write down. A row without sources is not judged, and no failure."""
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
        judged = judge(row, seen)
        _log(row, shape, run, seen, judged)
    finally:
        run.clean()
    kept.add(row, shape, commit, seen, judged)
    mark = "green" if judged.green else "RED"
    print(f"{mark}: {judged.name} ({judged.why[:300]}), {time.monotonic() - began:.0f} s")
    return judged.green


def _log(row: rows.Row, shape: str, run: Run, seen: Seen, judged: Verdict) -> None:
    """Of a red run what its pods said; of a green one nothing is kept."""
    file = _folder() / "logs" / f"{row.name}-{shape}.log"
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    if not judged.green:
        file.write_text(f"{judged}\n{seen}\n{run.logs()}")


if __name__ == "__main__":
    sys.exit(main())
