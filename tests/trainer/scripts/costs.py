"""Train the tiny GPT under each strategy of a file, in one world, and count what it holds and sends.

    costs.py REQUESTS

REQUESTS: JSON, a list of {name, optimizer, batch, strategy}; rank 0 prints RESULT {name: [figures of each
rank]}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tests.trainer import tiny
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.strategies.wrap import Progress, wrap
from ropeteam_trainer.world import World

torch.set_num_threads(1)


def main() -> None:
    world = World.join("cpu", 60)
    results = {}
    for request in json.loads(Path(sys.argv[1]).read_text()):
        results[request["name"]] = world.gather(figures(request, world))
    if world.rank == 0:
        print(f"RESULT {json.dumps(results)}")
    world.leave(30)


class Counting(TorchDispatchMode):
    """Collectives of torch.distributed, and the bytes of their larger side."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            self.calls.setdefault(func._opname.strip("_"), []).append(largest(args))
        return func(*args, **(kwargs or {}))


def largest(arguments: Any) -> int:
    """Bytes of the argument with most of them; a list of tensors counts as one."""
    sizes = [0]
    for each in arguments:
        if isinstance(each, torch.Tensor):
            sizes.append(each.nbytes)
        elif isinstance(each, list | tuple):
            sizes.append(sum(largest([inner]) for inner in each))
    return max(sizes)


def figures(request: dict[str, Any], world: World) -> dict[str, Any]:
    model, optimizer = tiny.made(request["optimizer"])
    done = 0
    wrapped = wrap(
        model,
        optimizer,
        codec.from_plain(Strategy, request["strategy"]),
        world,
        Progress(lambda: 1.0, lambda: done),
        loss=tiny.loss_of,
    )
    ways, mine = wrapped.layout.data_ways, wrapped.layout.data_rank(world.rank)
    totals: dict[str, list[float]] = {}
    for done in range(request.get("steps", 3)):
        inputs, target = tiny.batch(done, request["batch"])
        begin, end = len(inputs) * mine // ways, len(inputs) * (mine + 1) // ways
        with Counting() as counting:
            wrapped.optimizer.zero_grad()
            wrapped.model(inputs[begin:end], target[begin:end]).backward()
            wrapped.optimizer.step()
    parameters = [p for part in wrapped.parts for p in part.parameters()]
    return {
        "parameters": held(parameters),
        "gradients": held(p.grad for p in parameters if p.grad is not None),
        "optimizer": held(v for s in wrapped.optimizer.state.values() for v in s.values()),
        "calls": counting.calls,
    }


def held(values: Any) -> int:
    """Bytes on this rank."""
    local = [v.to_local() if isinstance(v, DTensor) else v for v in values]
    return sum(v.nbytes for v in local if isinstance(v, torch.Tensor))


main()
