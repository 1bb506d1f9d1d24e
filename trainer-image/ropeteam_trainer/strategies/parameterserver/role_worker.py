"""Role of a worker: instead of collectives, its optimizer's step is a push and a pull."""

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
    """Training on a worker. `on_skip(n)` is called when n steps were made without this worker."""

    def __init__(self, here: Place, discovery: Discovery, on_skip: Callable[[int], None]) -> None:
        self._here, self._discovery, self._on_skip = here, discovery, on_skip
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
        progress: wrap.LoopValues,
        loss: Loss | None,
    ) -> wrap.Wrapped:
        """Join the job; return once all servers have sent their weights."""
        self._model, self._optimizer = model, optimizer
        local = replace(strategy, sync=Sync(), parallelism=Parallelism())
        wrap.check(local, optimizer, loss)
        # The server that keeps a matrix knows its norm; the worker applies the rate and the warm-up.
        local = replace(local, learning_rate=replace(strategy.learning_rate, trust_ratio=None))
        servers = range(self._here.servers)
        lines = [
            Line(index, self._discovery.addresses, self._discovery.secret, self._discovery.alive)
            for index in (0, *servers)
        ]
        me = (self._here.rank, astuple(self._discovery.epoch))
        self._worker = Worker(me, named_parameters([model]), optimizer, lines)
        self._state = self._worker.join()
        self._load_buffers()

        def step(_: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            return self._step(closure)

        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
        return wrap.wrap(model, optimizer, local, World(0, 1, device), progress, loss)

    def restore(self, others: Mapping[str, Any]) -> tuple[int, Data]:
        """Resume from the previous process's state or the checkpoint's. Returns steps done, data position."""
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
        # The previous process may have died between receiving a skip and its next report.
        if unreported := self.clock - state.get("clock", self.clock):
            self._on_skip(unreported)
        return self.clock, state.get("data")

    def tell(self, data: Data) -> None:
        """Report a finished step, with the state from which a successor of this process would resume."""
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
            self._on_skip(count)
        return loss

    @torch.no_grad()
    def _load_buffers(self) -> None:
        for name, buffer in self._model.named_buffers():
            buffer.copy_(self._state["buffers"][name])
