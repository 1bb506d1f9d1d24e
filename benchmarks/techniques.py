"""All techniques train one model: how fast, over how many bytes, in how much memory, to which loss?

    python -m benchmarks.techniques [ROUNDS]        (2 by default; about ten minutes)

A GPT of 1.2 million parameters learns English text, 16 windows of 64 letters a step: the same batches, by 4
ranks on one machine, gloo over loopback. In each round every technique trains once, beside one process and
beside DistributedDataParallel written by hand; speeds are ratios to that within a round. Bytes are counted by
the kernel, in a network namespace of the benchmark's own, and compared with the technique's formula
(strategies/*.py). Memory is the highest that the kernel saw during a step, above what the process had before
it made the model. Parameter servers are ranks beyond the 4; bytes and memory are those of workers, with what
servers send to them. A new technique is a line of TECHNIQUES.

Limits: on loopback bytes cost little and 4 ranks share 2 cores, so speeds here say what a technique costs to
compute, not what it gains on a slow network. gloo has no reduce-scatter: it sends a whole all-reduce for one.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lab.ranks import netns, tiny
from lab.ranks.processes import RankGroup

from benchmarks.results import Row, Samples, print_rows, write
from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.strategy import Strategy

RANKS, SAMPLES, WARM, STEPS = 4, 16, 4, 16
SIZE = {"symbols": 128, "length": 64, "width": 128, "heads": 4, "blocks": 6}
PEER = "ddp_by_hand"
WITHIN = 0.05
"""How far payload on the wire may be from the formula."""

Figures = dict[str, Any]


@dataclass(frozen=True)
class Costs:
    """Terms of the formulas, in bytes per rank."""

    ranks: int
    model: int
    """All gradients, or all weights."""
    activations: int
    """Output of a layer, for all samples."""
    matrices: tuple[tuple[int, int], ...]
    """Shapes of the weights, as matrices; a vector is (length, 1)."""

    @property
    def gather(self) -> float:
        """Each rank's part of the model to all others."""
        return (self.ranks - 1) / self.ranks * self.model

    @property
    def all_reduce(self) -> float:
        return 2 * self.gather

    def power_sgd(self, rank: int) -> float:
        """All-reduce of two narrow matrices for each wide one, and of vectors as they are."""
        short = sum(rank * (n + m) if m > 1 else n for n, m in self.matrices)
        return 2 * (self.ranks - 1) / self.ranks * 4 * short

    def top_k(self, per_mille: int) -> float:
        """A place (8 bytes) and a value (4) for each value that is kept, to all others."""
        return (self.ranks - 1) * 12 * (self.model // 4) * per_mille / 1000

    def pipeline(self, stages: int) -> float:
        """Activations forward and backward over each border between stages."""
        return (stages - 1) * 2 * self.activations / self.ranks


@dataclass(frozen=True)
class Technique:
    name: str
    strategy: dict[str, Any] = field(default_factory=dict)
    sent: Callable[[Costs], float] | None = None
    """Formula of bytes per rank and step. None: there is no simple one."""
    ranks: int = RANKS
    by_hand: bool = False

    @property
    def servers(self) -> int:
        """Ranks beyond `ranks`."""
        return codec.from_plain(Strategy, self.strategy).servers


def ways(**parallelism: int) -> dict[str, Any]:
    return {"parallelism": parallelism}


def served(**fields: Any) -> dict[str, Any]:
    return {"sync": {"type": "ParameterServer", "parameter_server": fields}}


def pipelined(schedule: str, **more: Any) -> dict[str, Any]:
    return {"pipelining": {"schedule": schedule, **more}, **ways(pipeline=RANKS)}


def locally(**local: int) -> dict[str, Any]:
    return {"sync": {"type": "Local", "local": local}}


def compressed(kind: str, **settings: Any) -> dict[str, Any]:
    return {"gradient_compression": {"type": kind, **settings}}


def whole(costs: Costs) -> float:
    return costs.all_reduce


def both_ways(costs: Costs) -> float:
    """Of parameter servers: each worker sends its gradient and is sent the weights."""
    return 2 * costs.model


TECHNIQUES = (
    Technique("one_process", {}, lambda _: 0, ranks=1),
    Technique(PEER, {}, whole, by_hand=True),
    Technique("all_reduce", {}, whole),
    Technique("composable_replicate", {"sync": {"type": "Replicate"}}, whole),
    Technique("ring", {"sync": {"type": "Ring"}}, whole),
    Technique("zero1", {"sharding": "OptimizerState"}, lambda c: 3 * c.gather),
    Technique("zero2", {"sharding": "Gradients"}, lambda c: c.gather + c.all_reduce),
    Technique("zero3", {"sharding": "Parameters"}, lambda c: 2 * c.gather + c.all_reduce),
    Technique("hybrid_shard", ways(replicate=2, shard=2), lambda c: 2.5 * c.model),
    Technique("tensor", ways(tensor=RANKS)),
    Technique("tensor_loss", ways(tensor=RANKS) | {"tensor_parallel": {"loss": True}}),
    Technique(
        "tensor_sequence_loss", ways(tensor=RANKS) | {"tensor_parallel": {"loss": True, "sequence": True}}
    ),
    Technique("replicate_tensor", ways(replicate=2, tensor=2)),
    Technique("shard_tensor", ways(shard=2, tensor=2)),
    Technique("parameter_server", served(), both_ways),
    Technique("parameter_servers_2", served(servers=2), both_ways),
    Technique("asynchronous", served(mode="Asynchronous"), both_ways),
    Technique("bounded_staleness", served(mode="BoundedStaleness", staleness=2), both_ways),
    Technique("backup_worker", served(backup_workers=1)),
    Technique("layer_wise", pipelined("GPipe", micro_batches=1), lambda c: c.pipeline(RANKS)),
    Technique("gpipe", pipelined("GPipe"), lambda c: c.pipeline(RANKS)),
    Technique("one_forward_one_backward", pipelined("OneForwardOneBackward"), lambda c: c.pipeline(RANKS)),
    Technique("interleaved", pipelined("Interleaved"), lambda c: c.pipeline(2 * RANKS)),
    Technique("zero_bubble", pipelined("ZeroBubble"), lambda c: c.pipeline(2 * RANKS)),
    Technique("replicate_pipeline", ways(replicate=2, pipeline=2)),
    Technique("local_sgd", locally(every_steps=8), lambda c: c.all_reduce / 8),
    Technique(
        "hierarchical",
        locally(every_steps=4, groups_of=2, all_every_steps=16),
        lambda c: (3 * c.model + c.all_reduce) / 16,
    ),
    Technique(
        "diloco", locally(every_steps=8, outer_learning_rate_per_mille=700), lambda c: c.all_reduce / 8
    ),
    Technique("gradients_float16", compressed("Float16"), lambda c: c.all_reduce / 2),
    Technique("gradients_bfloat16", compressed("BFloat16"), lambda c: c.all_reduce / 2),
    Technique("power_sgd", compressed("PowerSGD", power_sgd={"rank": 8}), lambda c: c.power_sgd(8)),
    Technique("top_k", compressed("TopK", top_k={"keep_per_mille": 10}), lambda c: c.top_k(10)),
    Technique("bfloat16", {"precision": "BFloat16"}, whole),
    Technique("float16", {"precision": "Float16"}, whole),
    Technique("recompute_full", {"activation_checkpointing": "Full"}, whole),
    Technique("recompute_selective", {"activation_checkpointing": "Selective"}, whole),
    Technique("micro_batches", {"batch": {"micro_samples": 1}}, whole),
)


def train(folder: Path, technique: Technique, **more: Any) -> Figures:
    """Figures of the ranks (lab/ranks/scripts/measured.py, measured_served.py)."""
    folder.mkdir(parents=True)
    script = "measured_served.py" if technique.servers else "measured.py"
    request = {
        "strategy": technique.strategy, "by_hand": technique.by_hand, "size": SIZE, "batch": SAMPLES,
        "warm": WARM, "steps": STEPS,
    }  # fmt: skip
    (folder / "request").write_text(json.dumps(request | more))
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
        RankGroup(folder, technique.ranks + technique.servers) as group,
    ):
        group.environment[config.MEMORY] = memory
        ended = group.start(script, str(folder / "request")).wait(seconds=300)
    if any(ended.codes):
        raise RuntimeError(f"{technique.name}\n" + "\n".join(ended.output))
    return ended.result


def costs(ranks: int) -> Costs:
    shapes = [tuple(p.shape) for p in tiny.Tiny(tiny.Size(**SIZE)).parameters()]
    matrices = tuple((n, m[0] if m else 1) for n, *m in shapes)
    model = 4 * sum(n * m for n, m in matrices)
    return Costs(ranks, model, 4 * SAMPLES * SIZE["length"] * SIZE["width"], matrices)


FIGURES: dict[str, tuple[str, Callable[[list[float]], float], str]] = {
    "steps_per_second": ("1/s", min, ""),
    "speed": ("x", min, f"{PEER}, same round"),
    "loss": ("", max, f"after {WARM + STEPS} steps"),
    "peak_memory": ("MB", max, "per rank"),
    "held_memory": ("MB", max, "parameters, gradients, optimizer state; per rank"),
    "bytes_per_step": ("B", max, "sent by a rank, mean of all"),
    "bytes_as_computed": ("x", lambda ratios: max(ratios, key=lambda ratio: abs(ratio - 1)), ""),
}
"""Unit, which sample is the worst, and what it is compared with."""


def formula(technique: Technique) -> float:
    """Bytes per rank and step. 0: there is no simple one."""
    return technique.sent(costs(technique.ranks)) if technique.sent else 0


def series(technique: Technique, rounds: list[Figures], peer: list[Figures], memory: Figures) -> Samples:
    """Of each figure, a sample per round; of memory, one per rank."""
    found: Samples = {
        "steps_per_second": [STEPS / each["seconds"] for each in rounds],
        "speed": [other["seconds"] / each["seconds"] for each, other in zip(rounds, peer, strict=True)],
        "loss": [each["loss"] for each in rounds],
        "peak_memory": [each / 1e6 for each in memory["peak"]],
        "held_memory": [sum(each.values()) / 1e6 for each in memory["held"]],
    }
    sent = [each["sent"] for each in rounds]
    if None not in sent:
        found["bytes_per_step"] = sent
        if computed := formula(technique):
            found["bytes_as_computed"] = [each / computed for each in sent]
    return found


def rows(technique: Technique, found: Samples) -> list[Row]:
    table = []
    for what, values in found.items():
        unit, worst, beside = FIGURES[what]
        middle, end = (round(each, 4) for each in (statistics.median(values), worst(values)))
        name = f"techniques.{technique.name}.{what}"
        one = Row(name, middle, unit, len(values), end, "", None, beside)
        if what == "bytes_as_computed":
            holds = all(abs(each - 1) <= WITHIN for each in values)
            goal, beside = f"{1 - WITHIN}..{1 + WITHIN}", f"{formula(technique):.0f} B"
            one = replace(one, goal=goal, holds=holds, beside=beside)
        table.append(one)
    return table


def main() -> int:
    if not netns.is_alone():
        alone = netns.alone([sys.executable, "-m", "benchmarks.techniques", *sys.argv[1:]])
        if alone is not None:
            os.execvp(alone[0], alone)
        print("no bytes on the wire: a network namespace needs root, unshare and ip", flush=True)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    work = Path(tempfile.mkdtemp(prefix="techniques-"))
    rounds: dict[str, list[Figures]] = {each.name: [] for each in TECHNIQUES}
    memory: dict[str, Figures] = {}
    try:
        for each in TECHNIQUES:
            memory[each.name] = train(work / f"memory-{each.name}", each, memory=True, warm=2, steps=2)
            print(f"memory of {each.name}: {memory[each.name]['peak']}", flush=True)
        for number in range(count):
            for each in TECHNIQUES:
                found = train(work / f"{number}-{each.name}", each)
                rounds[each.name].append(found)
                rate = STEPS / found["seconds"]
                print(
                    f"{number + 1}/{count} {each.name:26} {rate:6.2f} steps/s {found['sent']} B", flush=True
                )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    found = {
        each.name: series(each, rounds[each.name], rounds[PEER], memory[each.name]) for each in TECHNIQUES
    }
    table = [row for each in TECHNIQUES for row in rows(each, found[each.name])]
    samples = {
        f"{each.name}.{what}": found[each.name][what] for each in TECHNIQUES for what in found[each.name]
    }
    write("techniques", table, samples, "as of their rows")
    return print_rows(table)


if __name__ == "__main__":
    sys.exit(main())
