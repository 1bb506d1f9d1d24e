"""A rank of benchmarks/parameterserver.py.

    train_served.py KIND FOLDER REQUEST

KIND "exchange": a model of so many bytes, and how long each push and pull took. "train": a classifier on
digits, on workers of which one may be slow; losses and when each step ended. REQUEST: JSON, see there.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import ropeteam_trainer
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import Strategy

torch.set_num_threads(1)


def exchange(job: ropeteam_trainer.Job, request: dict[str, Any]) -> list[float]:
    """Seconds of each push and pull of a model of `megabytes`."""
    layers = [nn.Linear(1000, 250, bias=False) for _ in range(request["megabytes"])]
    model: nn.Module = nn.ModuleList(layers)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model, optimizer = job.wrap(model, optimizer)
    job.restore(model=model, optimizer=optimizer)
    seconds = []
    for _ in job.batches(list(range(request["steps"])), global_batch=1):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        begin = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
        job.report()
    return seconds


def train(job: ropeteam_trainer.Job, request: dict[str, Any]) -> list[tuple[float, int, float]]:
    """(when, step, loss) of each step that this worker computed."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images, labels = torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target)
    data = list(zip(images, labels, strict=True))
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=request["rate"])
    model, optimizer = job.wrap(model, optimizer)
    job.restore(model=model, optimizer=optimizer)
    seen = []
    for inputs, target in job.batches(data, global_batch=request["batch"], epochs=request["epochs"]):
        loss = F.cross_entropy(model(inputs), target)
        optimizer.zero_grad()
        (loss * job.batch_weight).backward()
        time.sleep(request["slow_seconds"] if job.rank == request["slow"] else request["seconds"])
        optimizer.step()
        seen.append((time.perf_counter(), job.step, float(loss.detach())))
        job.report(loss=loss)
    return seen


def main() -> None:
    kind, folder, request = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    strategy = codec.from_plain(Strategy, request["strategy"])
    job = ropeteam_trainer.init(device="cpu", strategy=strategy)
    figures: Any = exchange(job, request) if kind == "exchange" else train(job, request)
    (folder / f"rank-{job.rank}.json").write_text(json.dumps(figures))


main()
