"""Cost of our sitecustomize (agent/script/childhooks.py) to each Python process of a job: `python -c pass`
with its folder on PYTHONPATH and an agent's socket in the environment, beside the same without, in turns.

    python -m benchmarks.child_start [N]      goal: 5 ms

The first process of each kind compiles what it reads and is not counted.
Limits: one machine, one interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results import Row, print_rows, row, write
from ropeteam_trainer.agent.processes.spawn import write_shims
from ropeteam_trainer.contract import config

GOAL_MS = 5.0
_COMMAND = (sys.executable, "-c", "pass")


def milliseconds(environment: dict[str, str]) -> float:
    begin = time.perf_counter()
    subprocess.run(_COMMAND, env=environment, check=True)
    return 1000 * (time.perf_counter() - begin)


def main(n: int) -> int:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with tempfile.TemporaryDirectory() as folder:
        shims = write_shims(Path(folder))
        ours = plain | {"PYTHONPATH": shims.python_path({}), config.AGENT_SOCKET: f"{folder}/socket"}
        for environment in (plain, ours):
            milliseconds(environment)
        pairs = [(milliseconds(plain), milliseconds(ours)) for _ in range(n)]
    samples = {
        "python -c pass": [one for one, _ in pairs],
        "the same below a rank": [two for _, two in pairs],
    }
    bare, with_ours = (
        row(name, milliseconds, unit="ms", beside=beside)
        for (name, milliseconds), beside in zip(samples.items(), ("", "python -c pass"), strict=True)
    )
    more = round(with_ours.value - bare.value, 3)
    worst = round(max(other - one for one, other in pairs), 3)
    cost = Row("cost", more, "ms", n, worst, f"<= {GOAL_MS:g}", more <= GOAL_MS, bare.id)
    rows = [bare, with_ours, cost]
    write("child_start", rows, samples, "ms")
    return print_rows(rows)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
