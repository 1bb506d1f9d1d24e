"""Train under sync Exact, and print the digest of the parameters and the loss of each step.

    exact.py STRATEGY MODEL STEPS [ORDER]

STRATEGY: JSON of spec.strategy. MODEL: everything (LayerNorm, BatchNorm, dropout, tied weights, parameters
that some or all micro-batches do not use, a schedule, an average of the weights, clipping), statistics
(BatchNorm, dropout) or tiny (a GPT that tensor parallelism can split). Resumes from checkpoints in the folder
CHECKPOINTS, if set; a step takes STEP_SECONDS longer. ORDER: "shuffled" puts the micro-batches of each world
on other leaves of the tree; "balance" requests it, "unequal" gives rank 1 more threads, "computed" gives the
model tensors that the script has computed; "late" changes the schedule after job.report(), "forgotten" does
not give it to job.restore(). Each rank prints STEP with number, digest and loss of each step;
at the end rank 0 prints RESULT {digests, losses}.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
from typing import Any

import torch
from lab.ranks import tiny
from torch import nn
from torch.distributed.tensor import DTensor

import ropeteam_trainer
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.partition import reductiontree
from ropeteam_trainer.strategies.exact import gradients

STRATEGY, MODEL, STEPS = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
BATCH, SAMPLES = 104, 260


class Everything(nn.Module):
    """A model with what makes bits differ."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.norm, self.batch_norm = nn.LayerNorm(32), nn.BatchNorm1d(32)
        self.hidden, self.rare, self.never = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.drop = nn.Dropout(0.3)
        own = torch.ones(32) + int(os.environ.get("RANK", "0"))  # until that of rank 0 has come
        self.register_buffer("scale", own, persistent=False)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens).mean(1) * self.scale
        x = x + self.drop(torch.relu(self.hidden(self.norm(x))))
        if int(tokens[0, 0]) % 3 == 0:
            x = x + self.rare(x)
        return nn.functional.cross_entropy(self.batch_norm(x) @ self.embed.weight.T, target)


def wrapped(job: ropeteam_trainer.Job) -> tuple[nn.Module, torch.optim.Optimizer, list[Any]]:
    """Model and optimizer under the strategy, and the samples."""
    if MODEL == "tiny":
        model, optimizer = tiny.made("AdamW")
        data = [*zip(*tiny.batch(0, SAMPLES), strict=True)]
        return *job.wrap(model, optimizer, loss=tiny.loss_of), data
    elif MODEL == "statistics":
        model = nn.Sequential(nn.Linear(9, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 3))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        data = [(torch.randn(9), torch.randn(3)) for _ in range(SAMPLES)]
        return *job.wrap(model, optimizer, loss=nn.functional.mse_loss), data
    else:
        model = Everything()
        data = [(torch.randint(50, (6,)), torch.randint(50, ())) for _ in range(SAMPLES)]
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        return *job.wrap(model, optimizer), data


def shuffle_leaves() -> None:
    numbers = [*range(codec.from_plain(Strategy, STRATEGY).leaves)]
    random.Random(int(os.environ["WORLD_SIZE"])).shuffle(numbers)
    gradients.leaf = lambda number: reductiontree.leaf(numbers[number])  # type: ignore[attr-defined]


def main() -> None:
    order = sys.argv[4] if len(sys.argv) > 4 else ""
    torch.manual_seed(7)
    if order == "shuffled":
        shuffle_leaves()
    if order == "unequal":
        torch.set_num_threads(1 + int(os.environ["RANK"]))
    job = ropeteam_trainer.init(
        device="cpu",
        strategy=codec.from_plain(Strategy, STRATEGY),
        checkpoint_dir=os.environ.get("CHECKPOINTS"),
        checkpoint_every_steps=3,
    )
    model, optimizer, data = wrapped(job)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    average = torch.optim.swa_utils.AveragedModel(model) if MODEL == "everything" else None
    more: dict[str, Any] = {"average": average} if average is not None else {}
    if order != "forgotten":
        more["schedule"] = schedule
    job.restore(model=model, optimizer=optimizer, **more)
    digests, losses, pause = [], [], float(os.environ.get("STEP_SECONDS", "0"))
    for batch in job.batches(data, global_batch=BATCH, epochs=99, balance=order == "balance"):
        optimizer.zero_grad()
        time.sleep(pause)
        if order == "computed":
            batch = [each + 0 for each in batch]
        loss = model(*batch)
        (loss * job.batch_weight).backward()
        norm = job.clip_grad_norm(1.0)
        optimizer.step()
        if order != "late":
            schedule.step()
        if average is not None:
            average.update_parameters(model)
        digests.append(
            digest([*model.state_dict().values(), norm, *(average.parameters() if average else [])])
        )
        losses.append(float(loss.detach()).hex())
        print("STEP", job.step + 1, digests[-1], losses[-1], flush=True)
        model.eval()
        with torch.no_grad():
            model(*batch)
        model.train()
        job.report(loss=loss)
        if order == "late":
            schedule.step()
        if job.step == STEPS:
            break
    if job.rank == 0:
        print("RESULT", json.dumps({"digests": digests, "losses": losses}))


def digest(values: list[torch.Tensor]) -> str:
    whole = hashlib.sha256()
    for value in values:
        value = value.full_tensor() if isinstance(value, DTensor) else value
        whole.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()[:16]


main()
