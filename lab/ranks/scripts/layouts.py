"""Train one small model in every layout that the world's size allows.

layouts.py FOLDER     each layout trains five steps, and saves after the third; when worlds of the other
                      sizes have done so too, each resumes from each checkpoint. The result: all losses

The model has what makes layouts differ: sizes that do not divide, a buffer, a parameter that nobody trains,
and groups of parameters in another order than the model's.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST
from ropeteam_trainer.contract.config import CheckpointConfig, RankPlan, Resume
from ropeteam_trainer.job import Job
from ropeteam_trainer.joining import create_job
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.recipes.common import print_result

SAVED_AT, STEPS, SAMPLES = 3, 5, 12
warnings.filterwarnings("ignore", category=FutureWarning)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class First(nn.Module):
    """The lower half: what a first pipeline stage holds."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(11, 6)
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.letters(x)
        return x + self.down(F.gelu(self.up(x)))


class Second(nn.Module):
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.ones(6) * 1.1, requires_grad=False)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.head(self.norm(x) * self.scale) * (1 + 0.01 * self.seen)


class FullModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = First(), Second()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self.first(x))
        return out


class Stage(nn.Module):
    """One half, under the names that it has in the whole."""

    def __init__(self, name: str, half: nn.Module) -> None:
        super().__init__()
        self.add_module(name, half)


def whole(seed: int) -> FullModel:
    torch.manual_seed(seed)
    return FullModel()


def groups(model: nn.Module) -> list[dict[str, object]]:
    trained = [p for p in model.parameters() if p.requires_grad]
    thin = [p for p in reversed(trained) if p.ndim == 1]
    return [{"params": thin, "weight_decay": 0.0}, {"params": [p for p in trained if p.ndim > 1]}]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups(model), lr=1e-2)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randint(0, 11, (SAMPLES,), generator=generator)
    return x, x % 3


@dataclass
class Training:
    model: object
    optimizer: torch.optim.Optimizer
    forward_backward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

    def steps(self, first: int, last: int) -> Iterator[float]:
        for step in range(first, last):
            self.optimizer.zero_grad()
            loss = self.forward_backward(*batch(step))
            self.optimizer.step()
            yield float(loss)


@cache
def mesh(*shape: int) -> DeviceMesh:
    """All ranks, in a line or a rectangle."""
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])


def data_parallel(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Training:
    """Each rank has its share of the batch; the loss is the mean over all."""

    def forward_backward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        mine = [part.tensor_split(size)[rank] for part in (x, y)]
        loss = F.cross_entropy(model(mine[0]), mine[1]) * (len(mine[0]) * size / SAMPLES)
        loss.backward()
        mean = loss.detach() / size
        if size > 1:
            dist.all_reduce(mean)
        return mean

    return Training(model, optimizer or adam(model), forward_backward)


def tensor_parallel(model: FullModel) -> Training:
    parallelize_module(model, mesh(size), {"first.up": ColwiseParallel(), "first.down": RowwiseParallel()})

    def forward_backward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    return Training(model, adam(model), forward_backward)


def pipeline(model: FullModel) -> Training:
    """By hand: rank 0 has the first half and rank 1 the second."""
    half = model.first if rank == 0 else model.second
    stage = Stage("first" if rank == 0 else "second", half)

    def forward_backward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        between, loss = torch.zeros(SAMPLES, 6), torch.zeros(())
        if rank == 0:
            out = half(x)
            dist.send(out.detach(), 1)
            dist.recv(between, 1)
            out.backward(between)
        else:
            dist.recv(between, 0)
            loss = F.cross_entropy(half(between.requires_grad_()), y)
            loss.backward()
            assert between.grad is not None
            dist.send(between.grad, 0)
        shown = loss.detach()
        dist.broadcast(shown, 1)
        return shown

    return Training([stage], adam(stage), forward_backward)


def sharded(model: FullModel, *shape: int) -> Training:
    for part in (model.first, model):
        fully_shard(part, mesh=mesh(*shape))
    return data_parallel(model)


def zero_1(model: FullModel) -> Training:
    zero = ZeroRedundancyOptimizer(groups(model), torch.optim.AdamW, lr=1e-2)
    return data_parallel(DistributedDataParallel(model), zero)


Build = Callable[[FullModel], Training]
LAYOUTS: dict[int, dict[str, Build]] = {
    1: {"alone": data_parallel},
    2: {
        "ddp2": lambda model: data_parallel(DistributedDataParallel(model)),
        "shard2": lambda model: sharded(model, 2),
        "tensor2": tensor_parallel,
        "pipeline2": pipeline,
        "zero2": zero_1,
    },
    3: {"ddp3": lambda model: data_parallel(DistributedDataParallel(model))},
    4: {"shard4": lambda model: sharded(model, 4), "hybrid4": lambda model: sharded(model, 2, 2)},
}


def job_in(folder: Path, world: World, n: int) -> Job:
    checkpoint = CheckpointConfig(str(folder), every_steps=SAVED_AT)
    return create_job(world, RankPlan(f"0.0.{n}", (), False, checkpoint, Resume.LATEST, None, "", ""), {})


def main(root: Path) -> None:
    world = World.join("cpu", 60)
    trained: dict[str, list[float]] = {}
    for name, build in LAYOUTS[size].items():
        training, job = build(whole(seed=0)), job_in(root / name, world, 1)
        job.restore(model=training.model, optimizer=training.optimizer)
        trained[name] = []
        for loss in training.steps(0, STEPS):
            trained[name].append(loss)
            job.report()
    names = sorted(name for layouts in LAYOUTS.values() for name in layouts)
    while not all([*(root / name).glob(f"*/*/{MANIFEST}")] for name in names):
        time.sleep(0.05)
    went_on: dict[str, list[float]] = {}
    for name, build in LAYOUTS[size].items():
        for saved in names:
            training, job = build(whole(seed=1)), job_in(root / saved, world, 2)
            assert job.restore(model=training.model, optimizer=training.optimizer) == SAVED_AT
            went_on[f"{saved} -> {name}"] = list(training.steps(SAVED_AT, STEPS))
    print_result(job, trained=trained, went_on=went_on)
    world.leave(10)


main(Path(sys.argv[1]))
