"""The storage decides between worlds that do not know of each other: in all interleavings (model.py)."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

import pytest
from tests.agent.model import Begins, Model, State, a_start, held

from ropeteam_trainer.checkpoint.decisions import journal
from ropeteam_trainer.checkpoint.decisions.journal import CheckpointKey, Claim, key_of
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.world import CheckpointRef, WorldId

ISLAND, NEW, NEWEST = Claim(WorldId(1, 0, 1), "a"), Claim(WorldId(2, 0, 1), "b"), Claim(WorldId(3, 0, 1), "c")
WORLDS = (ISLAND, NEW, NEWEST)
DEPUTY, SUCCESSOR = Claim(WorldId(1, 0, 2), "b"), Claim(WorldId(1, 0, 3), "c")
"""Of the coordinator that has planned ISLAND, whose leading agent was cut off."""
OLD = CheckpointKey(ISLAND.world_id, 10)


def ref(step: int, world: Claim = ISLAND) -> CheckpointRef:
    return CheckpointRef(step, world.world_id, f"digest-{step}-{world.world_id}")


def grant(step: int, world: Claim) -> Grant:
    return Grant(CheckpointRef(step, world.world_id), 1, (), None)


def trains(world: Claim, *saves: int, keep: int = 1) -> Generator[Any, Any, None]:
    """Claim, then commit and prune, again and again. The island had begun before, and saved 10 and 20."""
    run = held(ISLAND) if world == ISLAND else (yield from journal.claim(world))
    yield Begins(run.adopted)
    line = [ref(20)] if world == ISLAND else [ref(each.step) for each in sorted(run.adopted, reverse=True)]
    for step in saves:
        line.insert(0, (yield from journal.commit(run, grant(step, world))))
        yield from journal.prune(run, tuple(line[:keep]))


def faults(_model: Model, state: State, worlds: tuple[Claim, ...] = WORLDS) -> str:
    """Why the promises do not hold in this state; "": they do."""
    for number, counts in enumerate(state.counts):
        lost = [place for who, place in state.deleted if who < number and place in (counts or ())]
        if lost:
            return f"what {worlds[number].world_id} counts was deleted by an older world: {lost}"
        own = {place for place in state.folders if place.world_id == worlds[number].world_id}
        newest = max({*(counts or ()), *own}, default=None)
        if (number, newest) in state.deleted:
            return f"{WORLDS[number].world_id} deleted its newest checkpoint"
    first, second = (*state.counts, None, None)[1:3]
    late = {place for place in second or () if place.world_id == ISLAND.world_id} - (first or second or set())
    return f"{late} came after the claim of {worlds[1].world_id}, and count" if late else ""


def explored(*lives: tuple[Claim, tuple[int, ...]]) -> Model:
    start = a_start(len(lives), ref(20), ref(10), claims=(ISLAND,))
    each = tuple(lambda world=world, saves=saves: trains(world, *saves) for world, saves in lives)
    return Model(each, start, check=faults).explore()


def test_an_island_that_commits_and_prunes_harms_no_newer_world() -> None:
    model = explored((ISLAND, (30,)), (NEW, (40,)))
    assert model.wrong == []
    assert model.superseded, "the island met the claim"
    assert model.states > 5000


def test_what_an_island_commits_after_a_claim_never_counts_later() -> None:
    model = explored((ISLAND, (30,)), (NEW, ()), (NEWEST, ()))
    assert model.wrong == []
    assert model.superseded


def test_what_a_deputy_commits_counts_for_the_next_world_and_nothing_that_it_has_superseded() -> None:
    """The agent of the leading rank was cut off while it commits."""
    committed, missed = CheckpointKey(DEPUTY.world_id, 40), []

    def leads() -> Generator[Any, Any, None]:
        yield from journal.commit(held(ISLAND), grant(30, ISLAND))

    def deputizes() -> Generator[Any, Any, None]:
        run = yield from journal.claim(DEPUTY)
        yield Begins(run.adopted)
        yield from journal.commit(run, grant(40, DEPUTY))

    def follows() -> Generator[Any, Any, None]:
        was_committed = yield journal.ReadEntry(f"{committed}.commit")
        run = yield from journal.claim(SUCCESSOR)
        yield Begins(run.adopted)
        if was_committed and committed not in run.adopted:
            missed.append(run)

    start = a_start(3, ref(20), ref(10), claims=(ISLAND,))
    check = partial(faults, worlds=(ISLAND, DEPUTY, SUCCESSOR))
    model = Model((leads, deputizes, follows), start, check=check).explore()
    assert (model.wrong, missed) == ([], [])
    assert model.superseded, "the leading agent, or the deputy, met a newer claim"
    assert model.states > 1000


def test_a_commit_that_a_newer_world_may_not_have_seen_is_none() -> None:
    """Status would name it, and nobody would resume from it."""
    steps = journal.commit(held(ISLAND), grant(30, ISLAND))
    assert next(steps) == journal.List()
    assert steps.send([ISLAND.name]) == journal.WriteManifest(grant(30, ISLAND))
    assert isinstance(steps.send(ref(30)), journal.Write)
    assert steps.send(None) == journal.List()
    with pytest.raises(journal.Superseded):
        steps.send([ISLAND.name, NEW.name])


def test_the_model_finds_a_pruner_that_looks_before_it_renames() -> None:
    def island() -> Generator[Any, Any, None]:
        names = yield journal.List()
        if NEW.name not in names and (yield journal.Rename(f"{OLD}.commit", ISLAND.pruning(OLD))):
            yield journal.Delete(OLD)

    start = a_start(2, ref(20), ref(10), claims=(ISLAND,))
    model = Model((island, lambda: trains(NEW, 40)), start, check=faults).explore()
    assert "what 2.0.1 counts was deleted by an older world" in model.wrong[0]


def test_the_model_finds_a_world_that_lists_before_it_claims() -> None:
    def hasty() -> Generator[Any, Any, None]:
        names = yield journal.List()
        yield journal.Create(NEW.name)
        places = sorted(name.removesuffix(".commit") for name in names if name.endswith(".commit"))
        yield journal.Write(NEW.adopts, "\n".join(places))
        yield Begins(frozenset(place for place in (key_of(ref(10)), key_of(ref(20))) if str(place) in places))

    start = a_start(2, ref(20), ref(10), claims=(ISLAND,))
    model = Model((lambda: trains(ISLAND, 30), hasty), start, check=faults).explore()
    assert "what 2.0.1 counts was deleted by an older world" in model.wrong[0]
