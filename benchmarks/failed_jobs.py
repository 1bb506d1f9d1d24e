"""How long does a failed job hold its resources? Every kind of failure of lab/local/failures.py.

    python -m benchmarks.failed_jobs

On a local cluster, one job after the other: from the moment that status says Failed until no pod of the job
runs. Each must leave its ranks' logs; that is what the test looks at.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from lab.local.cluster import Cluster
from lab.local.failures import KINDS, holding, made
from lab.waiting import wait_until

from benchmarks.results import Row, print_rows, write

MOST = 30.0
HELD = "Failed to no pod that runs"


def main() -> int:
    samples: list[float] = []
    with tempfile.TemporaryDirectory(prefix="failed-") as name:
        folder = Path(name)
        cluster = Cluster(folder / "home")
        try:
            for kind in KINDS:
                (folder / kind).mkdir()
                samples.append(held(cluster, kind, folder / kind))
                print(f"{len(samples):3} {kind:20} {samples[-1]:.2f} s", flush=True)
        finally:
            cluster.stop()
    worst, middle = max(samples), sorted(samples)[len(samples) // 2]
    table = [Row(HELD, round(middle, 3), "s", len(samples), round(worst, 3), f"<= {MOST}", worst <= MOST, "")]
    write("failed_jobs", table, {HELD: samples}, "seconds")
    return print_rows(table)


def held(cluster: Cluster, kind: str, folder: Path) -> float:
    """Seconds."""
    cluster.create(made(kind, KINDS[kind], folder))
    cluster.wait_condition(kind, "Failed")
    began = time.monotonic()
    wait_until(f"the pods of {kind} hold nothing", lambda: not holding(cluster, kind))
    seconds = time.monotonic() - began
    cluster.delete(kind)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
