"""Train a GPT on English text under one strategy, and measure what that costs each rank.

    measured.py REQUEST

REQUEST: a file with JSON, see Request. Rank 0 prints RESULT, see measure(). Two things are measured apart,
because the one spoils the other: `memory` gives large tensors pages of their own, so that the kernel's count
of this process follows them, and that takes time.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lab.ranks import netns, tiny
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.parallel import DistributedDataParallel

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.partition.layout import Layout
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.recipes import char_gpt
from ropeteam_trainer.strategies.wrap import LoopValues, wrap

torch.set_num_threads(1)
Step = Callable[[int], torch.Tensor]
"""Number of the step -> this rank's share of the mean loss."""


@dataclass(frozen=True)
class Request:
    strategy: dict[str, Any]
    size: dict[str, int]
    batch: int
    """Samples of all ranks together; a multiple of the ways that they are split."""
    warm: int
    """Steps before the measurement."""
    steps: int
    """Steps measured."""
    memory: bool = False
    by_hand: bool = False
    """Without the library: DistributedDataParallel as torch's documentation shows it."""
    learning_rate: float = 3e-3


@dataclass
class Training:
    step: Step
    parts: Iterable[torch.nn.Module]
    optimizer: torch.optim.Optimizer

    def held(self) -> dict[str, int]:
        """Bytes of this rank's parameters, gradients and optimizer state between two steps."""
        parameters = [p for part in self.parts for p in part.parameters()]
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        return {
            "parameters": stored(parameters),
            "gradients": stored(p.grad for p in parameters),
            "optimizer": stored(states),
        }


def stored(values: Iterable[Any]) -> int:
    """Bytes of memory behind tensors; what several of them share counts once."""
    local = [v.to_local() if isinstance(v, DTensor) else v for v in values if isinstance(v, torch.Tensor)]
    return sum({s.data_ptr(): s.nbytes() for s in (tensor.untyped_storage() for tensor in local)}.values())


def main() -> None:
    request = Request(**json.loads(Path(sys.argv[1]).read_text()))
    world = World.join("cpu", 60)
    text = english(request)
    if request.memory:
        rehearse(request, world, text)
    results = world.gather(measure(request, world, text))
    if world.rank == 0:
        print(f"RESULT {json.dumps(results[0] | {name: [r[name] for r in results] for name in PER_RANK})}")
    world.leave(30)


PER_RANK = ("held", "peak")


def english(request: Request) -> torch.Tensor:
    """Windows of text, a letter longer than what the model reads."""
    text = char_gpt.windows_of(char_gpt.read_text(None))[0]
    text = text[:, : request.size["length"] + 1]
    return text[torch.randperm(len(text), generator=torch.Generator().manual_seed(0))]


def measure(request: Request, world: World, text: torch.Tensor) -> dict[str, Any]:
    """loss: mean of the last step. seconds: of all steps. sent: bytes per rank and step, None without a
    namespace. held: see Training, per rank. peak: bytes above what the process had before, per rank.
    """
    before = resident("VmRSS")
    training = prepared(request, world, text)
    for number in range(request.warm):
        training.step(number)
    reset_peak()
    synchronize(world)
    sent = netns.sent()
    synchronize(world)
    began = time.perf_counter()
    loss = torch.zeros(())
    for number in range(request.warm, request.warm + request.steps):
        loss = training.step(number)
    synchronize(world)
    seconds = time.perf_counter() - began
    sent = netns.sent() - sent
    synchronize(world)
    total = loss.double()
    if world.size > 1:
        dist.all_reduce(total)
    return {
        "loss": float(total) / world.size,
        "seconds": seconds,
        "sent": sent / world.size / request.steps if netns.is_alone() else None,
        "held": training.held(),
        "peak": resident("VmHWM") - before,
    }


def prepared(request: Request, world: World, text: torch.Tensor) -> Training:
    torch.manual_seed(0)
    model = tiny.Tiny(tiny.Size(**request.size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=request.learning_rate)
    if request.by_hand:
        return by_hand(request, world, text, model, optimizer)
    strategy = codec.from_plain(Strategy, request.strategy)
    wrapped = wrap(model, optimizer, strategy, world, LoopValues(lambda: 1.0, lambda: 0), loss=tiny.loss_of)
    grid = wrapped.layout

    def step(number: int) -> torch.Tensor:
        inputs, target = share(request, text, number, grid, world.rank)
        wrapped.optimizer.zero_grad()
        with loss_parallel() if strategy.tensor_parallel.loss else nullcontext():
            loss = wrapped.model(inputs, target)
            loss.backward()
        wrapped.optimizer.step()
        whole = loss.detach()
        return whole.full_tensor() if isinstance(whole, DTensor) else whole

    return Training(step, wrapped.parts, wrapped.optimizer)


def by_hand(
    request: Request,
    world: World,
    text: torch.Tensor,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
) -> Training:
    copies = DistributedDataParallel(model)
    grid = Layout(1, world.size, 1, 1)

    def step(number: int) -> torch.Tensor:
        inputs, target = share(request, text, number, grid, world.rank)
        optimizer.zero_grad()
        loss = tiny.loss_of(copies(inputs), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(step, [model], optimizer)


def share(
    request: Request, text: torch.Tensor, number: int, grid: Layout, rank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's letters of a step, and the letters that follow them."""
    each = request.batch // grid.dp_size
    begin = number * request.batch + grid.dp_rank(rank) * each
    letters = text[[place % len(text) for place in range(begin, begin + each)]]
    return letters[:, :-1].contiguous(), letters[:, 1:].contiguous()


def rehearse(request: Request, world: World, text: torch.Tensor) -> None:
    """Import and remember what a first step imports and remembers, so that it does not count as memory of
    the training; then let memory follow tensors.
    """
    small = Request(request.strategy, request.size | {"width": 32}, request.batch, 0, 0)
    training = prepared(small, world, text)
    for number in range(4):
        training.step(number)
    del training
    gc.collect()
    libc = ctypes.CDLL(None)
    m_mmap_threshold, m_trim_threshold = -3, -1
    libc.mallopt(m_mmap_threshold, 1 << 15)
    libc.mallopt(m_trim_threshold, 1 << 15)
    libc.malloc_trim(0)


def resident(name: str) -> int:
    """Bytes of physical memory of this process: VmRSS now, VmHWM the most since the last reset_peak()."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def synchronize(world: World) -> None:
    if world.size > 1:
        dist.barrier()


if __name__ == "__main__":
    main()
