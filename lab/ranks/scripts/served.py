"""Train with job.wrap() under the strategy of a request, and leave what came of it in a file per rank.

    served.py REQUEST FOLDER

REQUEST: JSON, {strategy, model, optimizer, steps, batch, slow, waits, dies, holds_save}. model: "gpt", the
tiny one, or "count": every gradient is -1 and the learning rate 1, so weights count the gradients that were
applied. slow: {rank: seconds of sleep in each step}. waits: {rank: [steps done, file in FOLDER]}: from there
on it waits for the file, once it has its gradients; FOLDER/computed-RANK says that it has its first ones.
dies: {rank: batches after which it kills itself, once, before it reports}. holds_save: the first save makes
FOLDER/saving and lasts until somebody deletes it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lab.ranks import tiny
from torch import nn

import ropeteam_trainer
from ropeteam_trainer.checkpoint.saving import Checkpoints
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.strategies.model.naming import named_parameters

torch.set_num_threads(1)


class Count(nn.Module):
    """Two weights, so that two servers have one each."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -(self.a.sum() + self.b.sum()) * torch.ones(len(x))


def main() -> None:
    request: dict[str, Any] = json.loads(sys.argv[1])
    strategy = codec.from_plain(Strategy, request["strategy"])
    job = ropeteam_trainer.init(device="cpu", strategy=strategy)
    torch.manual_seed(job.rank)  # all take the weights of one
    model: nn.Module
    loss_of: Callable[..., torch.Tensor]
    if request["model"] == "gpt":
        model, optimizer = tiny.made(request["optimizer"])
        pairs = [tiny.batch(step, request["batch"]) for step in range(request["steps"])]
        data = list(zip(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]), strict=True))
        loss_of = tiny.loss_of
    else:
        model = Count()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        data = [(torch.zeros(1), torch.zeros(1))] * (request["steps"] * request["batch"])
        loss_of = _mean
    if request.get("holds_save"):
        hold_save(Path(sys.argv[2]) / "saving")
    model, optimizer = job.wrap(model, optimizer)
    job.restore(model=model, optimizer=optimizer)
    losses: list[tuple[int, float]] = []
    gradients: dict[str, torch.Tensor] = {}
    for inputs, target in job.batches(data, global_batch=request["batch"]):
        optimizer.zero_grad()
        loss = loss_of(model(inputs), target)
        (loss * job.batch_weight).backward()
        if not gradients:
            gradients = {name: p.grad.clone() for name, p in named_parameters([model]).items()}
            (Path(sys.argv[2]) / f"computed-{job.rank}").touch()
        first, file = request.get("waits", {}).get(str(job.rank), (0, "."))
        while job.step >= first and not (Path(sys.argv[2]) / file).exists():
            time.sleep(0.01)
        time.sleep(request.get("slow", {}).get(str(job.rank), 0))
        optimizer.step()
        if len(losses) == request.get("dies", {}).get(str(job.rank)):
            die_once(Path(sys.argv[2]) / f"died-{job.rank}")
        losses.append((job.step, float(loss.detach()) * job.batch_weight))
        job.report(loss=loss)
    weights = {name: p.detach() for name, p in named_parameters([model]).items()}
    out = {"losses": losses, "gradients": gradients, "weights": weights, "step": job.step}
    torch.save(out, Path(sys.argv[2]) / f"out-{job.rank}.pt")


def die_once(mark: Path) -> None:
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def hold_save(mark: Path) -> None:
    save = Checkpoints.save

    def held(*args: Any) -> None:
        Checkpoints.save = save  # type: ignore[method-assign]
        mark.touch()
        while mark.exists():
            time.sleep(0.05)
        save(*args)

    Checkpoints.save = held  # type: ignore[assignment, method-assign]


def _mean(output: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return output.mean()


main()
