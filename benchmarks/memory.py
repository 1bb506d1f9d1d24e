"""Does each rank hold its part of what is sharded, and what does recomputing save?

    python -m benchmarks.memory [TRIALS]        (5 by default; about two minutes)

The model of benchmarks/techniques.py. Held: bytes of this rank's parameters, gradients and optimizer state
after a step, real tensors counted, as a multiple of the whole over the number of ranks. Peak: the highest
physical memory of a process of its own in a step, above what it had before it made the model, as the kernel
saw it; one rank, 16 windows of 64 letters.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.results import Row, print_rows, write
from benchmarks.techniques import Technique, costs, train

WITHIN = 0.02
SHARDED = {"zero1": "OptimizerState", "zero2": "Gradients", "zero3": "Parameters"}
RECOMPUTED = ("None", "Selective", "Full")
BRIEF = {"memory": True, "warm": 2, "steps": 2, "batch": 12}


def held(work: Path) -> list[Row]:
    """Under Adam the whole is four times the weights. ZeRO-1 shares out the optimizer's half of it."""
    table = []
    whole = costs(1).model
    for ranks in (2, 3, 4):
        for name, sharding in SHARDED.items():
            technique = Technique(f"{name}-{ranks}", {"sharding": sharding}, ranks=ranks)
            found = train(work / technique.name, technique, **BRIEF)["held"]
            if name == "zero1":
                shares = [rank["optimizer"] * ranks / (2 * whole) for rank in found]
            else:
                shares = [sum(rank.values()) * ranks / (4 * whole) for rank in found]
            far = max(shares, key=lambda share: abs(share - 1))
            table.append(
                Row(f"memory.{name}.w{ranks}.held", round(statistics.median(shares), 4), "x", ranks,
                    round(far, 4), f"1 +- {WITHIN}", abs(far - 1) <= WITHIN, f"1/{ranks} of the whole")
            )  # fmt: skip
            print(table[-1], flush=True)
    return table


def peaks(work: Path, trials: int) -> dict[str, list[float]]:
    """MB at the peak."""
    found: dict[str, list[float]] = {kind: [] for kind in RECOMPUTED}
    for number in range(trials):
        for kind in RECOMPUTED:
            technique = Technique(kind, {"activation_checkpointing": kind}, ranks=1)
            figures = train(work / f"{kind}-{number}", technique, **BRIEF | {"batch": 16})
            found[kind].append(figures["peak"][0] / 1e6)
    return found


def rows(found: dict[str, list[float]]) -> list[Row]:
    table = []
    before: str | None = None
    for kind, megabytes in found.items():
        holds = max(megabytes) < min(found[before]) if before else None
        table.append(
            Row(f"memory.recompute_{kind.lower()}.peak", round(statistics.median(megabytes), 1), "MB",
                len(megabytes), round(max(megabytes), 1), f"below {before}" if before else "", holds,
                f"{statistics.median(found['None']):.1f} MB without")
        )  # fmt: skip
        before = kind
    return table


def main() -> int:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    work = Path(tempfile.mkdtemp(prefix="memory-"))
    try:
        table = held(work)
        found = peaks(work, trials)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    table += rows(found)
    write("memory", table, {f"recompute {kind}": each for kind, each in found.items()}, "MB at the peak")
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main())
