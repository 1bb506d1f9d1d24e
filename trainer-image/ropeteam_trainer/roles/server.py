"""Role of a parameter server: instead of training, it handles requests until all workers have left.

The script runs as on a worker, up to its first batch, forward pass or report: there the server serves, and
then ends the script with SystemExit(0), whatever the rest of it. Server 0 is the chief: it keeps the ledger,
saves for all servers, and ends the others (strategies/parameterserver/chief.py).
"""

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
from ropeteam_trainer.data.decisions.plan import Deal
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

SPARE_CONNECTIONS = 16
"""Unauthenticated connections allowed beyond those that the job needs at once."""


class ServerRole:
    """RankRole of a parameter server."""

    def __init__(self, session: Session, strategy: Strategy, folder: Path | None) -> None:
        """folder: in memory that outlives this process; None: the server's state is lost with it."""
        assert session.assignment.server_index is not None
        self._session, self._strategy, self._folder = session, strategy, folder
        self._assignment, self._index = session.assignment, session.assignment.server_index
        self.dp_rank, self.dp_size = session.assignment.rank, session.assignment.workers
        self.deal: Deal | None = None
        self._is_wrapped = False
        self._connections: dict[int, ServerConnection] = {}
        """The chief's connections to the other servers."""
        self._extra: dict[str, Any] = {}
        """Objects given to restore() beside model and optimizer."""

    # ---- calls of the script

    def wrap(
        self,
        model: Module,
        optimizer: Optimizer,
        _: wrap.LoopValues,
        __: Loss | None,
        ___: TensorPlan | None,
    ) -> tuple[Module, Optimizer]:
        """Check the settings, open the listener, and return both. The model gets a hook by which its first
        forward pass serves and never returns, so a script without batches() or report() before it works too.
        Raises StrategyError for a second call or wrong settings, OSError if the port is in use."""
        role.check_not_wrapped(self._is_wrapped)
        wrap.check_settings(self._strategy, optimizer, None)
        session = self._session
        self._discovery = Discovery(session.assignment, session.plan, session.link, session.heart)
        self._model, self._optimizer, self._named = model, optimizer, named_parameters([model])
        model.register_forward_pre_hook(lambda *_: self._serve_until_workers_left())
        self._is_wrapped = True
        return model, optimizer

    def restore(self, _: Any, __: Any, extra: Mapping[str, Any]) -> None:
        """Keep the further objects for checkpoints. Returns None, a fresh start: the chief restores when it
        serves."""
        self._extra = dict(extra)

    def enter_loop(self, _: str) -> None:
        """Serve until all workers have left: raises SystemExit(0). Raises StrategyError if wrap() was not
        called."""
        if not self._is_wrapped:
            raise role.not_wrapped_error()
        self._serve_until_workers_left()

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor:
        return role.clip_wrapped(None, max_norm)

    def leave(self) -> None:
        pass

    def release_model(self) -> None:
        pass

    # No step begins on a server.

    def steps_done_after(self, step: int) -> int:
        return step

    def after_step(self, step: int) -> None:
        pass

    def save_now(self, step: int, report: bool = True) -> None:
        pass

    def end_step(self, step: int, stops: bool = False) -> None:
        pass

    @property
    def follows(self) -> bool:
        """As RankRole.follows."""
        return False

    @property
    def has_all_ranks(self) -> bool:
        return True

    def measured_model(self) -> None:
        pass

    # ---- serving

    def _serve_until_workers_left(self) -> NoReturn:
        """Serve this rank's share until all workers have left, then end the script: raises SystemExit(0).
        After a drain it does not return either: the agent kills the process.

        Order: the share (from memory, if an earlier process left it there), the server, its handlers; on
        server 0 the Chief with its own, which counters read (`_dropped`); only then connections are accepted.
        The chief runs its loop; the others write heartbeats until it ends them.
        """
        link, heart, discovery = self._session.link, self._session.heart, self._discovery
        spec = self._strategy.sync.parameter_server
        own = shares_by_server(self._named, self._assignment.servers)[self._index]
        optimizer = restricted_optimizer(self._optimizer, own)
        # Workers apply the rate and the warm-up; servers have the mean gradients, so they apply LARS or LAMB.
        ratio_only = LearningRate(trust_ratio=self._strategy.learning_rate.trust_ratio)
        # without scaling and warm-up neither the batch nor the steps are read
        largebatch.adapt_optimizer(optimizer, ratio_only, global_batch=None, steps_done=lambda: 0)
        share = Share(own, optimizer, self._path(f"server-{self._index}"), self._assignment.workers)
        # All ranks connect at once; a worker connects to the chief twice.
        max_unauthenticated = 2 * (self._assignment.workers + self._assignment.servers) + SPARE_CONNECTIONS
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
        """Print the server's counters at the end, as JSON; on the chief those of the ledger too. Benchmarks
        read its keys (benchmarks/parameterserver.py)."""
        staleness = server.staleness
        figures: dict[str, Any] = {"server": self._index, "steps": server.share.version}
        if staleness:
            mean = sum(staleness.elements()) / staleness.total()
            figures |= {"most_stale": max(staleness), "mean_staleness": round(mean, 3)}
        if self._index == 0:
            ledger = self._chief.ledger
            figures |= {"clocks": ledger.clocks, "dropped": ledger.dropped, "most_ahead": ledger.max_ahead}
        notice(f"this parameter server has ended, as all workers have left: {json.dumps(figures)}")

    def _chief_loop(self) -> ChiefLoop:
        """Loop of this server as the chief. Creates the Chief (`_chief`), which adds its handlers to the
        server: before server.start()."""
        session, serve_phase = self._session, self._discovery.serve_phase
        spec, workers = self._strategy.sync.parameter_server, self._assignment.workers
        job_rules = ledgers.rules_of(spec, workers, session.checkpoints.every_steps)
        full_model = FullModel(self._named, self._model, self._optimizer, self._assignment.servers)
        self._chief = Chief(full_model, self._server, self._call, job_rules, self._path("ledger"))
        return ChiefLoop(
            self._chief, self._extra, session.checkpoints, session.link, self._progress, serve_phase
        )

    def _dropped(self) -> int | None:
        """Number of gradients that came too late for their step. None: not the chief, which alone knows.
        Called after _chief_loop()."""
        return self._chief.ledger.dropped if self._index == 0 else None

    def _receive_progress(self, progress: SendProgress, _: bytearray) -> tuple[Done, bytes]:
        """Handle the chief's report of the job's progress: write it to this server's heartbeat, and report a
        complete drain to the agent. In the thread of the chief's connection."""
        self._progress.report_step(progress.step)
        if progress.drained:
            self._progress.report_drained(progress.step)
        return Done(), b""

    def _call(self, index: int, request: Request[A], payload: bytes = b"") -> tuple[A, bytes]:
        """Send a request to the server `index`, over a connection that is opened by the first one. As
        chief.Call."""
        if index not in self._connections:
            discovery = self._discovery
            self._connections[index] = ServerConnection(
                index, discovery.addresses, discovery.secret, discovery.serve_phase
            )
        return self._connections[index].call(request, [payload] if payload else [])

    def _path(self, name: str) -> Path | None:
        """File of a part of the server's state. None: private memory."""
        return self._folder / name if self._folder else None
