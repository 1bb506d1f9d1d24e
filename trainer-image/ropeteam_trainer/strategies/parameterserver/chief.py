"""Chief, the first of the parameter servers: it keeps the ledger, and saves for all of them.

Each decision is written to memory that outlives the process before it is sent. A worker's own state (data
position, random generators, schedulers, buffers) is reported with each finished gradient and sent to the
process that replaces it.
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import nn
from torch.optim import Optimizer

from ropeteam_trainer.contract import codec
from ropeteam_trainer.strategies.parameterserver import ledger as rules
from ropeteam_trainer.strategies.parameterserver.doublebuffer import DoubleBuffer, remember
from ropeteam_trainer.strategies.parameterserver.ledger import Ask, Ledger, Push, Rules, Skip
from ropeteam_trainer.strategies.parameterserver.requests import (
    Deregister,
    Done,
    FetchGeneration,
    FetchShare,
    FromWorker,
    PushDecision,
    Register,
    Registered,
    ReplaceShare,
    ReportStep,
    Request,
    RequestStep,
    SkipDecision,
)
from ropeteam_trainer.strategies.parameterserver.service import Server, check_worker, packed, unpacked
from ropeteam_trainer.strategies.parameterserver.share import content_of, shares

A = TypeVar("A")


class Call(Protocol):
    """Request to the server `index`."""

    def __call__(self, index: int, request: Request[A], payload: bytes = b"") -> tuple[A, bytes]: ...


@dataclasses.dataclass(frozen=True)
class FullModel:
    """The script's full model and optimizer; the chief's own share is a part of it."""

    named: dict[str, nn.Parameter]
    model: nn.Module
    optimizer: Optimizer
    servers: int


class Chief:
    def __init__(
        self, full: FullModel, server: Server, call: Call, job_rules: Rules, path: Path | None
    ) -> None:
        self.full, self.server, self._call, self._rules, self._path = full, server, call, job_rules, path
        self.changed: threading.Condition = server.changed
        self._decisions: dict[Ask, rules.Answer] = {}
        self._world_ids: dict[int, tuple[int, ...]] = {}
        """World of each worker's newest process."""
        self._stored = DoubleBuffer.found(path)
        self.ledger = rules.opened(job_rules)
        self.worker_states: dict[int, bytes] = {}
        if self._stored is not None:
            self.ledger = dataclasses.replace(codec.decode(Ledger, self._stored.record), rules=job_rules)
            paths = {worker: self._state_path(worker) for worker in range(job_rules.workers)}
            self.worker_states = {n: path.read_bytes() for n, path in paths.items() if path.exists()}
        server.handle(Register, self._register)
        server.handle(RequestStep, self._decide_step)
        server.handle(ReportStep, self._record_step)
        server.handle(Deregister, self._deregister)

    # ---- the start

    def goes_on(self) -> bool:
        """Whether all servers have state of one generation, and the chief its ledger."""
        own = self.server.share.generation
        others = (self._call(i, FetchGeneration())[0].generation for i in range(1, self.full.servers))
        return own is not None and self._stored is not None and all(other == own for other in others)

    def begin(self, ledger: Ledger, worker_states: Sequence[bytes]) -> None:
        """Start a new generation: distribute this process's full model to all servers."""
        self.ledger = ledger
        for worker, state in enumerate(worker_states):
            self._store_worker_state(worker, state)
        generation = secrets.token_hex(8)
        content = content_of(self.full.named, self.full.optimizer)
        for index, part in enumerate(shares(self.full.named, self.full.servers)):
            part_content = {name: content[name] for name in part}
            if index:
                self._call(index, ReplaceShare(generation), packed(part_content))
            else:
                self.server.share.take(part_content, generation)
        self.full.optimizer.state.clear()
        self._store_ledger()

    # ---- checkpoints

    def gather(self) -> None:
        """Collect all servers' shares in the full model and optimizer. Only while the ledger is quiet."""
        state = self.full.optimizer.state
        for index in range(self.full.servers):
            content = self.server.share.content()
            if index:
                content = unpacked(self._call(index, FetchShare())[1])
            for name, parts in content.items():
                p = self.full.named[name]
                if index:
                    p.data = parts[""]
                if held := {key: value for key, value in parts.items() if key}:
                    state[p] = held

    def scatter(self) -> None:
        """Release the optimizer state that was collected."""
        self.full.optimizer.state.clear()

    def judge(self, change: Callable[[Ledger], Ledger]) -> None:
        """Change the ledger, decide what can be decided, store it. The caller holds the condition."""
        self.ledger, decided = rules.answers(change(self.ledger))
        self._decisions |= dict(decided)
        self._store_ledger()
        self.changed.notify_all()

    def send_to_others(self, request: Request[Done]) -> None:
        for index in range(1, self.full.servers):
            self._call(index, request)

    # ---- requests of workers

    def _sender(self, request: FromWorker[Any]) -> int:
        """Worker that sent a request. Raises ConnectionError for a process that has been replaced: its pod
        may be partitioned from all but this server. Raises DecodeError.
        """
        worker, world_id = request.worker, request.world_id
        check_worker(worker, self._rules.workers)
        if world_id < self._world_ids.get(worker, ()):
            raise ConnectionError(f"worker {worker} has a newer process than that of world {world_id}")
        self._world_ids[worker] = world_id
        return worker

    def _register(self, request: Register, _: bytearray) -> tuple[Registered, bytes]:
        worker = self._sender(request)
        with self.changed:
            self.changed.wait_for(lambda: self.server.is_ready)
            self.judge(lambda ledger: rules.join(ledger, worker))
            clock = self.ledger.clocks[worker]
            return Registered(clock, self.server.share.generation), self.worker_states[worker]

    def _decide_step(self, request: RequestStep, _: bytearray) -> tuple[PushDecision | SkipDecision, bytes]:
        ask = Ask(self._sender(request), request.n)
        with self.changed:
            self._decisions = {a: answer for a, answer in self._decisions.items() if a.worker != ask.worker}
            self.judge(lambda ledger: rules.ask(ledger, ask))
            self.changed.wait_for(lambda: ask in self._decisions or ask not in self.ledger.waiting)
            match self._decisions.get(ask):
                case Push(n, of):
                    return PushDecision(n, of), b""
                case Skip(to):
                    return SkipDecision(to), b""
        raise ConnectionError("this worker has repeated its request on another connection")

    def _record_step(self, request: ReportStep, payload: bytearray) -> tuple[Done, bytes]:
        worker = self._sender(request)
        with self.changed:
            self._store_worker_state(worker, bytes(payload))
            self.judge(lambda ledger: rules.done(ledger, worker, request.clock))
        return Done(), b""

    def _deregister(self, request: Deregister, _: bytearray) -> tuple[Done, bytes]:
        worker = self._sender(request)
        with self.changed:
            self.judge(lambda ledger: rules.leave(ledger, worker))
        return Done(), b""

    def _store_worker_state(self, worker: int, state: bytes) -> None:
        self.worker_states[worker] = state
        if self._path is not None:
            remember(self._state_path(worker), state)

    def _state_path(self, worker: int) -> Path:
        assert self._path is not None
        return self._path.with_name(f"worker-{worker}")

    def _store_ledger(self) -> None:
        durable = codec.encode(dataclasses.replace(self.ledger, waiting=()))
        if self._stored is None:
            self._stored = DoubleBuffer(self._path)
            self._stored.rebuild({}, durable)
        else:
            self._stored.draft()
            self._stored.commit(durable)
