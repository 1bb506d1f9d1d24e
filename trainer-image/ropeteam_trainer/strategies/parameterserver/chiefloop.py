"""Loop of the chief until all workers have left.

It starts a server generation (from memory, from a checkpoint, or with the script's initial weights), saves,
drains, and sends the other servers the job's progress and its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import torch

from ropeteam_trainer.checkpoint.disabled import DisabledCheckpoints
from ropeteam_trainer.checkpoint.saving import Checkpoints
from ropeteam_trainer.rank.agentlink import AgentLink, NoAgent, wait_to_be_killed
from ropeteam_trainer.strategies.parameterserver import ledger as rules
from ropeteam_trainer.strategies.parameterserver.chief import Chief
from ropeteam_trainer.strategies.parameterserver.ledger import Ledger
from ropeteam_trainer.strategies.parameterserver.requests import EndServing, SendProgress
from ropeteam_trainer.strategies.parameterserver.serverprogress import ServerProgress
from ropeteam_trainer.strategies.parameterserver.service import packed, unpacked
from ropeteam_trainer.strategies.parameterserver.share import put_values, values_of

POLL_SECONDS = 0.1
"""How often the chief checks whether a timed save or a drain is due."""


class PerWorkerState:
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


class ChiefLoop:
    """extra: the script's further objects, such as schedulers. alive: context in which the chief counts
    neither as slow nor as hung."""

    def __init__(
        self,
        chief: Chief,
        extra: Mapping[str, Any],
        checkpoints: Checkpoints | DisabledCheckpoints,
        link: AgentLink | NoAgent,
        progress: ServerProgress,
        alive: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._chief, self._extra, self._checkpoints, self._link = chief, extra, checkpoints, link
        self._progress, self._alive = progress, alive
        self._model, self._optimizer = chief.full.model, chief.full.optimizer
        self._per_worker, self._saved_at = PerWorkerState(), time.monotonic()
        objects = {"model": self._model, "optimizer": self._optimizer, **extra}
        checkpoints.register(objects, {"parameter_servers": self._per_worker})

    def run(self) -> None:
        chief = self._chief
        if not chief.goes_on():
            self._begin()
        chief.server.ready()
        sent_progress = -1
        while not chief.ledger.over or chief.ledger.allowed:
            with chief.changed:
                chief.changed.wait_for(lambda: chief.ledger.quiet or chief.ledger.over, POLL_SECONDS)
                progress = chief.ledger.progress
            self._save_if_due()
            self._drain_if_requested()
            self._progress.heart.write()
            if progress != sent_progress:
                sent_progress = progress
                self._progress.reached(progress)
                chief.send_to_others(SendProgress(progress, drained=False))
        chief.send_to_others(EndServing())

    # ---- the start

    def _begin(self) -> None:
        restored = self._checkpoints.restore(self._progress.heart)
        job_rules = self._chief.ledger.rules
        first: dict[str, Any] = {"buffers": dict(self._model.named_buffers()), "clock": 0}
        ledger = rules.opened(job_rules)
        if restored is not None:
            others = {name: thing.state_dict() for name, thing in self._extra.items()}
            first |= {"data": restored.data, "values": values_of(self._optimizer), "others": others}
            first["clock"] = restored.step
            ledger = rules.opened(job_rules, tuple(self._per_worker.clocks), restored.step)
        same_workers = len(self._per_worker.workers) == job_rules.workers
        states = self._per_worker.workers if same_workers else [packed(first)] * job_rules.workers
        self._chief.begin(ledger, states)

    # ---- checkpoints

    def _save_if_due(self) -> None:
        chief = self._chief
        every_seconds = self._checkpoints.every_seconds
        if every_seconds is not None and time.monotonic() - self._saved_at >= every_seconds:
            with chief.changed:
                chief.judge(rules.cut)
        with chief.changed:
            if not chief.ledger.quiet:
                return
            with self._alive():
                self._save()
            chief.judge(rules.resume)

    def _save(self) -> None:
        """Save a checkpoint, while no push is in flight. The caller holds the condition."""
        self._saved_at = time.monotonic()
        chief, ledger = self._chief, self._chief.ledger
        if not self._checkpoints.is_unsaved(ledger.progress):
            return
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
        self._per_worker.clocks = list(ledger.clocks)
        self._per_worker.workers = [chief.worker_states[w] for w in range(ledger.rules.workers)]
        self._checkpoints.save(ledger.progress, state.get("data"))
        chief.scatter()

    # ---- drain

    def _drain_if_requested(self) -> None:
        """Drain once all workers have reached the step to stop at: save, and wait to be killed."""
        chief, link = self._chief, self._link
        stop_at = link.stop_at if link.paused else None
        if stop_at is None:
            return
        with chief.changed:
            ledger = chief.ledger
            if min((ledger.clocks[worker] for worker in ledger.active), default=stop_at) < stop_at:
                return
            chief.judge(rules.cut)
            if not chief.ledger.quiet:
                return
            with self._alive():
                self._save()
            progress = chief.ledger.progress
        self._report_drained_and_wait(progress)

    def _report_drained_and_wait(self, step: int) -> NoReturn:
        with self._alive():
            self._checkpoints.wait()
        self._progress.reached(step)
        self._chief.send_to_others(SendProgress(step, drained=True))
        self._progress.drained(step)
        wait_to_be_killed()


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
