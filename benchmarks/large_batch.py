"""Sixteen times the batch: does it train as well when the learning rate follows, and badly when not?

    python -m benchmarks.large_batch [SEEDS]        (10 by default; about three minutes)

The recipe `digits` with SGD, the same epochs and pictures: batches of 16; batches of 256 at the same rate;
and batches of 256 at 16 times the rate after a warm-up, as spec.strategy requests it. Two ranks, through
job.wrap(); seeds change the first weights and the order of pictures. Accuracy is that of 360 pictures that
were not trained on, so a picture is 0.0028.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.ranks.processes import FakeAgent, RankGroup

from benchmarks.results import Row, print_rows, write
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.recipes import digits

BASE, TIMES, EPOCHS, RATE, WARMUP = 16, 16, 26, 0.02, 15
READS, FALLS_SHORT = 0.965, 0.93
SCALED = {"scaling": "Linear", "base_batch": BASE, "warmup_steps": WARMUP}
STRATEGIES: dict[str, dict[str, Any]] = {
    "small_batch": {"batch": {"global_samples": BASE}},
    "large_batch_scaled": {"batch": {"global_samples": BASE * TIMES}, "learning_rate": SCALED},
    "large_batch_unscaled": {"batch": {"global_samples": BASE * TIMES}},
}


def accuracy(folder: Path, strategy: dict[str, Any], seed: int) -> float:
    options = {"--optimizer": "SGD", "--learning-rate": RATE, "--epochs": EPOCHS, "--seed": seed}
    folder.mkdir(parents=True)
    agent = FakeAgent(folder, 2, None, WorldId(1, 0, 1))
    with RankGroup(folder / "group", 2) as group:
        group.start(
            str(Path(digits.__file__)), *(str(part) for option in options.items() for part in option),
            agent=agent, strategy=codec.from_plain(Strategy, strategy),
        )  # fmt: skip
        ended = group.wait(seconds=300)
    agent.close()
    if any(ended.codes):
        raise RuntimeError("\n".join(ended.output))
    reached: float = ended.result["accuracy"]
    return reached


def row(name: str, found: list[float], beside: str) -> Row:
    middle = statistics.median(found)
    worst: Callable[[list[float]], float] = max if name == "large_batch_unscaled" else min
    goal, holds = f">= {READS} (median)", middle >= READS
    if name == "large_batch_unscaled":
        goal, holds = f"< {FALLS_SHORT} (median)", middle < FALLS_SHORT
    return Row(
        f"large_batch.{name}.accuracy", round(middle, 4), "", len(found), worst(found), goal, holds, beside
    )


def main() -> int:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    work = Path(tempfile.mkdtemp(prefix="large-batch-"))
    samples: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    try:
        for seed in range(seeds):
            for name, strategy in STRATEGIES.items():
                samples[name].append(accuracy(work / f"{name}-{seed}", strategy, seed))
            print(f"seed {seed}: { {name: each[-1] for name, each in samples.items()} }", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    beside = (
        f"batch {BASE}, rate {RATE}, {EPOCHS} epochs; large: batch {BASE * TIMES}, warm-up {WARMUP} steps"
    )
    table = [row(name, found, beside) for name, found in samples.items()]
    write("large_batch", table, samples, "accuracy")
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main())
