"""Ledger of the chief, the first of the parameter servers: decides which gradients are applied. Pure.

A worker sends a request before it pushes its n-th gradient; the decision is final, holds for all servers, and
survives a restart of any process. So servers that have different parts of the model apply the same gradients:

    worker                         chief                             servers
      | RequestStep(n) ----------------> |                                |
      | <-- PushGrant(n, of), StepClosed(to)                              |
      | PushGradient(n) ------------------------------------------------> | applied once
      | <---------------------------------------------------------------- | weights
      | ReportStep(clock = n + 1) -----> |                                |

Synchronous: step n is decided when all active workers but `backup` of them have sent a request; later ones
continue with the open step, and their gradients are dropped (backup workers). Asynchronous: each gradient
counts at once; with a bound a worker may be that many gradients ahead of the slowest one, then it waits.
Quiescing delays decisions until all granted pushes are done: then all servers have applied the same
gradients, and a checkpoint is consistent. It begins every `save_every` steps, or by quiescing().
Functions that change a ledger return a new one; none changes its argument.
Sources: Chen et al., "Revisiting Distributed Synchronous SGD", 2016 (backup workers); Ho et al., "More
Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NeurIPS 2013 (the bound).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ropeteam_trainer.contract.codec import stored_as
from ropeteam_trainer.contract.strategy import ParameterServer, ServerMode


@dataclass(frozen=True)
class Rules:
    """Rules by which the ledger decides, those of spec.strategy.sync.parameterServer."""

    workers: int
    synchronous: bool = True
    backup: int = 0
    """Synchronous: workers that a step does not wait for."""
    bound: int | None = None
    """Asynchronous: gradients that a worker may be ahead of the slowest one. None: no limit."""
    save_every: int | None = None
    """Steps between two checkpoints. None: only when quiescing() is called."""


@dataclass(frozen=True)
class PushRequest:
    """Request of a worker to push its n-th gradient (from 0)."""

    worker: int
    n: int


@dataclass(frozen=True)
class PushGrant:
    """Permission to push gradient `n` to all servers. A step is the mean of `of` gradients."""

    n: int
    of: int


@dataclass(frozen=True)
class StepClosed:
    """Refusal: the step was decided without this gradient; the worker continues with gradient `to`."""

    to: int


Decision = PushGrant | StepClosed


@dataclass(frozen=True)
class GrantedPush:
    """Granted push, possibly in flight: its worker has not reported it as done."""

    worker: int
    push: PushGrant


@dataclass(frozen=True)
class Ledger:
    """Names in JSON are those of earlier releases: the chief reads this from memory after a restart."""

    rules: Rules
    clocks: tuple[int, ...]
    """Gradients that are done, for each worker: applied by all servers, or dropped."""
    step: int = 0
    """Synchronous: the step that is open. Asynchronous: the step of the checkpoint that was resumed."""
    granted: tuple[GrantedPush, ...] = stored_as("allowed", ())
    waiting: tuple[PushRequest, ...] = ()
    """Requests without a decision yet, in order of arrival; one per worker."""
    finished: tuple[int, ...] = stored_as("left", ())
    """Workers whose script has ended."""
    dropped: int = 0
    """Gradients that came too late for their step, since the start of this server generation."""
    max_ahead: int = stored_as("ahead", 0)
    """Asynchronous: maximum number of gradients that a granted push was ahead of the slowest worker."""
    quiescing: bool = stored_as("cut", False)
    """No new pushes are granted until resumed()."""
    saved_progress: int = stored_as("saved", 0)
    """Progress when the ledger was last quiescent."""

    @property
    def active(self) -> tuple[int, ...]:
        """Workers whose script has not ended, in order."""
        return tuple(worker for worker in range(self.rules.workers) if worker not in self.finished)

    @property
    def slowest_clock(self) -> int:
        """Clock of the slowest active worker; of the slowest of all, once none is active."""
        return min(self.clocks[worker] for worker in self.active or range(self.rules.workers))

    @property
    def progress(self) -> int:
        """Steps of the job that are decided (synchronous) or done by every active worker (asynchronous)."""
        return self.step if self.rules.synchronous else self.slowest_clock

    @property
    def is_quiescent(self) -> bool:
        """Whether decisions are delayed and no push is in flight: save now, then call resumed()."""
        return self.quiescing and not self.granted

    @property
    def all_finished(self) -> bool:
        return not self.active


def rules_of(spec: ParameterServer, workers: int, save_every: int | None) -> Rules:
    """Rules of a manifest. A bound of 0 means Synchronous: no worker may be ahead of another."""
    bounded = spec.mode is ServerMode.BOUNDED_STALENESS
    synchronous = spec.mode is ServerMode.SYNCHRONOUS or (bounded and spec.staleness == 0)
    bound = spec.staleness if bounded and not synchronous else None
    return Rules(workers, synchronous, spec.backup_workers, bound, save_every)


def new_ledger(rules: Rules, clocks: tuple[int, ...] = (), step: int = 0) -> Ledger:
    """Ledger at `step`: 0, or that of a checkpoint with its clocks. If the checkpoint had another number of
    workers, all clocks are set to the step."""
    usable = len(clocks) == rules.workers
    return Ledger(rules, clocks if usable else (step,) * rules.workers, step, saved_progress=step)


def with_request(ledger: Ledger, request: PushRequest) -> Ledger:
    """Add a request; it replaces an earlier one of its worker, which may repeat it after a lost connection.
    Decide it with decide_requests()."""
    waiting = tuple(each for each in ledger.waiting if each.worker != request.worker)
    return replace(ledger, waiting=(*waiting, request))


def with_clock(ledger: Ledger, worker: int, clock: int) -> Ledger:
    """Record that all servers have applied, or dropped, the worker's gradients below `clock`. A lower clock
    than the recorded one changes nothing. Begins to quiesce if a checkpoint is due."""
    granted = tuple(a for a in ledger.granted if a.worker != worker or a.push.n >= clock)
    return _quiescing_if_due(_with_higher_clock(replace(ledger, granted=granted), worker, clock))


def without_worker(ledger: Ledger, worker: int) -> Ledger:
    """Mark a worker's script as ended, and remove its granted pushes and its request."""
    return replace(
        ledger,
        finished=(*_others(ledger.finished, worker), worker),
        granted=tuple(a for a in ledger.granted if a.worker != worker),
        waiting=tuple(a for a in ledger.waiting if a.worker != worker),
    )


def with_worker(ledger: Ledger, worker: int) -> Ledger:
    """Mark a worker as active: it has started, for the first time or again."""
    return replace(ledger, finished=_others(ledger.finished, worker))


def quiescing(ledger: Ledger) -> Ledger:
    """Delay new decisions until resumed(); `is_quiescent` is true when all granted pushes are done."""
    return replace(ledger, quiescing=True)


def resumed(ledger: Ledger) -> Ledger:
    """Decide again: the checkpoint at the present progress is saved."""
    return replace(ledger, quiescing=False, saved_progress=ledger.progress)


def decide_requests(ledger: Ledger) -> tuple[Ledger, tuple[tuple[PushRequest, Decision], ...]]:
    """Decide all requests that can be decided now. Returns the ledger without them, and each with its
    decision. Others keep waiting."""
    decided: list[tuple[PushRequest, Decision]] = []
    while pair := _next_decisions(ledger):
        ledger, some = pair
        decided += some
    return ledger, tuple(decided)


def _next_decisions(ledger: Ledger) -> tuple[Ledger, list[tuple[PushRequest, Decision]]] | None:
    """One decision, or all of one step. None: no request can be decided now.

    A repeated request gets its first decision again, also while quiescing: servers may have applied the
    gradient already, and the ledger waits for that push.
    """
    granted = {(a.worker, a.push.n): a.push for a in ledger.granted}
    for request in ledger.waiting:
        if push := granted.get((request.worker, request.n)):
            return _without_requests(ledger, [request]), [(request, push)]
    if ledger.quiescing:
        return None
    return _next_synchronous(ledger) if ledger.rules.synchronous else _next_asynchronous(ledger)


def _next_synchronous(ledger: Ledger) -> tuple[Ledger, list[tuple[PushRequest, Decision]]] | None:
    """Close a late request, or grant the open step to the first requests once enough of them wait. None: too
    few wait."""
    step = ledger.step
    for request in ledger.waiting:
        if request.n < step:
            ledger = replace(ledger, dropped=ledger.dropped + step - request.n)
            ledger = _with_higher_clock(_without_requests(ledger, [request]), request.worker, step)
            return ledger, [(request, StepClosed(step))]
    of = min(ledger.rules.workers - ledger.rules.backup, len(ledger.active))
    first = list(ledger.waiting[:of])
    if not first or len(first) < of:
        return None
    push = PushGrant(step, of)
    granted = ledger.granted + tuple(GrantedPush(request.worker, push) for request in first)
    ledger = replace(_without_requests(ledger, first), granted=granted, step=step + 1)
    return _quiescing_if_due(ledger), [(request, push) for request in first]


def _next_asynchronous(ledger: Ledger) -> tuple[Ledger, list[tuple[PushRequest, Decision]]] | None:
    """Grant the first request within the bound. None: there is none."""
    for request in ledger.waiting:
        ahead = request.n - ledger.slowest_clock
        if ledger.rules.bound is None or ahead <= ledger.rules.bound:
            push = PushGrant(request.n, 1)
            granted = (*ledger.granted, GrantedPush(request.worker, push))
            max_ahead = max(ledger.max_ahead, ahead)
            ledger = replace(_without_requests(ledger, [request]), granted=granted, max_ahead=max_ahead)
            return ledger, [(request, push)]
    return None


def _others(workers: tuple[int, ...], worker: int) -> tuple[int, ...]:
    return tuple(each for each in workers if each != worker)


def _without_requests(ledger: Ledger, decided: list[PushRequest]) -> Ledger:
    return replace(ledger, waiting=tuple(request for request in ledger.waiting if request not in decided))


def _with_higher_clock(ledger: Ledger, worker: int, clock: int) -> Ledger:
    """Raise the worker's clock to `clock`; never lower it."""
    clocks = list(ledger.clocks)
    clocks[worker] = max(clocks[worker], clock)
    return replace(ledger, clocks=tuple(clocks))


def _quiescing_if_due(ledger: Ledger) -> Ledger:
    """Quiesce if progress has passed a multiple of `save_every` since the last checkpoint."""
    every = ledger.rules.save_every
    due = every is not None and ledger.progress // every > ledger.saved_progress // every
    return replace(ledger, quiescing=True) if due else ledger
