"""Role of a worker of parameter servers: its optimizer steps by a push and a pull, without collectives."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from typing import Any, NoReturn

import torch
from torch.nn import Module
from torch.optim import Optimizer

from ropeteam_trainer.checkpoint.objects import rng
from ropeteam_trainer.checkpoint.saving import Restored
from ropeteam_trainer.contract.local import FromRank
from ropeteam_trainer.contract.strategy import Parallelism, Strategy, Sync
from ropeteam_trainer.roles import role
from ropeteam_trainer.roles.role import Loss, Session, TensorPlan
from ropeteam_trainer.strategies import wrap
from ropeteam_trainer.strategies.model.naming import named_parameters
from ropeteam_trainer.strategies.parameterserver.client import ServerConnection, WorkerClient
from ropeteam_trainer.strategies.parameterserver.discovery import Discovery
from ropeteam_trainer.strategies.parameterserver.share import set_hyperparameters, hyperparameters_of


class WorkerRole:
    def __init__(self, session: Session, strategy: Strategy) -> None:
        self._session, self._strategy = session, strategy
        self.dp_rank, self.dp_size = session.assignment.rank, session.assignment.workers
        self._wrapped: wrap.Wrapped | None = None
        self._worker: WorkerClient | None = None
        self._others: dict[str, Any] = {}

    def wrap(
        self,
        model: Module,
        optimizer: Optimizer,
        progress: wrap.LoopValues,
        loss: Loss | None,
        _: TensorPlan | None,
    ) -> tuple[Module, Optimizer]:
        """Join the job; return once all servers have sent their weights."""
        role.must_be_new(self._wrapped is not None)
        self._model, self._optimizer = model, optimizer
        local = replace(self._strategy, sync=Sync(), parallelism=Parallelism())
        wrap.check(local, optimizer, loss)
        # The server that keeps a matrix knows its norm; the worker applies the rate and the warm-up.
        local = replace(local, learning_rate=replace(self._strategy.learning_rate, trust_ratio=None))
        self._worker = self._connect()
        self._state = self._worker.join()
        self._load_buffers()

        def step(_: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            return self._step(closure)

        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
        self._wrapped = wrap.wrap(model, optimizer, local, self._session.world, progress, loss)
        return self._wrapped.model, self._wrapped.optimizer

    def _connect(self) -> WorkerClient:
        session = self._session
        discovery = Discovery(session.assignment, session.plan, session.link, session.heart)
        lines = [
            ServerConnection(index, discovery.addresses, discovery.secret, discovery.alive)
            for index in (0, *range(session.assignment.servers))
        ]
        me = (session.assignment.rank, astuple(discovery.world_id))
        return WorkerClient(me, named_parameters([self._model]), self._optimizer, lines)

    def restore(self, _: Any, __: Any, extra: Mapping[str, Any]) -> Restored | None:
        """Resume from the previous process's state or the checkpoint's, which wrap() has received."""
        if self._worker is None:
            return None
        self._others = dict(extra)
        state, clock = self._state, self._worker.clock
        set_hyperparameters(self._optimizer, state.get("values"))
        for name, obj in extra.items():
            if name in state.get("others", {}):
                obj.load_state_dict(state["others"][name])
        if "rng" in state:
            rng.put_back(state["rng"])
        elif clock:
            rng.reseed(clock, self._session.assignment.rank)
        # The previous process may have died between receiving a skip and its next report.
        if unreported := clock - state.get("clock", clock):
            self._session.feed.skip(unreported)
        return Restored(clock, state.get("data"))

    def enter_loop(self, _: str) -> None:
        if self._wrapped is None:
            raise role.not_wrapped()

    def next_step(self, step: int) -> int:
        return self._worker.clock if self._worker is not None else step

    def after_step(self, _: int) -> None:
        """Report the step to the chief, with the state from which a successor of this process resumes."""
        assert self._worker is not None
        self._worker.report_step(
            {
                "data": self._session.feed.state(),
                "rng": rng.capture(),
                "values": hyperparameters_of(self._optimizer),
                "others": {name: obj.state_dict() for name, obj in self._others.items()},
                "buffers": dict(self._model.named_buffers()),
            }
        )

    def save_now(self, step: int, report: bool = True) -> None:
        """Nothing: the chief saves."""

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor:
        return role.clipped(self._wrapped, max_norm)

    def balanced_model(self) -> NoReturn:
        raise role.not_balanced()

    def leave(self) -> None:
        if self._worker is not None:
            self._worker.leave()
            self._session.link.send(FromRank(left=True))

    def release(self) -> None:
        self._wrapped = None

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        assert self._worker is not None
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if count := self._worker.step():
            self._session.feed.skip(count)
        return loss

    @torch.no_grad()
    def _load_buffers(self) -> None:
        for name, buffer in self._model.named_buffers():
            buffer.copy_(self._state["buffers"][name])
