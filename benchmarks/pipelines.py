"""How much of the time do the ranks of a pipeline compute, and is it what the formula says?

    python -m benchmarks.pipelines [STEPS]        (8 by default; about five minutes)

m micro-batches through p ranks keep each of them busy for m/(m+p-1) of a step, and for m/(m+(p-1)/v) with v
stages per rank (strategies/pipeline.py). Measured: what a rank's own stages take for all micro-batches when
it waits for nobody, over the time of a step, mean of all ranks; both in turns, in the same processes, because
processors change their pace by a tenth within seconds. Two ranks compute, on a core each, in stages of 20 ms
forward and more. More ranks than that, and two again, sleep instead of computing. gloo, loopback, job.wrap().
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.ranks.processes import RankGroup

from benchmarks.results import Row, print_rows, write

SCRIPT = Path(__file__).parent / "train_pipeline.py"
GOAL = 0.85
SCHEDULES = {"GPipe": 1, "OneForwardOneBackward": 1, "Interleaved": 2, "ZeroBubble": 2}
"""And their stages per rank."""
COMPUTING_LAYERS = 12


@dataclass(frozen=True)
class Case:
    schedule: str
    ranks: int
    sleeps: bool

    @property
    def name(self) -> str:
        return f"pipelines.{self.schedule}.p{self.ranks}.{'sleeping' if self.sleeps else 'computing'}"

    @property
    def stages_per_rank(self) -> int:
        return SCHEDULES[self.schedule]

    @property
    def micro_batches(self) -> int:
        return 8 if self.ranks == 2 else 12

    @property
    def layers(self) -> int:
        return self.ranks * self.stages_per_rank if self.sleeps else COMPUTING_LAYERS

    @property
    def formula(self) -> float:
        """Part of a step in which a rank computes."""
        return self.micro_batches / (self.micro_batches + (self.ranks - 1) / self.stages_per_rank)

    @property
    def strategy(self) -> dict[str, Any]:
        settings = {"schedule": self.schedule, "micro_batches": self.micro_batches}
        return {"parallelism": {"pipeline": self.ranks}, "pipelining": settings}


CASES = [Case(schedule, 2, False) for schedule in SCHEDULES]
CASES += [Case(schedule, ranks, True) for ranks in (2, 3, 4) for schedule in SCHEDULES]


def efficiencies(work: Path, case: Case, steps: int) -> list[float]:
    """Of each step."""
    request = {
        "layers": case.layers, "sleeps": case.sleeps, "micro_batches": case.micro_batches,
        "strategy": case.strategy, "steps": steps,
    }  # fmt: skip
    with RankGroup(work / case.name, case.ranks) as group:
        ended = group.start(str(SCRIPT), json.dumps(request)).wait(seconds=300)
    if any(ended.codes):
        raise RuntimeError("\n".join(ended.output))
    found = ended.result
    return [own / seconds for own, seconds in zip(found["work"], found["seconds"], strict=True)]


def row(case: Case, found: list[float]) -> Row:
    shares = [each / case.formula for each in found]
    middle = statistics.median(shares)
    beside = f"formula {case.formula:.3f}, measured {statistics.median(found):.3f}"
    return Row(
        f"{case.name}.share", round(middle, 3), "x", len(shares), round(min(shares), 3), f">= {GOAL}",
        middle >= GOAL, beside,
    )  # fmt: skip


def main() -> int:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    work = Path(tempfile.mkdtemp(prefix="pipelines-"))
    samples: dict[str, list[float]] = {}
    table: list[Row] = []
    try:
        for case in CASES:
            found = efficiencies(work, case, steps)
            samples[case.name.removeprefix("pipelines.")] = found
            table.append(row(case, found))
            print(table[-1], flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    write("pipelines", table, samples, "part of a step in which a rank computes")
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main())
