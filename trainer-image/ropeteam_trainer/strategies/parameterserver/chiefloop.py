"""Loop of the chief, until all workers have left.

It continues a server generation from memory, or begins one (from a checkpoint, or with the script's initial
weights); then it saves, drains, and sends the other servers the job's progress and its end.
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
from ropeteam_trainer.strategies.parameterserver import ledger as ledgers
from ropeteam_trainer.strategies.parameterserver.chief import Chief
from ropeteam_trainer.strategies.parameterserver.hyperparameters import (
    hyperparameters_of,
    set_hyperparameters,
)
from ropeteam_trainer.strategies.parameterserver.ledger import Ledger
from ropeteam_trainer.strategies.parameterserver.payloads import packed, unpacked
from ropeteam_trainer.strategies.parameterserver.requests import EndServing, SendProgress
from ropeteam_trainer.strategies.parameterserver.serverprogress import ServerProgress

POLL_SECONDS = 0.1
"""Interval at which the chief checks whether a save or a drain is due, and writes a heartbeat."""


class PerWorkerState:
    """Part of a checkpoint that differs between workers: their clocks, and each one's own state."""

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
    """The chief's work beside requests; in the script's thread."""

    def __init__(
        self,
        chief: Chief,
        extra: Mapping[str, Any],
        checkpoints: Checkpoints | DisabledCheckpoints,
        link: AgentLink | NoAgent,
        progress: ServerProgress,
        serve_phase: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """extra: the script's further objects, such as schedulers. serve_phase: context in which the chief
        counts neither as slow nor as hung, for saves."""
        self._chief, self._extra, self._checkpoints, self._link = chief, extra, checkpoints, link
        self._progress, self._serve_phase = progress, serve_phase
        self._model, self._optimizer = chief.full.model, chief.full.optimizer
        self._per_worker, self._saved_at = PerWorkerState(), time.monotonic()
        objects = {"model": self._model, "optimizer": self._optimizer, **extra}
        checkpoints.register(objects, {"parameter_servers": self._per_worker})

    def run(self) -> None:
        """Run until the script of every worker has ended and no push is in flight; returns after the other
        servers have received that. A drain does not return: it ends with the process."""
        chief = self._chief
        if not chief.can_continue():
            self._begin_generation()
        chief.server.set_ready()
        sent_progress = -1
        while not chief.ledger.all_finished or chief.ledger.granted:
            with chief.changed:
                chief.changed.wait_for(
                    lambda: chief.ledger.is_quiescent or chief.ledger.all_finished, POLL_SECONDS
                )
                progress = chief.ledger.progress
            self._save_if_due()
            self._drain_if_requested()
            self._progress.heart.write()
            if progress != sent_progress:
                sent_progress = progress
                self._progress.report_step(progress)
                chief.send_to_others(SendProgress(progress, drained=False))
        chief.send_to_others(EndServing())

    # ---- the start

    def _begin_generation(self) -> None:
        """Begin a server generation with the newest checkpoint, or without one. A checkpoint of as many
        workers has the state of each; else all workers begin with one state, that of the checkpoint's
        step."""
        restored = self._checkpoints.restore(self._progress.heart)
        job_rules = self._chief.ledger.rules
        common: dict[str, Any] = {"buffers": dict(self._model.named_buffers()), "clock": 0}
        ledger = ledgers.new_ledger(job_rules)
        if restored is not None:
            others = {name: obj.state_dict() for name, obj in self._extra.items()}
            common |= {"data": restored.data, "values": hyperparameters_of(self._optimizer), "others": others}
            common["clock"] = restored.step
            ledger = ledgers.new_ledger(job_rules, tuple(self._per_worker.clocks), restored.step)
        same_workers = len(self._per_worker.workers) == job_rules.workers
        states = self._per_worker.workers if same_workers else [packed(common)] * job_rules.workers
        self._chief.begin_generation(ledger, states)

    # ---- checkpoints

    def _save_if_due(self) -> None:
        """Quiesce if a save by time is due (the ledger does so for steps); save once the ledger is quiescent,
        and let workers continue."""
        chief = self._chief
        every_seconds = self._checkpoints.every_seconds
        if every_seconds is not None and time.monotonic() - self._saved_at >= every_seconds:
            with chief.changed:
                chief.update_ledger(ledgers.quiescing)
        with chief.changed:
            if not chief.ledger.is_quiescent:
                return
            with self._serve_phase():
                self._save()
            chief.update_ledger(ledgers.resumed)

    def _save(self) -> None:
        """Save a checkpoint of the ledger's progress, unless that is saved. The ledger is quiescent, and the
        caller holds the condition.

        The model's buffers, the data position and schedulers are those of one worker, whose clock is nearest
        to the progress.
        """
        self._saved_at = time.monotonic()
        chief, ledger = self._chief, self._chief.ledger
        if not self._checkpoints.is_unsaved(ledger.progress):
            return
        chief.gather_full_model()
        reported = (unpacked(chief.worker_states[worker]) for worker in _workers_by_distance(ledger))
        state = _nearest_state(reported, ledger.progress)
        set_hyperparameters(self._optimizer, state.get("values"))
        for name, obj in self._extra.items():
            if name in state.get("others", {}):
                obj.load_state_dict(state["others"][name])
        with torch.no_grad():
            for name, buffer in self._model.named_buffers():
                buffer.copy_(state["buffers"][name])
        self._per_worker.clocks = list(ledger.clocks)
        self._per_worker.workers = [chief.worker_states[w] for w in range(ledger.rules.workers)]
        self._checkpoints.save(ledger.progress, state.get("data"))
        chief.release_optimizer_state()

    # ---- drain

    def _drain_if_requested(self) -> None:
        """If a drain is requested and all active workers have reached its step: quiesce, save, and do not
        return. Else return, to be called again."""
        chief, link = self._chief, self._link
        stop_at = link.stop_at if link.paused else None
        if stop_at is None:
            return
        with chief.changed:
            ledger = chief.ledger
            if min((ledger.clocks[worker] for worker in ledger.active), default=stop_at) < stop_at:
                return
            chief.update_ledger(ledgers.quiescing)
            if not chief.ledger.is_quiescent:
                return
            with self._serve_phase():
                self._save()
            progress = chief.ledger.progress
        self._report_drained_and_wait(progress)

    def _report_drained_and_wait(self, step: int) -> NoReturn:
        """Wait until the checkpoint is written, report the drain as complete on all servers, and wait to be
        killed."""
        with self._serve_phase():
            self._checkpoints.wait()
        self._progress.report_step(step)
        self._chief.send_to_others(SendProgress(step, drained=True))
        self._progress.report_drained(step)
        wait_to_be_killed()


def _workers_by_distance(ledger: Ledger) -> list[int]:
    """Workers, those whose clock is nearest to the job's progress first."""
    distances = [abs(clock - ledger.progress) for clock in ledger.clocks]
    return sorted(range(ledger.rules.workers), key=distances.__getitem__)


def _nearest_state(reported: Iterator[dict[str, Any]], progress: int) -> dict[str, Any]:
    """The first state reported at `progress`; if there is none, the one nearest to it: a worker that was just
    made to skip has not reported since. The rest of `reported` is not read."""
    states = []
    for state in reported:
        if state.get("clock", progress) == progress:
            return state
        states.append(state)
    return min(states, key=lambda state: abs(state["clock"] - progress))
