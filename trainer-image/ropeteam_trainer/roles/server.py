"""Role of a parameter server: instead of training, it handles requests until all workers have left."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch.nn import Module
from torch.optim import Optimizer

from ropeteam_trainer.contract.local import FromRank
from ropeteam_trainer.contract.strategy import LearningRate, Strategy
from ropeteam_trainer.roles import role
from ropeteam_trainer.roles.role import Loss, Session, TensorPlan
from ropeteam_trainer.strategies import largebatch, wrap
from ropeteam_trainer.strategies.model.naming import named_parameters
from ropeteam_trainer.strategies.parameterserver import ledger as ledgers
from ropeteam_trainer.strategies.parameterserver.chief import Chief, FullModel
from ropeteam_trainer.strategies.parameterserver.chiefloop import ChiefLoop
from ropeteam_trainer.strategies.parameterserver.client import ServerConnection
from ropeteam_trainer.strategies.parameterserver.discovery import HEARTBEAT_SECONDS, Discovery
from ropeteam_trainer.strategies.parameterserver.requests import Done, Request, SendProgress
from ropeteam_trainer.strategies.parameterserver.serverprogress import ServerProgress
from ropeteam_trainer.strategies.parameterserver.service import Server
from ropeteam_trainer.strategies.parameterserver.share import Share, restricted_optimizer, shares_by_server
from ropeteam_trainer.system.notice import notice

A = TypeVar("A")

SPARE_PLACES = 16
"""Unauthenticated connections allowed beyond two for each rank."""


class ServerRole:
    """folder: memory that outlives this process."""

    def __init__(self, session: Session, strategy: Strategy, folder: Path | None) -> None:
        assert session.assignment.server_index is not None
        self._session, self._strategy, self._folder = session, strategy, folder
        self._place, self._index = session.assignment, session.assignment.server_index
        self.dp_rank, self.dp_size = session.assignment.rank, session.assignment.workers
        self._is_wrapped = False
        self._lines: dict[int, ServerConnection] = {}
        self._extra: dict[str, Any] = {}

    # ---- calls of the script

    def wrap(
        self,
        model: Module,
        optimizer: Optimizer,
        _: wrap.LoopValues,
        __: Loss | None,
        ___: TensorPlan | None,
    ) -> tuple[Module, Optimizer]:
        """Check and return both; the first use of the model starts to serve."""
        role.must_be_new(self._is_wrapped)
        wrap.check(self._strategy, optimizer, None)
        session = self._session
        self._discovery = Discovery(session.assignment, session.plan, session.link, session.heart)
        self._model, self._optimizer, self._named = model, optimizer, named_parameters([model])
        model.register_forward_pre_hook(lambda *_: self._serve())
        self._is_wrapped = True
        return model, optimizer

    def restore(self, _: Any, __: Any, extra: Mapping[str, Any]) -> None:
        """Keep schedulers and such for checkpoints. The chief restores before it serves."""
        self._extra = dict(extra)

    def enter_loop(self, _: str) -> None:
        if not self._is_wrapped:
            raise role.not_wrapped()
        self._serve()

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor:
        return role.clipped(None, max_norm)

    def leave(self) -> None:
        pass

    def release(self) -> None:
        pass

    # No step begins on a server.

    def next_step(self, step: int) -> int:
        return step

    def after_step(self, step: int) -> None:
        pass

    def save_now(self, step: int, report: bool = True) -> None:
        pass

    def balanced_model(self) -> None:
        pass

    # ---- serving

    def _serve(self) -> NoReturn:
        link, heart, discovery = self._session.link, self._session.heart, self._discovery
        spec = self._strategy.sync.parameter_server
        own = shares_by_server(self._named, self._place.servers)[self._index]
        optimizer = restricted_optimizer(self._optimizer, own)
        ratio = LearningRate(trust_ratio=self._strategy.learning_rate.trust_ratio)
        largebatch.apply(optimizer, ratio, None, lambda: 0)
        share = Share(own, optimizer, self._path(f"server-{self._index}"), self._place.workers)
        max_unauthenticated = 2 * (self._place.workers + self._place.servers) + SPARE_PLACES
        assert discovery.listener is not None
        self._server = server = Server(share, discovery.listener, discovery.secret, spec, max_unauthenticated)
        server.add_handler(SendProgress, self._receive_progress)
        self._progress = ServerProgress(heart, link, server, self._dropped)
        heart.phase = "serve"
        heart.write()
        if self._index == 0:
            loop = self._chief_loop()
            server.start()
            loop.run()
        else:
            server.start()
            with server.changed:
                while not server.changed.wait_for(lambda: server.is_over, HEARTBEAT_SECONDS):
                    heart.write()
        server.close()
        link.send(FromRank(left=True))
        self._print_counts(server)
        raise SystemExit(0)

    def _print_counts(self, server: Server) -> None:
        stale = server.staleness
        figures: dict[str, Any] = {"server": self._index, "steps": server.share.version}
        if stale:
            mean = sum(stale.elements()) / stale.total()
            figures |= {"most_stale": max(stale), "mean_staleness": round(mean, 3)}
        if self._index == 0:
            ledger = self._chief.ledger
            figures |= {"clocks": ledger.clocks, "dropped": ledger.dropped, "most_ahead": ledger.max_ahead}
        notice(f"all workers have left: {json.dumps(figures)}")

    def _chief_loop(self) -> ChiefLoop:
        session, alive = self._session, self._discovery.alive
        spec, workers = self._strategy.sync.parameter_server, self._place.workers
        job_rules = ledgers.rules_of(spec, workers, session.checkpoints.every_steps)
        full_model = FullModel(self._named, self._model, self._optimizer, self._place.servers)
        self._chief = Chief(full_model, self._server, self._call, job_rules, self._path("ledger"))
        return ChiefLoop(self._chief, self._extra, session.checkpoints, session.link, self._progress, alive)

    def _dropped(self) -> int | None:
        return self._chief.ledger.dropped if self._index == 0 else None

    def _receive_progress(self, progress: SendProgress, _: bytearray) -> tuple[Done, bytes]:
        self._progress.report_step(progress.step)
        if progress.drained:
            self._progress.report_drained(progress.step)
        return Done(), b""

    def _call(self, index: int, request: Request[A], payload: bytes = b"") -> tuple[A, bytes]:
        if index not in self._lines:
            discovery = self._discovery
            self._lines[index] = ServerConnection(index, discovery.addresses, discovery.secret, discovery.alive)
        return self._lines[index].call(request, [payload] if payload else [])

    def _path(self, name: str) -> Path | None:
        return self._folder / name if self._folder else None
