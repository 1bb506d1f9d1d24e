"""Ledger of the chief, the first of the parameter servers: decides which gradients are applied. Pure.

A worker sends a request before it pushes its n-th gradient; the decision is final, holds for all servers, and
survives a restart of any process. So servers that have different parts of the model apply the same gradients:

    worker                         chief                        servers
      | ask(worker, n) --------------> |                            |
      | <------ Push(n, of) or Skip(to)|                            |
      | gradient n ---------------------------------------------->  | applied once
      | <---------------------------------------------------------- | weights
      | done(worker, n) -------------> |                            |

Synchronous: step n is decided when all active workers but `backup` of them have sent a request; later ones
get a Skip to the open step (backup workers). Asynchronous: each gradient counts at once; with a bound a
worker may be that many gradients ahead of the slowest one, then it waits.
A consistent cut delays decisions until all allowed pushes are done: then all servers have applied the same
gradients. One is started every `save_every` steps.
Sources: Chen et al., "Revisiting Distributed Synchronous SGD", 2016 (backup workers); Ho et al., "More
Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NeurIPS 2013 (the bound).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ropeteam_trainer.contract.strategy import ParameterServer, ServerMode


@dataclass(frozen=True)
class Rules:
    workers: int
    synchronous: bool = True
    backup: int = 0
    bound: int | None = None
    """None: no limit on how far a worker may be ahead."""
    save_every: int | None = None
    """Steps between two checkpoints."""


@dataclass(frozen=True)
class Ask:
    """Request of a worker to push its n-th gradient (from 0)."""

    worker: int
    n: int


@dataclass(frozen=True)
class Push:
    """Permission to push to all servers. A step is the mean of `of` gradients."""

    n: int
    of: int


@dataclass(frozen=True)
class Skip:
    """Refusal: this step is closed; continue with step `to`."""

    to: int


Answer = Push | Skip


@dataclass(frozen=True)
class Allowed:
    """An allowed push, possibly in flight."""

    worker: int
    push: Push


@dataclass(frozen=True)
class Ledger:
    rules: Rules
    clocks: tuple[int, ...]
    """Gradients that are done, for each worker: applied by all servers, or dropped."""
    step: int = 0
    """Synchronous: the step that is open."""
    allowed: tuple[Allowed, ...] = ()
    waiting: tuple[Ask, ...] = ()
    """Requests without a decision yet, in order."""
    left: tuple[int, ...] = ()
    """Workers whose script has ended."""
    dropped: int = 0
    """Gradients that came too late for their step."""
    ahead: int = 0
    """Maximum that an allowed push was ahead of the slowest worker."""
    cut: bool = False
    saved: int = 0
    """Progress at the last cut."""

    @property
    def active(self) -> tuple[int, ...]:
        return tuple(worker for worker in range(self.rules.workers) if worker not in self.left)

    @property
    def slowest(self) -> int:
        """Clock of the slowest active worker; of the slowest of all, once none is active."""
        return min(self.clocks[worker] for worker in self.active or range(self.rules.workers))

    @property
    def progress(self) -> int:
        """Steps done."""
        return self.step if self.rules.synchronous else self.slowest

    @property
    def quiet(self) -> bool:
        """Whether a cut was requested and no push is in flight: save now."""
        return self.cut and not self.allowed

    @property
    def over(self) -> bool:
        return not self.active


def rules(spec: ParameterServer, workers: int, save_every: int | None) -> Rules:
    """Rules of a manifest. With a staleness of 0 the gradients of a step use equal weights: Synchronous."""
    bounded = spec.mode is ServerMode.BOUNDED_STALENESS
    synchronous = spec.mode is ServerMode.SYNCHRONOUS or (bounded and spec.staleness == 0)
    bound = spec.staleness if bounded and not synchronous else None
    return Rules(workers, synchronous, spec.backup_workers, bound, save_every)


def opened(rules: Rules, clocks: tuple[int, ...] = (), step: int = 0) -> Ledger:
    """A new ledger, or one resumed from a checkpoint at `step`; if that had another number of workers, all
    resume at the step."""
    known = len(clocks) == rules.workers
    return Ledger(rules, clocks if known else (step,) * rules.workers, step, saved=step)


def ask(ledger: Ledger, request: Ask) -> Ledger:
    """Add a worker's request. Idempotent: it may be repeated after a lost connection."""
    waiting = tuple(each for each in ledger.waiting if each.worker != request.worker)
    return replace(ledger, waiting=(*waiting, request))


def done(ledger: Ledger, worker: int, clock: int) -> Ledger:
    """Record that all servers have applied this worker's gradients below `clock`. Ignored if stale."""
    allowed = tuple(a for a in ledger.allowed if a.worker != worker or a.push.n >= clock)
    return _cut_if_due(_with_clock(replace(ledger, allowed=allowed), worker, clock))


def leave(ledger: Ledger, worker: int) -> Ledger:
    """Remove a worker whose script has ended, with its allowed pushes and requests."""
    return replace(
        ledger,
        left=(*_without_worker(ledger.left, worker), worker),
        allowed=tuple(a for a in ledger.allowed if a.worker != worker),
        waiting=tuple(a for a in ledger.waiting if a.worker != worker),
    )


def join(ledger: Ledger, worker: int) -> Ledger:
    """Add a worker, for the first time or again."""
    return replace(ledger, left=_without_worker(ledger.left, worker))


def cut(ledger: Ledger) -> Ledger:
    """Delay all decisions until `resume()`; `quiet` is true when all allowed pushes are done."""
    return replace(ledger, cut=True)


def resume(ledger: Ledger) -> Ledger:
    return replace(ledger, cut=False, saved=ledger.progress)


def answers(ledger: Ledger) -> tuple[Ledger, tuple[tuple[Ask, Answer], ...]]:
    """Decide all requests that can be decided now."""
    decided: list[tuple[Ask, Answer]] = []
    while pair := _next_decisions(ledger):
        ledger, some = pair
        decided += some
    return ledger, tuple(decided)


def _next_decisions(ledger: Ledger) -> tuple[Ledger, list[tuple[Ask, Answer]]] | None:
    """The first decision that is possible, or all of a step at once."""
    granted = {(a.worker, a.push.n): a.push for a in ledger.allowed}
    for request in ledger.waiting:
        if push := granted.get((request.worker, request.n)):
            return _without(ledger, [request]), [(request, push)]
    if ledger.cut:
        return None
    return _synchronous(ledger) if ledger.rules.synchronous else _asynchronous(ledger)


def _synchronous(ledger: Ledger) -> tuple[Ledger, list[tuple[Ask, Answer]]] | None:
    step = ledger.step
    for request in ledger.waiting:
        if request.n < step:
            ledger = replace(ledger, dropped=ledger.dropped + step - request.n)
            return _with_clock(_without(ledger, [request]), request.worker, step), [(request, Skip(step))]
    of = min(ledger.rules.workers - ledger.rules.backup, len(ledger.active))
    first = list(ledger.waiting[:of])
    if not first or len(first) < of:
        return None
    push = Push(step, of)
    allowed = ledger.allowed + tuple(Allowed(request.worker, push) for request in first)
    ledger = replace(_without(ledger, first), allowed=allowed, step=step + 1)
    return _cut_if_due(ledger), [(request, push) for request in first]


def _asynchronous(ledger: Ledger) -> tuple[Ledger, list[tuple[Ask, Answer]]] | None:
    for request in ledger.waiting:
        ahead = request.n - ledger.slowest
        if ledger.rules.bound is None or ahead <= ledger.rules.bound:
            push = Push(request.n, 1)
            allowed = (*ledger.allowed, Allowed(request.worker, push))
            ledger = replace(_without(ledger, [request]), allowed=allowed, ahead=max(ledger.ahead, ahead))
            return ledger, [(request, push)]
    return None


def _without_worker(workers: tuple[int, ...], worker: int) -> tuple[int, ...]:
    return tuple(each for each in workers if each != worker)


def _without(ledger: Ledger, decided: list[Ask]) -> Ledger:
    return replace(ledger, waiting=tuple(request for request in ledger.waiting if request not in decided))


def _with_clock(ledger: Ledger, worker: int, clock: int) -> Ledger:
    clocks = list(ledger.clocks)
    clocks[worker] = max(clocks[worker], clock)
    return replace(ledger, clocks=tuple(clocks))


def _cut_if_due(ledger: Ledger) -> Ledger:
    every = ledger.rules.save_every
    due = every is not None and ledger.progress // every > ledger.saved // every
    return replace(ledger, cut=True) if due else ledger
