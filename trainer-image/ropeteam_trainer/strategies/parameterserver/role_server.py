"""Role of a server: instead of training, it handles requests until all workers have left."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from torch import nn
from torch.optim import Optimizer

from ropeteam_trainer.checkpoint.disabled import DisabledCheckpoints
from ropeteam_trainer.checkpoint.saving import Checkpoints
from ropeteam_trainer.contract.local import FromRank
from ropeteam_trainer.contract.strategy import LearningRate, Strategy
from ropeteam_trainer.rank.agentlink import AgentLink, HeartbeatWriter, NoAgent
from ropeteam_trainer.strategies import largebatch, wrap
from ropeteam_trainer.strategies.model.naming import named_parameters
from ropeteam_trainer.strategies.parameterserver import ledger as rules
from ropeteam_trainer.strategies.parameterserver.chief import Chief, FullModel
from ropeteam_trainer.strategies.parameterserver.chiefloop import ChiefLoop
from ropeteam_trainer.strategies.parameterserver.client import Line
from ropeteam_trainer.strategies.parameterserver.discovery import BEAT_SECONDS, Discovery, Place
from ropeteam_trainer.strategies.parameterserver.requests import Done, Request, SendProgress
from ropeteam_trainer.strategies.parameterserver.serverprogress import ServerProgress
from ropeteam_trainer.strategies.parameterserver.service import Server
from ropeteam_trainer.strategies.parameterserver.share import Share, restricted, shares

A = TypeVar("A")

SPARE_PLACES = 16
"""Unauthenticated connections allowed beyond two for each rank."""


class Serving:
    """Serving on one server. `folder`: memory that outlives this process."""

    def __init__(
        self,
        here: Place,
        discovery: Discovery,
        strategy: Strategy,
        folder: Path | None,
    ) -> None:
        assert here.server is not None
        self._here, self._discovery, self._strategy = here, discovery, strategy
        self._index, self._folder = here.server, folder
        self._lines: dict[int, Line] = {}
        self._extra: dict[str, Any] = {}

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Check and return both; the first use of the model starts to serve. Raises StrategyError."""
        wrap.check(self._strategy, optimizer, None)
        self._model, self._optimizer, self._named = model, optimizer, named_parameters([model])
        return model, optimizer

    def keep(self, objects: Mapping[str, Any]) -> None:
        """Keep the extra arguments of restore(), such as schedulers, for checkpoints."""
        self._extra = dict(objects)

    def serve(
        self,
        checkpoints: Checkpoints | DisabledCheckpoints,
        link: AgentLink | NoAgent,
        heart: HeartbeatWriter,
    ) -> NoReturn:
        spec = self._strategy.sync.parameter_server
        own = shares(self._named, self._here.servers)[self._index]
        optimizer = restricted(self._optimizer, own)
        ratio = LearningRate(trust_ratio=self._strategy.learning_rate.trust_ratio)
        largebatch.apply(optimizer, ratio, None, lambda: 0)
        share = Share(own, optimizer, self._path(f"server-{self._index}"), self._here.workers)
        discovery, places = self._discovery, 2 * (self._here.workers + self._here.servers) + SPARE_PLACES
        assert discovery.listener is not None
        self._server = server = Server(share, discovery.listener, discovery.secret, spec, places)
        server.handle(SendProgress, self._receive_progress)
        self._progress = ServerProgress(heart, link, server, self._dropped)
        heart.phase = "serve"
        heart.write()
        if self._index == 0:
            loop = self._chief_loop(checkpoints, link)
            server.start()
            loop.run()
        else:
            server.start()
            with server.changed:
                while not server.changed.wait_for(lambda: server.is_over, BEAT_SECONDS):
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
            figures |= {"clocks": ledger.clocks, "dropped": ledger.dropped, "most_ahead": ledger.ahead}
        print(f"ropeteam: all workers have left: {json.dumps(figures)}", file=sys.stderr, flush=True)

    def _chief_loop(
        self, checkpoints: Checkpoints | DisabledCheckpoints, link: AgentLink | NoAgent
    ) -> ChiefLoop:
        spec, workers = self._strategy.sync.parameter_server, self._here.workers
        job_rules = rules.rules(spec, workers, checkpoints.every_steps)
        full_model = FullModel(self._named, self._model, self._optimizer, self._here.servers)
        self._chief = Chief(full_model, self._server, self._call, job_rules, self._path("ledger"))
        return ChiefLoop(self._chief, self._extra, checkpoints, link, self._progress, self._discovery.alive)

    def _dropped(self) -> int | None:
        return self._chief.ledger.dropped if self._index == 0 else None

    def _receive_progress(self, progress: SendProgress, _: bytearray) -> tuple[Done, bytes]:
        self._progress.reached(progress.step)
        if progress.drained:
            self._progress.drained(progress.step)
        return Done(), b""

    def _call(self, index: int, request: Request[A], payload: bytes = b"") -> tuple[A, bytes]:
        if index not in self._lines:
            self._lines[index] = Line(
                index, self._discovery.addresses, self._discovery.secret, self._discovery.alive
            )
        return self._lines[index].call(request, [payload] if payload else [])

    def _path(self, name: str) -> Path | None:
        return self._folder / name if self._folder else None
