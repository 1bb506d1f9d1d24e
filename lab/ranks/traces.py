"""Read what ranks wrote with ROPETEAM_TRACE."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ropeteam_trainer.contract.world import WorldId


@dataclass(frozen=True)
class Record:
    world: WorldId
    step: int
    epoch: int
    samples: tuple[int, ...]
    loss: str


def lines(trace: Path, rank: int) -> list[Record]:
    path = trace.with_name(f"{trace.name}.{rank}")
    read = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    return [
        Record(WorldId.parse(r["world"]), r["step"], r["epoch"], tuple(r["samples"]), r["loss"]) for r in read
    ]


def surviving(trace: Path, ranks: int) -> dict[int, list[Record]]:
    """For each step, the lines of its last world, in rank order."""
    steps: dict[int, list[Record]] = {}
    for line in (line for rank in range(ranks) for line in lines(trace, rank)):
        known = steps.setdefault(line.step, [])
        if known and known[0].world < line.world:
            known.clear()
        if not known or known[0].world == line.world:
            known.append(line)
    return steps


def losses(trace: Path, ranks: int) -> dict[int, list[str]]:
    return {step: [line.loss for line in found] for step, found in sorted(surviving(trace, ranks).items())}


def samples(trace: Path, ranks: int) -> list[int]:
    """All sample ids in the order of their use."""
    return [i for _, found in sorted(surviving(trace, ranks).items()) for line in found for i in line.samples]


def mean_losses(trace: Path, ranks: int) -> dict[int, float]:
    """Of each step, over all samples; ranks that split one model report the same samples and loss."""
    means = {}
    for step, found in surviving(trace, ranks).items():
        parts = {line.samples: float.fromhex(line.loss) for line in found}
        means[step] = sum(len(ids) * loss for ids, loss in parts.items()) / sum(map(len, parts))
    return means
