"""measured.py with parameter servers: ranks beyond the workers serve, and have no group.

    measured_served.py REQUEST

What is measured of ranks is that of workers. Bytes that servers send are counted with those of the workers,
which receive them: `sent` is per worker.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lab.ranks import netns, tiny
from lab.ranks.scripts.measured import (
    PER_RANK,
    Request,
    english,
    rehearse,
    reset_peak,
    resident,
    share,
    stored,
)

import ropeteam_trainer
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.partition.layout import Layout
from ropeteam_trainer.rank.world import World

torch.set_num_threads(1)


def main() -> None:
    path = Path(sys.argv[1])
    request = Request(**json.loads(path.read_text()))
    text = english(request)
    if request.memory:
        plain = Request({}, request.size, request.batch, 0, 0)
        rehearse(plain, World(0, 1, torch.device("cpu")), text)
    strategy = codec.from_plain(Strategy, request.strategy)
    job = ropeteam_trainer.init(device="cpu", strategy=strategy)
    found = measure(job, request, text, path.parent)
    results = gathered(job, path.parent, "end", found)
    if job.rank == 0:
        same = {"sent": found["sent"], "seconds": found["seconds"]}
        mean = sum(each["loss"] for each in results) / len(results)
        each_rank = {name: [each[name] for each in results] for name in PER_RANK}
        print(f"RESULT {json.dumps(same | each_rank | {'loss': mean})}")


def measure(job: ropeteam_trainer.Job, request: Request, text: torch.Tensor, folder: Path) -> dict[str, Any]:
    """See measured.measure(). A server never returns from here."""
    before = resident("VmRSS")
    torch.manual_seed(0)
    model: torch.nn.Module = tiny.Tiny(tiny.Size(**request.size))
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=request.learning_rate)
    parameters = list(model.parameters())
    model, optimizer = job.wrap(model, optimizer, loss=tiny.loss_of)
    job.restore(model=model, optimizer=optimizer)
    grid = Layout(1, job.world_size, 1, 1)
    steps = list(range((request.warm + request.steps) * job.world_size))
    sent, began, loss = 0, 0.0, torch.zeros(())
    for number, _ in enumerate(job.batches(steps, global_batch=job.world_size)):
        if number == request.warm:
            gathered(job, folder, "begin", None)
            reset_peak()
            sent = netns.sent()
            gathered(job, folder, "counted", None)
            began = time.perf_counter()
        inputs, target = share(request, text, number, grid, job.rank)
        optimizer.zero_grad()
        loss = model(inputs, target)
        loss.backward()
        optimizer.step()
        job.report(loss=loss)
    gathered(job, folder, "done", None)
    seconds = time.perf_counter() - began
    sent = netns.sent() - sent
    return {
        "loss": float(loss),
        "seconds": seconds,
        "sent": sent / job.world_size / request.steps if netns.is_alone() else None,
        "held": {
            "parameters": stored(parameters),
            "gradients": stored(p.grad for p in parameters),
            "optimizer": 0,
        },
        "peak": resident("VmHWM") - before,
    }


def gathered(job: ropeteam_trainer.Job, folder: Path, where: str, value: Any) -> list[Any]:
    """Values of all workers at a barrier."""
    draft = folder / f"{where}.{job.rank}.draft"
    draft.write_text(json.dumps(value))
    draft.rename(folder / f"{where}.{job.rank}")
    files = [folder / f"{where}.{rank}" for rank in range(job.world_size)]
    while not all(file.exists() for file in files):
        time.sleep(0.001)
    return [json.loads(file.read_text()) for file in files]


main()
