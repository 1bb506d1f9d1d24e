"""What a worker does in the place of collectives: its optimizer's step is a push and a pull."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ropeteam_trainer.checkpoint.objects import rng
from ropeteam_trainer.contract.strategy import Parallelism, Strategy, Sync
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.strategies import wrap
from ropeteam_trainer.strategies.facade import Loss
from ropeteam_trainer.strategies.model.naming import named_parameters
from ropeteam_trainer.strategies.parameterserver.client import Line, Worker
from ropeteam_trainer.strategies.parameterserver.discovery import Discovery, Place
from ropeteam_trainer.strategies.parameterserver.share import put_values, values_of

Data = dict[str, int] | None


class Training:
    """`skipped(n)` is called when so many steps went on without this worker."""

    def __init__(self, here: Place, meeting: Discovery, skipped: Callable[[int], None]) -> None:
        self._here, self._meeting, self._skipped = here, meeting, skipped
        self._others: dict[str, Any] = {}

    @property
    def clock(self) -> int:
        """Steps done."""
        return self._worker.clock

    def wrap(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        strategy: Strategy,
        device: torch.device,
        progress: wrap.Progress,
        loss: Loss | None,
    ) -> wrap.Wrapped:
        """Joins: returns once all servers have answered, with their weights."""
        self._model, self._optimizer = model, optimizer
        alone = replace(strategy, sync=Sync(), parallelism=Parallelism())
        wrap.check(alone, optimizer, loss)
        # The server that keeps a matrix knows its norm; the rate and the warm-up are this side's.
        alone = replace(alone, learning_rate=replace(strategy.learning_rate, trust_ratio=None))
        servers = range(self._here.servers)
        lines = [
            Line(index, self._meeting.addresses, self._meeting.secret, self._meeting.alive)
            for index in (0, *servers)
        ]
        me = {"worker": self._here.rank, "epoch": list(astuple(self._meeting.epoch))}
        self._worker = Worker(me, named_parameters([model]), optimizer, lines)
        self._state = self._worker.join()
        self._load_buffers()

        def step(_: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            return self._step(closure)

        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
        return wrap.wrap(model, optimizer, alone, World(0, 1, device), progress, loss)

    def restore(self, others: Mapping[str, Any]) -> tuple[int, Data]:
        """Go on as the process before this one, or as the checkpoint says: steps done, data position."""
        self._others = dict(others)
        state = self._state
        put_values(self._optimizer, state.get("values"))
        for name, thing in others.items():
            if name in state.get("others", {}):
                thing.load_state_dict(state["others"][name])
        if "rng" in state:
            rng.put_back(state["rng"])
        elif self.clock:
            rng.reseed(self.clock, self._here.rank)
        # The process before this one may have died between an answer to skip and its next word.
        if untold := self.clock - state.get("clock", self.clock):
            self._skipped(untold)
        return self.clock, state.get("data")

    def tell(self, data: Data) -> None:
        """A step is done: what a successor of this process would go on from."""
        self._worker.tell(
            {
                "data": data,
                "rng": rng.capture(),
                "values": values_of(self._optimizer),
                "others": {name: thing.state_dict() for name, thing in self._others.items()},
                "buffers": dict(self._model.named_buffers()),
            }
        )

    def leave(self) -> None:
        self._worker.leave()

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if count := self._worker.step():
            self._skipped(count)
        return loss

    @torch.no_grad()
    def _load_buffers(self) -> None:
        for name, buffer in self._model.named_buffers():
            buffer.copy_(self._state["buffers"][name])
