"""Train the tiny GPT under each strategy of a file, in one world, and compare with one process.

    techniques.py REQUESTS [DEVICE]

REQUESTS: JSON, a list of {name, optimizer, steps, batch, last, alone, strategy}; each third batch is one of
`last` samples, as at the end of a data epoch; `alone` is the strategy of the one process; rank 0 prints
RESULT {name: figures}.
DEVICE: cpu, or cuda:0 for all ranks, which then exchange by gloo if they are several (NCCL wants a GPU each).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lab.ranks import tiny
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.data.decisions.plan import DataPlan, Leaf, Position
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.strategies.model.naming import named_parameters
from ropeteam_trainer.strategies.wrap import LoopValues, wrap

torch.set_num_threads(1)
DEVICE = torch.device(sys.argv[2] if len(sys.argv) > 2 else "cpu")
Tensors = dict[str, torch.Tensor]


def main() -> None:
    if DEVICE.type == "cuda":
        dist.init_process_group("gloo" if int(os.environ["WORLD_SIZE"]) > 1 else "cpu:gloo,cuda:nccl")
    world = World.join(DEVICE, 60)
    requests = json.loads(Path(sys.argv[1]).read_text())
    settings = {key: requests[0][key] for key in ("optimizer", "steps", "batch", "last", "alone")}
    assert all(settings.items() <= request.items() for request in requests), "one process stands for all"
    alone = train(settings, World(0, 1, world.device), codec.from_plain(Strategy, settings["alone"]))
    results = {}
    for request in requests:
        split = train(request, world, codec.from_plain(Strategy, request["strategy"]))
        results[request["name"]] = compared(alone, split)
    if world.rank == 0:
        print(f"RESULT {json.dumps(results)}")
    world.leave(30)


def train(request: dict[str, Any], world: World, strategy: Strategy) -> tuple[list[float], Tensors, Tensors]:
    """Losses, first gradients, last weights: all whole, on every rank."""
    model, optimizer = tiny.made(request["optimizer"])
    model.to(DEVICE)
    done = 0
    weight = 1.0
    leaves: tuple[Leaf, ...] = ()
    progress = LoopValues(lambda: weight, lambda: done, lambda: leaves)
    wrapped = wrap(model, optimizer, strategy, world, progress, loss=tiny.loss_of)
    ways, mine = wrapped.layout.dp_size, wrapped.layout.dp_rank(world.rank)
    losses: list[float] = []
    first: Tensors = {}
    for done in range(request["steps"]):
        size = request["last" if done % 3 == 2 else "batch"]
        inputs, target = (each.to(DEVICE) for each in tiny.batch(done, size))
        begin, end = len(inputs) * mine // ways, len(inputs) * (mine + 1) // ways
        weight = (end - begin) * ways / len(inputs)
        indices = [*range(begin, end)]
        if wrapped.deal is not None:
            share = DataPlan(len(inputs), len(inputs)).dealt_share(Position(), wrapped.deal)
            indices, weight, leaves = [*share.loaded], share.weight, share.leaves
        wrapped.optimizer.zero_grad()
        if strategy.tensor_parallel.loss:
            with loss_parallel():
                loss = wrapped.model(inputs[indices], target[indices])
                (loss * weight).backward()
        else:
            loss = wrapped.model(inputs[indices], target[indices])
            (loss * weight).backward()
        if done == 0:
            first = whole(
                world, {n: p.grad for n, p in named_parameters(wrapped.parts).items() if p.grad is not None}
            )
        wrapped.optimizer.step()
        losses.append(mean(world, float(full(loss.detach())) * weight))
    return losses, first, whole(world, dict(named_parameters(wrapped.parts)))


def mean(world: World, value: float) -> float:
    total = torch.tensor(value, dtype=torch.float64)
    if world.size > 1:
        dist.all_reduce(total)
    return float(total) / world.size


def full(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def whole(world: World, values: dict[str, Any]) -> Tensors:
    """All values, also those of other pipeline stages."""
    mine = {name: full(value.detach()).to("cpu", copy=True) for name, value in values.items()}
    theirs: list[Any] = [mine] * world.size
    if world.size > 1:
        dist.all_gather_object(theirs, mine)  # World.gather() is for plain values
    merged: Tensors = {}
    for each in theirs:
        merged |= each
    return merged


def compared(alone: Any, split: Any) -> dict[str, Any]:
    """The largest differences: of losses, gradients (relative to the parameter's largest), weights."""
    assert alone[1].keys() == split[1].keys(), alone[1].keys() ^ split[1].keys()
    return {
        "loss": max(abs(a - b) for a, b in zip(alone[0], split[0], strict=True)),
        "gradient": max(
            float((g - split[1][name]).abs().max() / (g.abs().max() + 1e-12)) for name, g in alone[1].items()
        ),
        "weight": max(float((w - split[2][name]).abs().max()) for name, w in alone[2].items()),
        "losses": split[0],
        "alone": alone[0],
    }


main()
