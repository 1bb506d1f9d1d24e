"""Throughput beside one slow worker, with equal parts and with balanced ones.

    python -m benchmarks.balance [TRIALS]        (5 by default; about a quarter of an hour)

One worker of 2, 3 and 4 has half the speed: it sleeps as long as it computed. The ideal is W - 1/2 of W times
the throughput of W equal workers: what parts of exactly the right size would give, if a step were nothing but
work on samples. Every trial runs all contenders of a world one after the other; the steps count after parts
could change twice. The losses of the balanced run are compared, step by step, with those of one process.
gloo, loopback; what a sample takes is waited for, not computed (train_balance.py).
"""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from lab.ranks.processes import RankGroup

from benchmarks.results import Row, print_rows, row, write
from benchmarks.train_balance import GLOBAL_BATCH
from ropeteam_trainer.data.balancing import EXCHANGE_EVERY

SCRIPT = Path(__file__).parent / "train_balance.py"
STEPS, WARM = 5 * EXCHANGE_EVERY, 2 * EXCHANGE_EVERY + 1
WORLDS = (2, 3, 4)

Steps = list[tuple[float, float, int]]
"""When each step of a rank ended, in seconds; the loss of the whole batch; how many samples it took."""


def train(folder: Path, world: int, slow: int, *options: str) -> list[Steps]:
    """Steps of each rank."""
    folder.mkdir(parents=True)
    ended = RankGroup(folder, world).run(str(SCRIPT), str(folder), str(STEPS), str(slow), *options)
    if any(ended.codes):
        raise RuntimeError("\n".join(ended.output))
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world)]


def throughput(ranks: list[Steps]) -> float:
    """Samples per second, of all ranks together, in the median step: other work comes in bursts."""
    ends = [step[0] for step in ranks[0][WARM - 1 :]]
    return GLOBAL_BATCH / statistics.median(end - begin for begin, end in itertools.pairwise(ends))


def trial(folder: Path, world: int, losses: list[float]) -> dict[str, float]:
    """Throughputs as fractions of the ideal, and the largest difference of a loss."""
    even = train(folder / "even", world, -1)
    ideal = throughput(even) * (world - 0.5) / world
    equal = train(folder / "equal", world, world - 1)
    balanced = train(folder / "balanced", world, world - 1, "balance")
    print(f"  parts at the end: {[rank[-1][2] for rank in balanced]}", flush=True)
    return {
        "equal": throughput(equal) / ideal,
        "balanced": throughput(balanced) / ideal,
        "loss": max(abs(step[1] - loss) for step, loss in zip(balanced[0], losses, strict=True)),
    }


def rows(world: int, trials: list[dict[str, float]]) -> list[Row]:
    equal, balanced, loss = ([each[name] for each in trials] for name in ("equal", "balanced", "loss"))
    before = row(f"{world} workers, equal parts: share of the ideal", equal, unit="x")
    after = row(f"{world} workers, balanced: share of the ideal", balanced, unit="x", beside="equal parts")
    return [
        replace(before, worst=round(min(equal), 3)),
        replace(after, worst=round(min(balanced), 3), goal=">= 0.9", holds=after.value >= 0.9),
        Row(f"{world} workers, balanced: largest difference of a loss", max(loss), "", len(loss), max(loss),
            "<= 1e-05", max(loss) <= 1e-5, "one process"),
    ]  # fmt: skip


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    work = Path(tempfile.mkdtemp(prefix="balance-"))
    table: list[Row] = []
    samples: dict[str, list[float]] = {}
    try:
        losses = [loss for _, loss, _ in train(work / "one", 1, -1)[0]]
        for world in WORLDS:
            trials = []
            for number in range(count):
                trials.append(trial(work / f"{world}-{number}", world, losses))
                print(f"{world} workers, trial {number + 1}/{count}: {trials[-1]}", flush=True)
            table += rows(world, trials)
            for name in ("equal", "balanced"):
                samples[f"{world} workers, {name} parts"] = [each[name] for each in trials]
    finally:
        shutil.rmtree(work, ignore_errors=True)
    write("balance", table, samples, "throughput, share of the ideal")
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main())
