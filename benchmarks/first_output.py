"""How long until a person sees the script work? `ropeteam run` beside torchrun, in turns.

    python -m benchmarks.first_output [TRIALS]        (10)

Two ranks of a DDP script that imports torch, makes a step and prints when it did. Of both: from the command
to the first step of rank 0. Of `ropeteam run`, which starts a cluster, an operator, a coordinator and pods in
that time: from the print to the line on its stdout, too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results import Row, print_rows, row, write

MOST_MORE, MOST_LATE = 2.0, 1.0
SCRIPT = """
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(20):
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    print(f"rank {dist.get_rank()} step {step} at {time.time()}", flush=True)
    time.sleep(0.05)
dist.destroy_process_group()
"""
OURS, TORCHRUN, LATE = "ropeteam run: first step", "torchrun: first step", "print to screen"


def main() -> int:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    samples: dict[str, list[float]] = {OURS: [], TORCHRUN: [], LATE: []}
    with tempfile.TemporaryDirectory(prefix="first-") as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        home = ["--home", str(folder / "home")]
        commands = {
            OURS: [
                sys.executable,
                "-m",
                "ropeteam.cli",
                "run",
                *home,
                "-n",
                "2",
                "--",
                "torchrun",
                "train.py",
            ],
            TORCHRUN: ["torchrun", "--standalone", "--nproc-per-node", "2", "train.py"],
        }
        for number in range(trials + 1):
            for what, command in commands.items():
                first, late = trial(command, folder)
                if number:  # the first one fills caches
                    samples[what].append(first)
                    samples[LATE] += [late] if what == OURS else []
                    print(f"{number:3} {what:26} {first:.2f} s, seen {late:.3f} s later", flush=True)
    return show(samples)


def trial(command: list[str], folder: Path) -> tuple[float, float]:
    """Seconds to rank 0's first step, and from its print to us; the worst of the steps."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    began, steps, late = time.time(), list[float](), 0.0
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"rank 0 step \d+ at ([\d.]+)", line):
                steps.append(float(found[1]))
                late = max(late, time.time() - steps[-1])
    assert process.returncode == 0, command
    assert len(steps) == 20, f"{len(steps)} of 20 lines were seen"
    return steps[0] - began, late


def show(samples: dict[str, list[float]]) -> int:
    table = [row(name, seconds) for name, seconds in samples.items()]
    more = [ours - theirs for ours, theirs in zip(samples[OURS], samples[TORCHRUN], strict=True)]
    table.append(goal("ropeteam run: more than torchrun", more, MOST_MORE))
    table.append(goal("print to screen, worst line of a run", samples[LATE], MOST_LATE))
    write("first_output", table, samples, "seconds")
    return print_rows(table)


def goal(name: str, seconds: list[float], most: float) -> Row:
    """The median of pairs, and the worst."""
    middle = sorted(seconds)[len(seconds) // 2]
    return Row(
        name,
        round(middle, 3),
        "s",
        len(seconds),
        round(max(seconds), 3),
        f"<= {most}",
        middle <= most,
        "torchrun",
    )


if __name__ == "__main__":
    sys.exit(main())
