"""Copies of a model in one process, each trained by another loop over the same micro-batches, in turns.

    train_turns.py REQUEST

REQUEST: JSON, see Request. The loops: `exact` (sync Exact, a lost rank ends the world), `recovering` (as in a
job with checkpoints: members, copies of the sums, heartbeats while it waits), `ddp` (DistributedDataParallel
by hand, gradients accumulated under no_sync()), `ddp alone` (the same without any exchange), `all_reduce`
(wrap() and AllReduce, with micro-batches). Rank 0 prints RESULT {seconds, sent, gradients, ranks}: of each
turn; bytes per step of all ranks, None without a network namespace; bytes of all gradients; of each rank
Buffers, and digests of the weights of each Exact loop.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from lab.ranks import netns
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import RankPlan
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.data.decisions.plan import Leaf
from ropeteam_trainer.partition.reductiontree import equal_parts
from ropeteam_trainer.rank import agentlink
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.recipes import char_gpt
from ropeteam_trainer.strategies.exact.gradients import Bucket
from ropeteam_trainer.strategies.exact.members import WorldsOfJob, world_of
from ropeteam_trainer.strategies.wrap import LoopValues, Wrapped, wrap

torch.set_num_threads(1)
WARM = 2
"""Turns that are not measured."""
Batch = tuple[torch.Tensor, torch.Tensor]
Loss = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Request:
    model: str
    leaves: int
    """Micro-batches of a step."""
    rounds: int
    steps: int
    """Of a turn."""


@dataclass
class Loop:
    """`step(number)` trains on this rank's micro-batches of that step."""

    step: Callable[[int], None]
    model: nn.Module
    wrapped: Wrapped | None = None
    done: int = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step(self.done)
            self.done += 1


# ---- models


class Models:
    """A model with its loss, and the samples of a micro-batch."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.samples = {"mlp": 128, "char-GPT": 6}[name]
        self.loss: Loss = functional.cross_entropy if name == "mlp" else char_gpt.loss_of
        if name == "char-GPT":
            self._windows, _, self._symbols = char_gpt.windows_of(char_gpt.read_text(None))

    def new(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model: nn.Module
        if self._name == "mlp":
            wide = [layer for _ in range(3) for layer in (nn.Linear(256, 256), nn.ReLU())]
            model = nn.Sequential(*wide, nn.Linear(256, 10))
        else:
            model = char_gpt.CharGPT(self._symbols)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def batch(self, step: int, leaves: range, all_leaves: int) -> Batch:
        """Samples of these micro-batches, the same whichever rank has them."""
        if self._name == "mlp":
            chance = torch.Generator().manual_seed(step)
            count = self.samples * all_leaves
            inputs = torch.randn(count, 256, generator=chance)
            target = torch.randint(10, (count,), generator=chance)
            mine = slice(leaves.start * self.samples, leaves.stop * self.samples)
            return inputs[mine], target[mine]
        first = step * self.samples * all_leaves
        places = range(first + leaves.start * self.samples, first + leaves.stop * self.samples)
        letters = self._windows[[place % len(self._windows) for place in places]]
        return letters[:, :-1].contiguous(), letters[:, 1:].contiguous()


# ---- loops


class Loops:
    def __init__(self, request: Request, world: World) -> None:
        self._request, self._world, self.models = request, world, Models(request.model)
        self.mine = equal_parts(request.leaves, world.size)[world.rank]
        self._newest: tuple[int, Batch] | None = None

    def batch(self, number: int) -> Batch:
        """Samples of this rank in a step. The newest one stays in memory, so that it is no memory of a step
        whose batch was called before."""
        if self._newest is None or self._newest[0] != number:
            self._newest = number, self.models.batch(number, self.mine, self._request.leaves)
        return self._newest[1]

    def exact(self, worlds: WorldsOfJob | None = None) -> Loop:
        strategy = {"sync": {"type": "Exact"}, "batch": {"micro_batches": self._request.leaves}}
        size, leaves = self.models.samples, self._request.leaves
        dealt = tuple(Leaf(n, tuple(range(n * size, (n + 1) * size)), 1 / leaves) for n in self.mine)
        return self._of_library(strategy, 1.0, dealt, worlds)

    def recovering(self) -> Loop:
        """As roles/collective.py sets it up."""
        heart = agentlink.HeartbeatWriter(os.environ[config.RANK_PAGE])
        link = agentlink.connect(os.environ, self._world.rank, heart)
        assert isinstance(link, agentlink.AgentLink)
        plan = codec.decode(RankPlan, os.environ[config.RANK_PLAN].encode())
        loop = self.exact(WorldsOfJob(link, world_of(plan)))
        assert loop.wrapped is not None
        assert loop.wrapped.exact is not None
        loop.wrapped.exact.callbacks.waiting = heart.waiting
        return loop

    def all_reduce(self) -> Loop:
        weight = len(self.mine) * self._world.size / self._request.leaves
        return self._of_library({"batch": {"micro_samples": self.models.samples}}, weight)

    def _of_library(
        self,
        strategy: dict[str, Any],
        weight: float,
        dealt: tuple[Leaf, ...] = (),
        worlds: WorldsOfJob | None = None,
    ) -> Loop:
        model, optimizer = self.models.new()
        values = LoopValues(lambda: weight, lambda: loop.done, lambda: dealt, None, worlds)
        made = codec.from_plain(Strategy, strategy)
        wrapped = wrap(model, optimizer, made, self._world, values, loss=self.models.loss)

        def step(number: int) -> None:
            inputs, target = self.batch(number)
            wrapped.optimizer.zero_grad()
            loss = wrapped.model(inputs, target)
            (loss * weight).backward()
            wrapped.optimizer.step()

        loop = Loop(step, model, wrapped)
        return loop

    def ddp(self, *, alone: bool = False) -> Loop:
        model, optimizer = self.models.new()
        copies, size = DistributedDataParallel(model), self.models.samples

        def step(number: int) -> None:
            inputs, target = self.batch(number)
            optimizer.zero_grad()
            for place in range(len(self.mine)):
                is_last = place == len(self.mine) - 1
                part = slice(place * size, (place + 1) * size)
                with nullcontext() if is_last and not alone else copies.no_sync():
                    loss = self.models.loss(copies(inputs[part]), target[part])
                    (loss * self._world.size / self._request.leaves).backward()
            optimizer.step()

        return Loop(step, model)

    def all(self) -> dict[str, Loop]:
        return {
            "exact": self.exact(),
            "ddp": self.ddp(),
            "recovering": self.recovering(),
            "all_reduce": self.all_reduce(),
            "ddp alone": self.ddp(alone=True),
        }


# ---- what is measured


def timed(loop: Loop, steps: int) -> float:
    """Seconds until all ranks have made so many steps."""
    dist.barrier()
    began = time.perf_counter()
    loop.run(steps)
    dist.barrier()
    return time.perf_counter() - began


def sent_by(loop: Loop, steps: int) -> float | None:
    """Bytes of payload per step that all ranks have sent. None: others would be counted, too."""
    dist.barrier()
    before = netns.sent() if netns.is_alone() else 0
    dist.barrier()
    loop.run(steps)
    dist.barrier()
    after = netns.sent() if netns.is_alone() else 0
    dist.barrier()
    return (after - before) / steps if netns.is_alone() else None


@dataclass
class Buffers:
    """Memory of gradients in one step of Exact, in multiples of all gradients."""

    sums: int = 0
    """Buffers of a bucket for sums of micro-batches, of which as many are kept as were ever used at once."""
    held: float = 0.0
    """All memory: sums, gradients of the present micro-batch, the result, slices that others send. The most
    when a bucket has gradients of a micro-batch, before and after it takes them."""


def buffers_of(loop: Loop, batch: Callable[[int], Batch]) -> Buffers:
    """Of the loop's next step."""
    batch(loop.done)
    assert loop.wrapped is not None
    assert loop.wrapped.exact is not None
    buckets, exchange = loop.wrapped.exact._tree.buckets, loop.wrapped.exact._exchange
    parameters = [*loop.model.parameters()]
    for parameter in parameters:
        parameter.grad = None

    def all_bytes() -> int:
        seen = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
        return stored([*seen, *(p.grad for p in parameters if p.grad is not None)])

    def retained_bytes() -> int:
        """Memory that stays from step to step."""
        flats = [flat.values for bucket in buckets for flat in (*bucket._free, *bucket.sums.values())]
        assert exchange._sums is not None
        slices = [each for some in exchange._sums._spare.values() for each in some]
        return stored([*flats, *slices])

    take, before, retained, most = Bucket.take, all_bytes(), retained_bytes(), 0

    def counted_take(bucket: Bucket, number: int) -> None:
        nonlocal most
        most = max(most, all_bytes())
        take(bucket, number)
        most = max(most, all_bytes())

    Bucket.take = counted_take  # type: ignore[method-assign, assignment]
    try:
        loop.run(1)
    finally:
        Bucket.take = take  # type: ignore[method-assign]
    sums = max(len(bucket.sums) + len(bucket._free) for bucket in buckets)
    return Buffers(sums, (most - before + retained) / stored(parameters))


def stored(values: Iterable[torch.Tensor]) -> int:
    """Bytes of memory behind tensors; what several of them share counts once."""
    return sum({s.data_ptr(): s.nbytes() for s in (each.untyped_storage() for each in values)}.values())


def digest(model: nn.Module) -> str:
    whole = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(whole).hexdigest()


def main() -> None:
    request = Request(**json.loads(sys.argv[1]))
    world = World.join("cpu", 60)
    made = Loops(request, world)
    loops = made.all()
    for loop in loops.values():
        loop.run(WARM * request.steps)
    sent = {name: sent_by(loop, request.steps) for name, loop in loops.items()}
    buffers = {name: asdict(buffers_of(loops[name], made.batch)) for name in ("exact", "recovering")}
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    order = [*loops]
    for number in range(request.rounds):
        for place in range(len(order)):
            name = order[(place + number) % len(order)]
            seconds[name].append(timed(loops[name], request.steps))
    digests = {name: digest(loops[name].model) for name in ("exact", "recovering")}
    of_all = world.gather({"buffers": buffers, "digests": digests})
    if world.rank == 0:
        gradients = stored(loops["exact"].model.parameters())
        found = {"seconds": seconds, "sent": sent, "gradients": gradients, "ranks": of_all}
        print(f"RESULT {json.dumps(found)}", flush=True)
    world.leave(30)


if __name__ == "__main__":
    main()
