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
from ropeteam_trainer.data.decisions.plan import Deal
from ropeteam_trainer.roles import role
from ropeteam_trainer.roles.role import Loss, Session, TensorPlan
from ropeteam_trainer.strategies import wrap
from ropeteam_trainer.strategies.model.naming import named_parameters
from ropeteam_trainer.strategies.parameterserver.client import ServerConnection, WorkerClient
from ropeteam_trainer.strategies.parameterserver.discovery import Discovery
from ropeteam_trainer.strategies.parameterserver.hyperparameters import (
    hyperparameters_of,
    set_hyperparameters,
)


class WorkerRole:
    """RankRole of a worker with parameter servers. wrap() is required: before it there is no connection."""

    def __init__(self, session: Session, strategy: Strategy) -> None:
        self._session, self._strategy = session, strategy
        self.dp_rank, self.dp_size = session.assignment.rank, session.assignment.workers
        self.deal: Deal | None = None
        self._wrapped: wrap.Wrapped | None = None
        self._worker: WorkerClient | None = None
        self._extra: dict[str, Any] = {}
        """Objects given to restore() beside model and optimizer."""

    def wrap(
        self,
        model: Module,
        optimizer: Optimizer,
        progress: wrap.LoopValues,
        loss: Loss | None,
        _: TensorPlan | None,
    ) -> tuple[Module, Optimizer]:
        """Connect to all servers and pull their weights into the model; blocks until the servers are ready.
        The optimizer's step() becomes a push and a pull. Returns as RankRole.wrap()."""
        role.check_not_wrapped(self._wrapped is not None)
        self._model, self._optimizer = model, optimizer
        local = replace(self._strategy, sync=Sync(), parallelism=Parallelism())
        wrap.check_settings(local, optimizer, loss)
        # The server has each whole matrix and its mean gradient, so it applies LARS or LAMB; the worker
        # applies the rate and the warm-up, as hyperparameters that it sends with each push.
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
        """Client with a connection to the chief for requests, and one to each server; none is opened yet."""
        session = self._session
        discovery = Discovery(session.assignment, session.plan, session.link, session.heart)
        connections = [
            ServerConnection(index, discovery.addresses, discovery.secret, discovery.serve_phase)
            for index in (0, *range(session.assignment.servers))
        ]
        me = (session.assignment.rank, astuple(discovery.world_id))
        return WorkerClient(me, named_parameters([self._model]), self._optimizer, connections)

    def restore(self, _: Any, __: Any, extra: Mapping[str, Any]) -> Restored | None:
        """Load the worker's own state, which wrap() has received: that of its previous process, or of the
        checkpoint. The model needs nothing, and the optimizer only its hyperparameters. None: wrap() was not
        called."""
        if self._worker is None:
            return None
        self._extra = dict(extra)
        state, clock = self._state, self._worker.clock
        set_hyperparameters(self._optimizer, state.get("values"))
        for name, obj in extra.items():
            if name in state.get("others", {}):
                obj.load_state_dict(state["others"][name])
        if "rng" in state:
            rng.put_back(state["rng"])
        elif clock:
            rng.reseed(clock, self._session.assignment.rank)
        # The previous process may have died after the chief had closed its step, before its next report.
        if unreported := clock - state.get("clock", clock):
            self._session.feed.skip(unreported)
        return Restored(clock, state.get("data"))

    def enter_loop(self, _: str) -> None:
        """Raise StrategyError if wrap() was not called."""
        if self._wrapped is None:
            raise role.not_wrapped_error()

    def steps_done_after(self, step: int) -> int:
        """As RankRole.steps_done_after(): the gradients done or skipped by this worker."""
        return self._worker.clock if self._worker is not None else step

    def after_step(self, _: int) -> None:
        """Report the step to the chief, with the state from which a later process of this worker resumes."""
        assert self._worker is not None
        self._worker.report_step(
            {
                "data": self._session.feed.state(),
                "rng": rng.capture(),
                "values": hyperparameters_of(self._optimizer),
                "others": {name: obj.state_dict() for name, obj in self._extra.items()},
                "buffers": dict(self._model.named_buffers()),
            }
        )

    def save_now(self, step: int, report: bool = True) -> None:
        """Do nothing: the chief saves."""

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor:
        return role.clip_wrapped(self._wrapped, max_norm)

    def end_step(self, step: int, stops: bool = False) -> None:
        pass

    @property
    def follows(self) -> bool:
        """As RankRole.follows."""
        return False

    @property
    def has_all_ranks(self) -> bool:
        return True

    def measured_model(self) -> NoReturn:
        raise role.not_balanced_error()

    def leave(self) -> None:
        """Deregister from the chief, and report that to the agent, so that this rank may end before the
        others."""
        if self._worker is not None:
            self._worker.leave()
            self._session.link.send(FromRank(left=True))

    def release_model(self) -> None:
        self._wrapped = None

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        """The optimizer's step(): push the gradients and pull the weights, or drop them if the step is
        closed; then the data of steps that are skipped too. Returns the closure's loss; None without a
        closure."""
        assert self._worker is not None
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if count := self._worker.push_or_skip():
            self._session.feed.skip(count)
        return loss

    @torch.no_grad()
    def _load_buffers(self) -> None:
        """Load the model's buffers from the state that the chief sent: servers keep parameters only."""
        for name, buffer in self._model.named_buffers():
            buffer.copy_(self._state["buffers"][name])
