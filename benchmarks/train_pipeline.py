"""Training of the pipeline benchmark: layers of equal work, in a pipeline.

    train_pipeline.py REQUEST

REQUEST: JSON {layers, sleeps, micro_batches, steps, strategy}. With `sleeps` a layer takes 20 ms forward,
20 ms for the gradient of its input and 20 ms for that of its weight, in which it sleeps: as on a device of
its own, so that more ranks than cores can be measured. Else it multiplies matrices. After each step every
rank computes its own stages once more for as many micro-batches, and waits for nobody. Rank 0 prints RESULT
{seconds: of each step, work: of that, mean of all ranks}.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn

import ropeteam_trainer
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import Strategy

WIDTH, ROWS = 1024, 256
"""Three such layers, the smallest stage, take 20 ms forward on a core."""
NAP = 0.020
WARM = 2


class _Nap(torch.autograd.Function):
    """Identity that takes some seconds, in both directions."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, there: float, back: float) -> torch.Tensor:
        ctx.back = back
        time.sleep(there)
        return value.clone()  # zero-bubble schedules cannot take a view for a stage's output

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(ctx.back)
        return grads[0], None, None


def nap(value: torch.Tensor, there: float, back: float) -> torch.Tensor:
    slept: torch.Tensor = _Nap.apply(value, there, back)  # type: ignore[no-untyped-call]
    return slept


class Sleeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nap(F.linear(x, nap(self.weight, 0, NAP)), NAP, NAP)


class Computing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.relu(self.layer(x))


def work_of(parts: Iterable[nn.Module], rows: int, width: int, micro_batches: int) -> float:
    """Seconds of this rank's own stages, forward and backward, all ranks at the same time."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(micro_batches):
        for part in parts:
            part(torch.ones(rows, width, requires_grad=True)).sum().backward()
    return time.perf_counter() - began


def main() -> None:
    request = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    job = ropeteam_trainer.init(device="cpu", strategy=codec.from_plain(Strategy, request["strategy"]))
    layer, width, rows = (Sleeping, 8, 1) if request["sleeps"] else (Computing, WIDTH, ROWS)
    model: Any = nn.Sequential(*(layer() for _ in range(request["layers"])))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    model, optimizer = job.wrap(model, optimizer, loss=F.mse_loss)
    data = torch.randn(rows * request["micro_batches"], width)
    seconds, work = [], []
    for _ in range(WARM + request["steps"]):
        began = time.perf_counter()
        loss = model(data, data)
        optimizer.zero_grad()
        (loss * job.batch_weight).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)  # the loss of a step comes from the last stage: all wait
        work.append(work_of(model.parts, rows, width, request["micro_batches"]))
        job.report(loss=loss)
    mean = torch.tensor(work, dtype=torch.float64)
    dist.all_reduce(mean)
    if job.rank == 0:
        found = {"seconds": seconds[WARM:], "work": (mean / job.world_size).tolist()[WARM:]}
        print(f"RESULT {json.dumps(found)}")


if __name__ == "__main__":
    main()
