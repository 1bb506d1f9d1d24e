"""Local SGD on data that differ from rank to rank: ranks with the same weights after each step.

    averaging.py STRATEGY

STRATEGY: JSON. Rank 0 prints RESULT {"alike": one list of groups of ranks per step, "in_sync": one flag per
step}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

import ropeteam_trainer
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.recipes.common import print_result

job = ropeteam_trainer.init(
    device="cpu", strategy=codec.from_plain(Strategy, json.loads(sys.argv[1])), timeout_seconds=60
)
torch.manual_seed(0)
plain = torch.nn.Linear(4, 1)
# Not Adam: its first step is the sign of the gradient, and two ranks may have the same one.
model, optimizer = job.wrap(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
torch.manual_seed(job.rank)
alike: list[list[list[int]]] = []
in_sync: list[bool] = []
for _ in range(8):
    loss = model(torch.randn(4, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    groups: dict[Any, list[int]] = {}
    for rank, weights in enumerate(job._world.gather(plain.weight.detach().numpy().tobytes())):
        groups.setdefault(weights, []).append(rank)
    alike.append(list(groups.values()))
    in_sync.append(job._role._wrapped.in_sync())  # type: ignore[attr-defined]
    job.report(loss=loss)
print_result(job, alike=alike, in_sync=in_sync)
