"""Which gradients count: the judgement of the chief, the first of the parameter servers. Pure.

A worker asks before it pushes its n-th gradient; the answer is final, holds for all servers, and is
remembered over a restart of any process. So servers that have different parts of the model apply the same
gradients:

    worker                         chief                        servers
      | ask(worker, n) --------------> |                            |
      | <------ Push(n, of) or Skip(to)|                            |
      | gradient n ---------------------------------------------->  | applied once
      | <---------------------------------------------------------- | weights
      | done(worker, n) -------------> |                            |

Synchronous: step n is decided when all active workers but `backup` of them have asked; later ones are told
to skip to the step that is open (backup workers). Else each gradient counts at once; with a bound a worker
may be that many gradients ahead of the slowest one, then it waits.
A cut holds answers back until all that was allowed is done: then all servers have applied the same gradients.
It comes by itself every `save_every` steps.
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
    """None: a worker may be ahead as far as it likes."""
    save_every: int | None = None
    """Steps between two checkpoints."""


@dataclass(frozen=True)
class Ask:
    """May this worker push its n-th gradient (from 0)?"""

    worker: int
    n: int


@dataclass(frozen=True)
class Push:
    """Yes: to all servers. A step is the mean of `of` gradients."""

    n: int
    of: int


@dataclass(frozen=True)
class Skip:
    """No, this step is closed; go on with step `to`."""

    to: int


Answer = Push | Skip


@dataclass(frozen=True)
class Allowed:
    """A push that may be on its way."""

    worker: int
    push: Push


@dataclass(frozen=True)
class Ledger:
    rules: Rules
    clocks: tuple[int, ...]
    """Gradients of each worker that are done: applied by all servers, or dropped."""
    step: int = 0
    """Synchronous: the step that is open."""
    allowed: tuple[Allowed, ...] = ()
    waiting: tuple[Ask, ...] = ()
    """Asked and not answered yet, in order."""
    left: tuple[int, ...] = ()
    """Workers whose script has ended."""
    dropped: int = 0
    """Gradients that steps went on without."""
    ahead: int = 0
    """The most that an allowed push was ahead of the slowest worker."""
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
        """A cut was asked for, and nothing is on its way: save now."""
        return self.cut and not self.allowed

    @property
    def over(self) -> bool:
        return not self.active


def rules(asked: ParameterServer, workers: int, save_every: int | None) -> Rules:
    """Of a manifest. No staleness at all: the gradients of a step are of the same weights, so Synchronous."""
    bounded = asked.mode is ServerMode.BOUNDED_STALENESS
    synchronous = asked.mode is ServerMode.SYNCHRONOUS or (bounded and asked.staleness == 0)
    bound = asked.staleness if bounded and not synchronous else None
    return Rules(workers, synchronous, asked.backup_workers, bound, save_every)


def opened(rules: Rules, clocks: tuple[int, ...] = (), step: int = 0) -> Ledger:
    """A new one, or one that goes on from a checkpoint at `step`; if that had other workers, all go on from
    the step."""
    known = len(clocks) == rules.workers
    return Ledger(rules, clocks if known else (step,) * rules.workers, step, saved=step)


def ask(ledger: Ledger, asked: Ask) -> Ledger:
    """A worker asks. Asking again, after a lost connection, is the same as asking once."""
    waiting = tuple(each for each in ledger.waiting if each.worker != asked.worker)
    return replace(ledger, waiting=(*waiting, asked))


def done(ledger: Ledger, worker: int, clock: int) -> Ledger:
    """All servers have applied this worker's gradients below `clock`. Late and repeated news mean nothing."""
    allowed = tuple(a for a in ledger.allowed if a.worker != worker or a.push.n >= clock)
    return _cut_if_due(_tick(replace(ledger, allowed=allowed), worker, clock))


def leave(ledger: Ledger, worker: int) -> Ledger:
    """Its script has ended, and with it what it was allowed or asks for."""
    return replace(
        ledger,
        left=(*_others(ledger.left, worker), worker),
        allowed=tuple(a for a in ledger.allowed if a.worker != worker),
        waiting=tuple(a for a in ledger.waiting if a.worker != worker),
    )


def join(ledger: Ledger, worker: int) -> Ledger:
    """It is there, for the first time or again."""
    return replace(ledger, left=_others(ledger.left, worker))


def cut(ledger: Ledger) -> Ledger:
    """Answer nobody until `resume()`; `quiet` says when all that was allowed is done."""
    return replace(ledger, cut=True)


def resume(ledger: Ledger) -> Ledger:
    return replace(ledger, cut=False, saved=ledger.progress)


def answers(ledger: Ledger) -> tuple[Ledger, tuple[tuple[Ask, Answer], ...]]:
    """Answer everybody who can be answered now."""
    given: list[tuple[Ask, Answer]] = []
    while pair := _next_answer(ledger):
        ledger, some = pair
        given += some
    return ledger, tuple(given)


def _next_answer(ledger: Ledger) -> tuple[Ledger, list[tuple[Ask, Answer]]] | None:
    """The first answer that can be given, or all of a step at once."""
    granted = {(a.worker, a.push.n): a.push for a in ledger.allowed}
    for asked in ledger.waiting:
        if push := granted.get((asked.worker, asked.n)):
            return _without(ledger, [asked]), [(asked, push)]
    if ledger.cut:
        return None
    return _synchronous(ledger) if ledger.rules.synchronous else _at_once(ledger)


def _synchronous(ledger: Ledger) -> tuple[Ledger, list[tuple[Ask, Answer]]] | None:
    step = ledger.step
    for asked in ledger.waiting:
        if asked.n < step:
            ledger = replace(ledger, dropped=ledger.dropped + step - asked.n)
            return _tick(_without(ledger, [asked]), asked.worker, step), [(asked, Skip(step))]
    of = min(ledger.rules.workers - ledger.rules.backup, len(ledger.active))
    first = list(ledger.waiting[:of])
    if not first or len(first) < of:
        return None
    push = Push(step, of)
    allowed = ledger.allowed + tuple(Allowed(asked.worker, push) for asked in first)
    ledger = replace(_without(ledger, first), allowed=allowed, step=step + 1)
    return _cut_if_due(ledger), [(asked, push) for asked in first]


def _at_once(ledger: Ledger) -> tuple[Ledger, list[tuple[Ask, Answer]]] | None:
    for asked in ledger.waiting:
        ahead = asked.n - ledger.slowest
        if ledger.rules.bound is None or ahead <= ledger.rules.bound:
            push = Push(asked.n, 1)
            allowed = (*ledger.allowed, Allowed(asked.worker, push))
            ledger = replace(_without(ledger, [asked]), allowed=allowed, ahead=max(ledger.ahead, ahead))
            return ledger, [(asked, push)]
    return None


def _others(workers: tuple[int, ...], worker: int) -> tuple[int, ...]:
    return tuple(each for each in workers if each != worker)


def _without(ledger: Ledger, answered: list[Ask]) -> Ledger:
    return replace(ledger, waiting=tuple(asked for asked in ledger.waiting if asked not in answered))


def _tick(ledger: Ledger, worker: int, clock: int) -> Ledger:
    clocks = list(ledger.clocks)
    clocks[worker] = max(clocks[worker], clock)
    return replace(ledger, clocks=tuple(clocks))


def _cut_if_due(ledger: Ledger) -> Ledger:
    every = ledger.rules.save_every
    due = every is not None and ledger.progress // every > ledger.saved // every
    return replace(ledger, cut=True) if due else ledger
