"""All interleavings of several worlds on one journal: an explicit-state model around the shipped generators.

A state is the disk, what each world has been answered so far, and what each client may still have cached. A
world is its generator, fed with those answers: there is no second description of what it does. Every
operation is atomic at the server; between any two of a world the others may do anything, and each may stop
for ever.

A listing may be as old as the last change that the same client has made in the journal, or as its last
listing: the attribute cache of NFS, without any limit of time. What a client has changed itself it sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ropeteam_trainer.checkpoint.decisions import journal
from ropeteam_trainer.checkpoint.decisions.journal import CheckpointKey, Claim, Held, Operation, Superseded
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.world import CheckpointRef


@dataclass(frozen=True)
class Begins:
    """Of a test: the claim has succeeded, and from now on this counts."""

    counts: frozenset[CheckpointKey]


Life = Callable[[], Iterator[Any]]
_CHANGES = (journal.Create, journal.Write, journal.Rename, journal.Remove)


@dataclass(frozen=True)
class State:
    names: frozenset[tuple[str, str]]
    """The journal: name and text."""
    folders: frozenset[CheckpointKey]
    answers: tuple[tuple[Any, ...], ...]
    """By world."""
    listings: tuple[frozenset[str], ...]
    """Former states of the journal, oldest first; none that no process can see any more."""
    seen: tuple[int, ...]
    """By world: how old its next listing can be."""
    deleted: frozenset[tuple[int, CheckpointKey]] = frozenset()
    """By which world."""
    counts: tuple[frozenset[CheckpointKey] | None, ...] = ()
    """By world: what it counts, once it has begun."""


@dataclass
class Model:
    lives: tuple[Life, ...]
    """Older worlds first."""
    start: State
    states: int = 0
    ends: int = 0
    superseded: int = 0
    wrong: list[str] = field(default_factory=list)
    _next: dict[Any, Operation | Begins | None] = field(default_factory=dict)
    check: Callable[[Model, State], str] = lambda _model, _state: ""

    def explore(self) -> Model:
        """Every state that can be reached."""
        waiting, known = [self.start], {self.start}
        while waiting:
            state = waiting.pop()
            self.states += 1
            if fault := self.check(self, state):
                self.wrong.append(fault)
                return self
            more = [after for world in range(len(self.lives)) for after in self._step(state, world)]
            self.ends += not more
            fresh = [each for each in more if each not in known]
            known.update(fresh)
            waiting += fresh
        return self

    def next_operation(self, state: State, world: int) -> Operation | Begins | None:
        """None: it has come to its end."""
        known = (world, state.answers[world])
        if known not in self._next:
            self._next[known] = self._replay(state, world)
        return self._next[known]

    def _replay(self, state: State, world: int) -> Operation | Begins | None:
        steps: Any = self.lives[world]()
        try:
            operation: Operation | Begins = steps.send(None)
            for answer in state.answers[world]:
                operation = steps.send(answer)
        except StopIteration:
            return None
        except Superseded:
            self.superseded += 1
            return None
        return operation

    def _step(self, state: State, world: int) -> Iterator[State]:
        operation = self.next_operation(state, world)
        if operation is None:
            return
        if isinstance(operation, journal.List):
            for version in range(state.seen[world], len(state.listings)):
                answer = tuple(sorted(state.listings[version]))
                yield self._answered(replace(state, seen=_put(state.seen, world, version)), world, answer)
            return
        after, answer = _carry_out(state, operation, world)
        if isinstance(operation, _CHANGES):
            listing = frozenset(name for name, _ in after.names)
            after = replace(after, listings=(*after.listings, listing))
            after = replace(after, seen=_put(after.seen, world, len(after.listings) - 1))
        yield self._answered(after, world, answer)

    def _answered(self, state: State, world: int, answer: Any) -> State:
        state = replace(state, answers=_put(state.answers, world, (*state.answers[world], answer)))
        oldest = min(
            (seen for each, seen in enumerate(state.seen) if self.next_operation(state, each) is not None),
            default=len(state.listings) - 1,
        )
        seen = tuple(max(0, each - oldest) for each in state.seen)
        return replace(state, listings=state.listings[oldest:], seen=seen)


def _put(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _carry_out(state: State, operation: Operation | Begins, world: int) -> tuple[State, Any]:
    texts = dict(state.names)
    answer: Any = None
    match operation:
        case journal.Create(name):
            texts.setdefault(name, "")
        case journal.Write(name, text):
            texts[name] = text
        case journal.ReadEntry(name):
            answer = texts.get(name, "")
        case journal.Rename(name, to):
            answer = name in texts
            if answer:
                texts[to] = texts.pop(name)
        case Begins(counts):
            state = replace(state, counts=_put(state.counts, world, counts))
        case journal.Folders():
            answer = tuple(sorted(state.folders))
        case journal.Delete(place):
            state = replace(state, deleted=state.deleted | {(world, place)}, folders=state.folders - {place})
        case journal.WriteManifest(grant):
            answer = replace(grant.ref, digest=f"digest-{grant.ref.step}-{grant.ref.world_id}")
            state = replace(state, folders=state.folders | {journal.key_of(grant.ref)})
    return replace(state, names=frozenset(texts.items())), answer


def a_start(worlds: int, *refs: CheckpointRef, claims: tuple[Claim, ...] = ()) -> State:
    """Committed checkpoints of the first claim's world."""
    names: dict[str, str] = {}
    for claim in claims:
        names |= {claim.name: "", claim.adopts: ""}
    for ref in refs:
        names[f"{journal.key_of(ref)}.commit"] = codec.encode(journal.JournalEntry(ref, None)).decode()
    folders = frozenset(map(journal.key_of, refs))
    return State(
        names=frozenset(names.items()),
        folders=folders,
        answers=((),) * worlds,
        listings=(frozenset(names),),
        seen=(0,) * worlds,
        counts=(None,) * worlds,
    )


def held(claim: Claim, *adopts: CheckpointKey) -> Held:
    return Held(claim, frozenset(adopts))
