"""Train under each strategy of a file, in one world, and count what each rank holds and sends.

    costs.py REQUESTS

REQUESTS: JSON, a list of {name, model, batch, steps, counted, strategy}; rank 0 prints RESULT {name:
[figures of each rank]}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lab.ranks import tiny
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.data.decisions.plan import DataPlan, Leaf, Position
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.strategies.exact.links import Header, Links
from ropeteam_trainer.strategies.wrap import LoopValues, wrap

torch.set_num_threads(1)


def main() -> None:
    world = World.join("cpu", 60)
    results = {}
    for request in json.loads(Path(sys.argv[1]).read_text()):
        results[request["name"]] = world.gather(figures(request, world))
    if world.rank == 0:
        print(f"RESULT {json.dumps(results)}")
    world.leave(30)


class Calls(TorchDispatchMode):
    """Collectives of torch.distributed: bytes of their larger side, and how many ranks take part."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[tuple[int, int]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            scripted = [each for each in args if isinstance(each, torch.ScriptObject)]
            (group,) = (each for each in scripted if "ProcessGroup" in str(each._type()))
            self.note(func._opname.strip("_"), largest(args), dist.ProcessGroup.unbox(group).size())
        return func(*args, **(kwargs or {}))

    def note(self, name: str, size: int, ranks: int) -> None:
        self.seen.setdefault(name, []).append((size, ranks))

    def by_hand(self, tensor: torch.Tensor, *more: Any, **named: Any) -> Any:
        """dist.all_reduce: hooks call it in threads, which a mode does not see."""
        self.note("by hand", tensor.nbytes, dist.get_world_size())
        return _all_reduce(tensor, *more, **named)

    def counted_send(self) -> Callable[..., None]:
        """Links.send(), by bucket. The last one has no gradients."""

        def send(links: Links, to: int, header: Header, payload: memoryview, *more: Any) -> None:
            self.note(f"bucket {header.bucket}", len(payload), 2)
            _send(links, to, header, payload, *more)

        return send

    def without_last_bucket(self) -> dict[str, list[tuple[int, int]]]:
        buckets = [name for name in self.seen if name.startswith("bucket")]
        last = max(buckets, key=lambda name: int(name.split()[1]), default="")
        return {name: calls for name, calls in self.seen.items() if name != last}


_all_reduce = dist.all_reduce
_send = Links.send


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
    """Bytes held after the last step; calls of the last `counted` steps."""
    model, optimizer = tiny.made("AdamW", request["model"])
    strategy = codec.from_plain(Strategy, request["strategy"])
    done = 0
    leaves: tuple[Leaf, ...] = ()
    progress = LoopValues(lambda: 1.0, lambda: done, lambda: leaves)
    wrapped = wrap(model, optimizer, strategy, world, progress, loss=tiny.LOSSES[request["model"]])
    ways, mine = wrapped.layout.dp_size, wrapped.layout.dp_rank(world.rank)
    calls = Calls()
    for done in range(request["steps"]):
        counted = done >= request["steps"] - request["counted"]
        if counted:
            dist.all_reduce = calls.by_hand
            Links.send = calls.counted_send()  # type: ignore[method-assign]
        inputs, target = tiny.batch_for(request["model"], done, request["batch"])
        begin, end = len(inputs) * mine // ways, len(inputs) * (mine + 1) // ways
        indices = [*range(begin, end)]
        if wrapped.deal is not None:
            share = DataPlan(len(inputs), len(inputs)).dealt_share(Position(), wrapped.deal)
            indices, leaves = [*share.loaded], share.leaves
        with calls if counted else nullcontext():
            wrapped.optimizer.zero_grad()
            wrapped.model(inputs[indices], target[indices]).backward()
            wrapped.optimizer.step()
    dist.all_reduce, Links.send = _all_reduce, _send  # type: ignore[method-assign]
    parameters = [p for part in wrapped.parts for p in part.parameters()]
    outer = [wrapped.local.state_dict()] if wrapped.local else []
    return {
        "parameters": held(parameters),
        "gradients": held([p.grad for p in parameters]),
        "optimizer": held([*wrapped.optimizer.state.values(), *outer]),
        "calls": calls.without_last_bucket(),
    }


def held(values: Any) -> int:
    """Bytes on this rank of all tensors in there."""
    local = (v.to_local() if isinstance(v, DTensor) else v for v in tensors(values))
    return sum(v.nbytes for v in local)


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict | list | tuple):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors(value)


main()
