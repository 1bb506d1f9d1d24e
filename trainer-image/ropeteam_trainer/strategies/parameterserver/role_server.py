"""Role of a server: instead of training, it handles requests until all workers have left.

The chief does more: it starts a server generation (from memory, from a checkpoint, or with its own initial
weights), saves, and sends the others the job's progress and its end.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from ropeteam_trainer.checkpoint.saving import Checkpoints
from ropeteam_trainer.contract.local import FromRank, Served
from ropeteam_trainer.contract.strategy import LearningRate, Strategy
from ropeteam_trainer.rank.agentlink import AgentLink, HeartbeatWriter, wait_to_be_killed
from ropeteam_trainer.strategies import largebatch, wrap
from ropeteam_trainer.strategies.model.naming import named_parameters
from ropeteam_trainer.strategies.parameterserver import ledger as rules
from ropeteam_trainer.strategies.parameterserver.chief import Chief, FullModel
from ropeteam_trainer.strategies.parameterserver.client import Line
from ropeteam_trainer.strategies.parameterserver.discovery import BEAT_SECONDS, Discovery, Place
from ropeteam_trainer.strategies.parameterserver.ledger import Ledger
from ropeteam_trainer.strategies.parameterserver.requests import Done, EndServing, Request, SendProgress
from ropeteam_trainer.strategies.parameterserver.service import Server, packed, unpacked
from ropeteam_trainer.strategies.parameterserver.share import Share, put_values, restricted, shares, values_of

A = TypeVar("A")

TELL_SECONDS = 1.0
"""Minimum interval between reports of metrics to the agent."""
SPARE_PLACES = 16
"""Unauthenticated connections allowed beyond two for each rank."""
LOOK_SECONDS = 0.1
"""How often the chief checks whether a timed save or a drain is due."""


class Kept:
    """State in a checkpoint that differs between workers: clocks, and each worker's own state."""

    def __init__(self) -> None:
        self.clocks: list[int] = []
        self.workers: list[bytes] = []

    def state_dict(self) -> dict[str, Any]:
        states = [torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in self.workers]
        return {"clocks": list(self.clocks), "workers": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.clocks = list(state["clocks"])
        self.workers = [bytes(tensor.numpy()) for tensor in state["workers"]]


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
        self._next_report = 0.0
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
        self, checkpoints: Checkpoints | None, link: AgentLink | None, heart: HeartbeatWriter
    ) -> NoReturn:
        self._checkpoints, self._link, self._heart = checkpoints, link, heart
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
        heart.phase = "serve"
        heart.write()
        if self._index == 0:
            self._lead(server)
        else:
            server.start()
            with server.changed:
                while not server.changed.wait_for(lambda: server.is_over, BEAT_SECONDS):
                    heart.write()
        server.close()
        if link is not None:
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

    # ---- the chief

    def _lead(self, server: Server) -> None:
        config = self._checkpoints.config if self._checkpoints else None
        job_rules = rules.rules(
            self._strategy.sync.parameter_server, self._here.workers, config.every_steps if config else None
        )
        full_model = FullModel(self._named, self._model, self._optimizer, self._here.servers)
        self._chief = chief = Chief(full_model, server, self._call, job_rules, self._path("ledger"))
        self._kept, self._saved_at = Kept(), time.monotonic()
        if self._checkpoints is not None:
            objects = {"model": self._model, "optimizer": self._optimizer, **self._extra}
            self._checkpoints.register(objects, {"parameter_servers": self._kept})
        server.start()
        if not chief.goes_on():
            self._begin()
        server.ready()
        sent_progress = -1
        while not chief.ledger.over or chief.ledger.allowed:
            with chief.changed:
                chief.changed.wait_for(lambda: chief.ledger.quiet or chief.ledger.over, LOOK_SECONDS)
                progress = chief.ledger.progress
            self._save_if_due(every_seconds=config.every_seconds if config else None)
            self._drain_if_requested()
            self._heart.write()
            if progress != sent_progress:
                sent_progress = progress
                self._beat(progress)
                self._send_to_others(SendProgress(progress, drained=False))
        self._send_to_others(EndServing())

    def _begin(self) -> None:
        restored = None
        if self._checkpoints is not None:
            with self._heart.during("restore"):
                restored = self._checkpoints.restore(self._heart.write)
        job_rules = self._chief.ledger.rules
        first: dict[str, Any] = {"buffers": dict(self._model.named_buffers()), "clock": 0}
        ledger = rules.opened(job_rules)
        if restored is not None:
            others = {name: thing.state_dict() for name, thing in self._extra.items()}
            first |= {"data": restored.data, "values": values_of(self._optimizer), "others": others}
            first["clock"] = restored.step
            ledger = rules.opened(job_rules, tuple(self._kept.clocks), restored.step)
        same_workers = len(self._kept.workers) == job_rules.workers
        states = self._kept.workers if same_workers else [packed(first)] * job_rules.workers
        self._chief.begin(ledger, states)

    def _save_if_due(self, every_seconds: int | None) -> None:
        chief = self._chief
        if every_seconds is not None and time.monotonic() - self._saved_at >= every_seconds:
            self._cut()
        with chief.changed:
            if not chief.ledger.quiet:
                return
            with self._discovery.alive():
                self._save()
            chief.judge(rules.resume)

    def _cut(self) -> None:
        with self._chief.changed:
            self._chief.judge(rules.cut)

    def _save(self) -> None:
        """Save a checkpoint, while no push is in flight. The caller holds the condition."""
        self._saved_at = time.monotonic()
        if self._checkpoints is None:
            return
        chief, ledger = self._chief, self._chief.ledger
        chief.gather()
        reported = (unpacked(chief.worker_states[worker]) for worker in _by_progress(ledger))
        state = _nearest(reported, ledger.progress)
        put_values(self._optimizer, state.get("values"))
        for name, thing in self._extra.items():
            if name in state.get("others", {}):
                thing.load_state_dict(state["others"][name])
        with torch.no_grad():
            for name, buffer in self._model.named_buffers():
                buffer.copy_(state["buffers"][name])
        self._kept.clocks = list(ledger.clocks)
        self._kept.workers = [chief.worker_states[w] for w in range(ledger.rules.workers)]
        self._checkpoints.save(ledger.progress, state.get("data"))
        chief.scatter()

    # ---- drain

    def _drain_if_requested(self) -> None:
        """Drain once all workers have reached the step to stop at: save, and wait to be killed."""
        chief, link = self._chief, self._link
        stop_at = link.stop_at if link is not None and link.paused else None
        if stop_at is None:
            return
        with chief.changed:
            ledger = chief.ledger
            if min((ledger.clocks[worker] for worker in ledger.active), default=stop_at) < stop_at:
                return
            chief.judge(rules.cut)
            if not chief.ledger.quiet:
                return
            with self._discovery.alive():
                self._save()
            progress = chief.ledger.progress
        if self._checkpoints is not None:
            with self._discovery.alive():
                self._checkpoints.wait()
        self._beat(progress)
        self._send_to_others(SendProgress(progress, drained=True))
        self._report_drained_and_wait(progress)

    def _receive_progress(self, progress: SendProgress, _: bytearray) -> tuple[Done, bytes]:
        self._beat(progress.step)
        if progress.drained and self._link is not None:
            self._link.send(FromRank(drained=progress.step))
        return Done(), b""

    def _report_drained_and_wait(self, step: int) -> NoReturn:
        assert self._link is not None
        self._link.send(FromRank(drained=step))
        wait_to_be_killed()

    # ---- heartbeats, connections

    def _beat(self, step: int) -> None:
        self._heart.steps_here += max(step - self._heart.step, 0)
        self._heart.step = step
        self._heart.write()
        if self._link is not None and time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + TELL_SECONDS
            self._link.send(FromRank(served=self._served()))

    def _served(self) -> Served:
        dropped = self._chief.ledger.dropped if self._index == 0 else None
        with self._server.changed:  # gradients are counted in other threads
            stale = dict(self._server.staleness)
        return Served(sum(stale.values()), sum(steps * often for steps, often in stale.items()), dropped)

    def _call(self, index: int, request: Request[A], payload: bytes = b"") -> tuple[A, bytes]:
        if index not in self._lines:
            self._lines[index] = Line(
                index, self._discovery.addresses, self._discovery.secret, self._discovery.alive
            )
        return self._lines[index].call(request, [payload] if payload else [])

    def _send_to_others(self, request: Request[Done]) -> None:
        for index in range(1, self._here.servers):
            self._call(index, request)

    def _path(self, name: str) -> Path | None:
        return self._folder / name if self._folder else None


def _by_progress(ledger: Ledger) -> list[int]:
    """Workers, nearest to the job's progress first: a checkpoint takes its data position from one of them."""
    distances = [abs(clock - ledger.progress) for clock in ledger.clocks]
    return sorted(range(ledger.rules.workers), key=distances.__getitem__)


def _nearest(reported: Iterator[dict[str, Any]], progress: int) -> dict[str, Any]:
    """State reported at `progress`, or next to it: a worker that just got a skip has not reported since."""
    states = []
    for state in reported:
        if state.get("clock", progress) == progress:
            return state
        states.append(state)
    return min(states, key=lambda state: abs(state["clock"] - progress))
