"""Call a wrapped model as scripts of all kinds do, on data that differ from rank to rank.

    called.py REQUESTS

REQUESTS: JSON, a list of [name, strategy, how]. Rank 0 prints RESULT {name: figures}: the losses of four
steps, weights in the end, and the names in state_dict(); or what was raised.
how: a key of CALLS; with "loss" in it, wrap() is given a loss function.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.strategies.wrap import LoopValues, Wrapped, wrap

torch.set_num_threads(1)


class Output(dict[str, Any]):
    """As transformers' outputs: a dict whose values are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]


class Scorer(nn.Module):
    """Returns its loss, or a dict with it; with no target, its output."""

    def __init__(self, answer: str) -> None:
        super().__init__()
        self.module, self.last = nn.Linear(4, 8), nn.Linear(8, 1)
        self.answer = answer

    def forward(self, x: torch.Tensor, y: Any = None, scale: Any = None, rest: Any = None) -> Any:
        assert rest is None or len(rest["also"][0]) == len(x), "what belongs to samples goes with them"
        out = self.last(self.module(x).relu()) * scale
        if y is None:
            return out
        loss = (out - y).square().mean()
        return Output(loss=loss) if self.answer == "output" else loss


def wrapped(world: World, strategy: Strategy, how: str) -> Wrapped:
    torch.manual_seed(0)
    scorer = Scorer("output" if how == "attributes" else "loss")
    model = nn.Sequential(scorer.module, scorer.last) if strategy.parallelism.pipeline > 1 else scorer
    loss = (lambda out, y: (out - y).square().mean()) if "loss" in how else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return wrap(model, optimizer, strategy, world, LoopValues(lambda: 1.0, lambda: 0), loss=loss)


CALLS: dict[str, Callable[..., Any]] = {
    "positions": lambda model, x, y, scale: model(x, y, scale),
    "keywords": lambda model, x, y, scale: model(x=x, y=y, scale=scale, rest={"also": [x]}),
    "attributes": lambda model, x, y, scale: model(x=x, y=y, scale=scale).loss,
    "loss, and a keyword": lambda model, x, y, scale: model(x, y, scale=scale),
    "loss, and keywords alone": lambda model, x, y, scale: model(x=x, y=y, scale=scale),
    "no target": lambda model, x, _, scale: model(x=x, scale=scale),
}


def call(model: nn.Module, how: str, step: int, world: World) -> Any:
    random = torch.Generator().manual_seed(step)
    parts = (torch.randn(12, width, generator=random).chunk(world.size) for width in (4, 1, 1))
    return CALLS[how](model, *(part[world.rank] for part in parts))


def main() -> None:
    world = World.join("cpu", 60)
    results = {}
    for name, strategy, how in json.loads(Path(sys.argv[1]).read_text()):
        try:
            results[name] = trained(world, codec.from_plain(Strategy, strategy), how)
        except TypeError as error:
            results[name] = {"raised": str(error)}
    if world.rank == 0:
        print(f"RESULT {json.dumps(results)}")
    world.leave(30)


def trained(world: World, strategy: Strategy, how: str) -> dict[str, Any]:
    made = wrapped(world, strategy, how)
    losses = []
    for step in range(4):
        loss = call(made.model, how, step, world)
        made.optimizer.zero_grad()
        loss.backward()
        made.optimizer.step()
        losses.append(sum(world.gather(float(loss))) / world.size)
    state = whole(made)
    again = wrapped(world, strategy, how)
    again.model.load_state_dict(made.model.state_dict())
    assert whole(again) == state
    return {"losses": losses, "weights": [w for each in state.values() for w in each], "names": list(state)}


def whole(made: Wrapped) -> dict[str, list[float]]:
    state = made.model.state_dict().items()
    return {name: (v.full_tensor() if isinstance(v, DTensor) else v).flatten().tolist() for name, v in state}


main()
