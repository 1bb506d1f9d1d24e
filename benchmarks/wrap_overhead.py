"""Cost of job.wrap() under DDP, beside DistributedDataParallel written by hand.

    python -m benchmarks.wrap_overhead [PAIRS]        (600 by default; about four minutes)

Two ranks train three copies of a small GPT in turns of 4 steps: by hand, through wrap() and report(), and by
hand again. A pair is a turn of one and the turn by hand that came nearest; its ratio is that of their times.
The order changes from pair to pair, and which model is created first from world to world. The interval is the
95 % bootstrap interval of the median ratio. The second one by hand shows what the method takes for a
difference where there is none. gloo, loopback; steps are short, so that a cost per step shows.
"""

from __future__ import annotations

import random
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from lab.ranks.processes import RankGroup

from benchmarks.results import Row, print_rows, write

SCRIPT = Path(__file__).parent / "train_wrap.py"
FIRSTS = ("hand", "wrap", "again")
GOAL = 1.02
DRAWS = 10_000


def ratios(folder: Path, pairs: int, first: str) -> dict[str, list[float]]:
    """Of one world, to the time by hand in the same round."""
    with RankGroup(folder, 2) as group:
        ended = group.start(str(SCRIPT), str(pairs), first).wait(seconds=600)
    if any(ended.codes):
        raise RuntimeError("\n".join(ended.output))
    found = ended.result
    return {
        name: [ours / hand for ours, hand in zip(found[name], found["hand"], strict=True)]
        for name in ("wrap", "again")
    }


def interval(samples: list[float]) -> tuple[float, float]:
    """In which the median lies, with 95 %: percentile bootstrap."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(samples, k=len(samples))) for _ in range(DRAWS))
    return medians[DRAWS * 25 // 1000], medians[DRAWS * 975 // 1000]


def row(name: str, samples: list[float]) -> Row:
    low, high = interval(samples)
    goal, holds = ("", None) if name == "again" else (f"interval below {GOAL}", high < GOAL)
    return Row(
        f"wrap_overhead.{name}.ratio", round(statistics.median(samples), 4), "x", len(samples),
        round(max(samples), 4), goal, holds, f"DDP by hand; 95 % interval {low:.4f} to {high:.4f}",
    )  # fmt: skip


def main() -> int:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    work = Path(tempfile.mkdtemp(prefix="wrap-overhead-"))
    samples: dict[str, list[float]] = {"wrap": [], "again": []}
    try:
        for first in FIRSTS:
            for name, found in ratios(work / first, -(-pairs // len(FIRSTS)), first).items():
                samples[name] += found
            print(f"{first} first: {statistics.median(samples['wrap']):.4f}", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    table = [row(name, each) for name, each in samples.items()]
    write("wrap_overhead", table, samples, "step time / that of DDP by hand")
    print("\n".join(each.beside for each in table))
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main())
