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
from ropeteam_trainer.strategies.parameterserver import ledger as ledgers
from ropeteam_trainer.strategies.parameterserver.doublebuffer import DoubleBuffer, write_atomically
from ropeteam_trainer.strategies.parameterserver.ledger import (
    Ledger,
    PushGrant,
    PushRequest,
    Rules,
    StepClosed,
)
from ropeteam_trainer.strategies.parameterserver.payloads import packed, unpacked
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
from ropeteam_trainer.strategies.parameterserver.service import Server, check_worker
from ropeteam_trainer.strategies.parameterserver.share import content_of, shares_by_server

A = TypeVar("A")


class Call(Protocol):
    """Send a request to the server `index` and return its answer, with the answer's payload."""

    def __call__(self, index: int, request: Request[A], payload: bytes = b"") -> tuple[A, bytes]: ...


@dataclasses.dataclass(frozen=True)
class FullModel:
    """The script's full model and optimizer, which only the chief needs: for the initial weights and
    checkpoints. Its own share is a part of it; other parameters have old values between checkpoints."""

    named: dict[str, nn.Parameter]
    """All parameters of the model, by name."""
    model: nn.Module
    optimizer: Optimizer
    servers: int


class Chief:
    """Handlers of workers' requests to the chief, and operations on all servers. `changed`, the server's
    condition, guards the ledger, the decisions and the workers' states. Order: can_continue(), else
    begin_generation()."""

    def __init__(
        self, full: FullModel, server: Server, call: Call, job_rules: Rules, path: Path | None
    ) -> None:
        """Continues with the ledger in `path`, if that exists, and the workers' states beside it. None: both
        are lost with the process. Adds its handlers to `server`, which has not been started."""
        self.full, self.server, self._call, self._rules, self._path = full, server, call, job_rules, path
        self.changed: threading.Condition = server.changed
        self._decisions: dict[PushRequest, ledgers.Decision] = {}
        """Decisions for handlers that wait for them; one per worker at most."""
        self._world_ids: dict[int, tuple[int, ...]] = {}
        """World of each worker's newest process."""
        self._stored = DoubleBuffer.open_existing(path)
        """Buffer whose record is the ledger. None: it was never stored."""
        self.ledger = ledgers.new_ledger(job_rules)
        self.worker_states: dict[int, bytes] = {}
        """Each worker's own state, as packed by the worker."""
        if self._stored is not None:
            self.ledger = dataclasses.replace(codec.decode(Ledger, self._stored.record), rules=job_rules)
            paths = {worker: self._state_path(worker) for worker in range(job_rules.workers)}
            self.worker_states = {n: path.read_bytes() for n, path in paths.items() if path.exists()}
        server.add_handler(Register, self._register)
        server.add_handler(RequestStep, self._decide_step)
        server.add_handler(ReportStep, self._record_step)
        server.add_handler(Deregister, self._deregister)

    # ---- the start

    def can_continue(self) -> bool:
        """Whether all servers have the state of one server generation, and the chief its ledger, so that
        training continues from memory. Waits for all servers."""
        own = self.server.share.generation
        others = (self._call(i, FetchGeneration())[0].generation for i in range(1, self.full.servers))
        return own is not None and self._stored is not None and all(other == own for other in others)

    def begin_generation(self, ledger: Ledger, worker_states: Sequence[bytes]) -> None:
        """Begin a server generation: send each server its share of this process's full model and optimizer,
        then store the ledger. A chief that dies before that begins another generation. worker_states: of each
        worker."""
        self.ledger = ledger
        for worker, state in enumerate(worker_states):
            self._store_worker_state(worker, state)
        generation = secrets.token_hex(8)
        content = content_of(self.full.named, self.full.optimizer)
        for index, part in enumerate(shares_by_server(self.full.named, self.full.servers)):
            part_content = {name: content[name] for name in part}
            if index:
                self._call(index, ReplaceShare(generation), packed(part_content))
            else:
                self.server.share.replace_content(part_content, generation)
        self.full.optimizer.state.clear()
        self._store_ledger()

    # ---- checkpoints

    def gather_full_model(self) -> None:
        """Fetch all servers' shares into the full model and optimizer. Only while the ledger is quiescent:
        then all have applied the same gradients. Call release_optimizer_state() after the checkpoint."""
        state = self.full.optimizer.state
        for index in range(self.full.servers):
            content = self.server.share.content()
            if index:
                content = unpacked(self._call(index, FetchShare())[1])
            for name, parts in content.items():
                p = self.full.named[name]
                if index:  # the chief's own parameters are in its share already
                    p.data = parts[""]
                if parameter_state := {key: value for key, value in parts.items() if key}:
                    state[p] = parameter_state

    def release_optimizer_state(self) -> None:
        """Drop the full model's optimizer state, whose memory only a checkpoint needs."""
        self.full.optimizer.state.clear()

    def update_ledger(self, change: Callable[[Ledger], Ledger]) -> None:
        """Change the ledger, decide the requests that can be decided now, store the ledger, and wake the
        handlers that wait for a decision. The caller holds the condition."""
        self.ledger, decided = ledgers.decide_requests(change(self.ledger))
        self._decisions |= dict(decided)
        self._store_ledger()
        self.changed.notify_all()

    def send_to_others(self, request: Request[Done]) -> None:
        """Send a request to each server but the chief, one after the other; waits for their answers."""
        for index in range(1, self.full.servers):
            self._call(index, request)

    # ---- requests of workers

    def _sender(self, request: FromWorker[Any]) -> int:
        """Number of the worker that sent a request, whose world is recorded. Raises DecodeError for an
        unknown worker, ConnectionError for a process that has been replaced: its pod may be partitioned from
        all but this server.
        """
        worker, world_id = request.worker, request.world_id
        check_worker(worker, self._rules.workers)
        if world_id < self._world_ids.get(worker, ()):
            raise ConnectionError(
                f"worker {worker} has a newer process, of world {self._world_ids[worker]}, than world "
                f"{world_id}"
            )
        self._world_ids[worker] = world_id
        return worker

    def _register(self, request: Register, _: bytearray) -> tuple[Registered, bytes]:
        """Add the worker to the ledger, once the server is ready; the answer carries the worker's own
        state."""
        worker = self._sender(request)
        with self.changed:
            self.changed.wait_for(lambda: self.server.is_ready)
            self.update_ledger(lambda ledger: ledgers.with_worker(ledger, worker))
            clock = self.ledger.clocks[worker]
            return Registered(clock, self.server.share.generation), self.worker_states[worker]

    def _decide_step(self, request: RequestStep, _: bytearray) -> tuple[PushDecision | SkipDecision, bytes]:
        """Wait until the request is decided. Raises ConnectionError if the worker repeats it meanwhile: then
        the handler of the later request answers."""
        push_request = PushRequest(self._sender(request), request.n)
        with self.changed:
            self._decisions = {
                other: decision
                for other, decision in self._decisions.items()
                if other.worker != push_request.worker
            }
            self.update_ledger(lambda ledger: ledgers.with_request(ledger, push_request))
            self.changed.wait_for(
                lambda: push_request in self._decisions or push_request not in self.ledger.waiting
            )
            match self._decisions.get(push_request):
                case PushGrant(n, of):
                    return PushDecision(n, of), b""
                case StepClosed(to):
                    return SkipDecision(to), b""
        raise ConnectionError("this worker has repeated its request on another connection")

    def _record_step(self, request: ReportStep, payload: bytearray) -> tuple[Done, bytes]:
        """Store the worker's state, then its clock: WorkerClient.join() repairs a clock that is behind the
        state."""
        worker = self._sender(request)
        with self.changed:
            self._store_worker_state(worker, bytes(payload))
            self.update_ledger(lambda ledger: ledgers.with_clock(ledger, worker, request.clock))
        return Done(), b""

    def _deregister(self, request: Deregister, _: bytearray) -> tuple[Done, bytes]:
        """Remove the worker from the ledger: its script has ended."""
        worker = self._sender(request)
        with self.changed:
            self.update_ledger(lambda ledger: ledgers.without_worker(ledger, worker))
        return Done(), b""

    def _store_worker_state(self, worker: int, state: bytes) -> None:
        """Replace the worker's state, in memory and in its file."""
        self.worker_states[worker] = state
        if self._path is not None:
            write_atomically(self._state_path(worker), state)

    def _state_path(self, worker: int) -> Path:
        assert self._path is not None
        return self._path.with_name(f"worker-{worker}")

    def _store_ledger(self) -> None:
        """Store the ledger without waiting requests: workers repeat these after a restart of the chief."""
        durable = codec.encode(dataclasses.replace(self.ledger, waiting=()))
        if self._stored is None:
            self._stored = DoubleBuffer(self._path)
            self._stored.rebuild({}, durable)
        else:
            self._stored.begin_draft()  # of no tensors: only the record changes
            self._stored.commit(durable)
