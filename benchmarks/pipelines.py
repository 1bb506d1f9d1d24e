"""How much of the time do the ranks of a pipeline compute, and is it what the formula says?

    python -m benchmarks.pipelines [STEPS]        (8 by default; about four minutes)

m micro-batches through p ranks keep each of them busy for m/(m+p-1) of a step, and for m/(m+(p-1)/v) with v
stages per rank (strategies/pipeline.py). Measured: what one process needs for the same micro-batches, in the
same run, over p times what the pipeline needs. Two ranks compute, on a core each; more ranks than that, and
two again, sleep instead of computing. gloo, loopback, job.wrap().
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.trainer.ranks import Crew

from benchmarks.report import Row, tell, write
from benchmarks.train_pipeline import ROWS

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


class Bench:
    def __init__(self, work: Path, steps: int) -> None:
        self._work, self._steps = work, steps

    def pipeline(self, case: Case) -> list[float]:
        """Seconds of each step."""
        return self._train(case.ranks, case.layers, case.sleeps, case.micro_batches, case.strategy)

    @cache  # noqa: B019  # one Bench per run
    def alone(self, layers: int, sleeps: bool, micro_batches: int) -> float:
        """Seconds of one process for the same."""
        pieces = {"batch": {"micro_samples": 1 if sleeps else ROWS}}
        return statistics.median(self._train(1, layers, sleeps, micro_batches, pieces))

    def _train(
        self, ranks: int, layers: int, sleeps: bool, micro_batches: int, strategy: dict[str, Any]
    ) -> list[float]:
        request = {
            "layers": layers, "sleeps": sleeps, "micro_batches": micro_batches, "strategy": strategy,
            "steps": self._steps if ranks > 1 else max(2, self._steps // 3),
        }  # fmt: skip
        folder = Path(tempfile.mkdtemp(dir=self._work))
        ended = Crew(folder, ranks).run(str(SCRIPT), json.dumps(request))
        if any(ended.codes):
            raise RuntimeError("\n".join(ended.output))
        seconds: list[float] = ended.result["seconds"]
        return seconds


def row(case: Case, efficiencies: list[float]) -> Row:
    shares = [each / case.formula for each in efficiencies]
    middle = statistics.median(shares)
    beside = f"formula {case.formula:.3f}, measured {statistics.median(efficiencies):.3f}"
    return Row(
        f"{case.name}.share", round(middle, 3), "x", len(shares), round(min(shares), 3), f">= {GOAL}",
        middle >= GOAL, beside,
    )  # fmt: skip


def main() -> int:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    work = Path(tempfile.mkdtemp(prefix="pipelines-"))
    bench = Bench(work, steps)
    samples: dict[str, list[float]] = {}
    table: list[Row] = []
    try:
        for case in CASES:
            alone = bench.alone(case.layers, case.sleeps, case.micro_batches)
            found = [alone / (case.ranks * seconds) for seconds in bench.pipeline(case)]
            samples[case.name.removeprefix("pipelines.")] = found
            table.append(row(case, found))
            print(table[-1], flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    write("pipelines", table, samples, "part of a step in which a rank computes")
    return tell(table)


if __name__ == "__main__":
    sys.exit(main())
