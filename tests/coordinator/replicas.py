"""A job under sync Exact on the timeline: three pods of two ranks, each rank a whole replica of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.coordinator.reports import SIGKILL
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.messages import RankPhase, RankReport, Shard
from ropeteam_trainer.contract.world import CheckpointRef, Plan, ProcessExit, ShardFile

SLOTS, RANKS = (0, 1, 2), (0, 1, 2, 3, 4, 5)


def film(**settings: Any) -> Timeline:
    """All six ranks at step 10; step 8 is committed."""
    seen = Timeline(workers=3, **{"processes": 2, "feature_level": 3, **settings}).up(step=10)
    trains(seen, 10)
    seen.saves(8)
    seen.applies_orders()
    assert [step for step, _ in seen.lineage] == [8]
    return seen


def trains(seen: Timeline, step: int, *slots: int) -> None:
    """The living ranks of these slots (all, if none is named) have made this step."""
    for slot in slots or sorted(seen.agents):
        if slot not in seen.silent:
            seen.reports(slot, ranks=tuple(_at_step(rank, step) for rank in seen.agents[slot].ranks))


def _at_step(rank: RankReport, step: int) -> RankReport:
    if rank.exit:
        return rank
    made = rank.steps_here + 1
    return replace(rank, phase=RankPhase.RUNNING, step=step, steps_here=made, regroups=True)


def dies(seen: Timeline, *ranks: int, how: ProcessExit = SIGKILL, dying: bool = False) -> None:
    """Ranks end, one after the other, before any agent has received orders."""
    for rank in ranks:
        report = seen.agents[rank // 2]
        exited = tuple(
            replace(each, phase=RankPhase.EXITED, exit=how, dying=dying) if each.rank == rank else each
            for each in report.ranks
        )
        seen.reports(rank // 2, ranks=exited, stopped=all(each.exit for each in exited))


def loses_pods(seen: Timeline, *slots: int) -> Timeline:
    """The pods of these slots are lost at step 12, and the others continue."""
    trains(seen, 12)
    for slot in slots:
        seen.falls_silent(slot)
    seen.later(6)
    assert seen.phase == "Forming"
    return seen


def changes(seen: Timeline, rank: int, **fields: Any) -> None:
    """The next report on this rank differs in these fields."""
    ranks = seen.agents[rank // 2].ranks
    changed = tuple(replace(each, **fields) if each.rank == rank else each for each in ranks)
    seen.reports(rank // 2, ranks=changed)


def plan_of(seen: Timeline, slot: int = 0) -> Plan:
    plan = seen.sent_orders(slot).plan
    assert plan is not None
    return plan


def joined(seen: Timeline) -> Plan:
    """The next plan, once its agents have applied it."""
    seen.applies_orders()
    seen.later(3)
    seen.applies_orders()
    assert seen.phase == "Running"
    assert plan_of(seen).world_id == seen.world_id
    return plan_of(seen)


def joining(rank: int = 3) -> Timeline:
    """This rank died, and was started again; it has made no step yet."""
    seen = film()
    dies(seen, rank)
    assert joined(seen).started == (rank,)
    return seen


def starting(seen: Timeline) -> list[int]:
    """Ranks that agents have just started."""
    ranks = (rank for report in seen.agents.values() for rank in report.ranks)
    return sorted(rank.rank for rank in ranks if rank.phase is RankPhase.STARTING)


def without_plan(seen: Timeline) -> list[int]:
    """Slots whose ranks are ordered to end."""
    return [slot for slot in SLOTS if slot not in seen.silent and seen.sent_orders(slot).plan is None]


def restores(seen: Timeline, step: int) -> None:
    """The leading rank's agent reports from which checkpoint of the lineage it resumed."""
    found = next(ref for ref in seen.state.lineage if ref.step == step)
    seen.reports(0, restored=CheckpointRef(step, found.world_id, found.digest))


def lineage(seen: Timeline) -> list[tuple[int, str]]:
    return [(ref.step, str(ref.world_id)) for ref in seen.report.lineage]


def saves(seen: Timeline, step: int, *slots: int) -> None:
    """As the timeline's, but only by ranks that live, and under the name of the leading rank's world."""
    for slot in slots or SLOTS:
        before = seen.agents[slot].shards
        living = {rank.rank for rank in seen.agents[slot].ranks if not rank.exit}
        seen.saves(step, slot)
        world_id = seen.state.world.plan.started_in(0)
        new = (s for s in seen.agents[slot].shards if s not in before and s.rank in living)
        seen.reports(slot, shards=(*before, *(replace(shard, world_id=world_id) for shard in new)))


def saves_for_all(seen: Timeline, step: int, rank: int) -> None:
    slot = rank // 2
    files = ShardFile("state.pt", 1, "00"), ShardFile(f"rank-{rank}.pt", 1, "00")
    orders = seen.sent_orders(slot)
    shard = Shard(rank, orders.saves_as or orders.plan.started_in(0), step, files, whole=True)
    seen.reports(slot, shards=(*seen.agents[slot].shards, shard))


def last_save(seen: Timeline, *slots: int) -> None:
    """The ranks of these slots, which continue without others, save before they end: the rest of a drain."""
    assert all(seen.sent_orders(slot).pause == seen.world_id for slot in slots)
    assert seen.sent_orders(slots[0]).stop_at is None
    for slot in slots:
        reaches(seen, slot, RankPhase.PAUSED, 11)
    assert {seen.sent_orders(slot).stop_at for slot in slots} == {13}, "a lost rank may have saved step 12"
    for slot in slots[1:]:
        reaches(seen, slot, RankPhase.DRAINED, 13)
    assert set(without_plan(seen)).isdisjoint(slots)
    saves_for_all(seen, 13, 0)
    reaches(seen, slots[0], RankPhase.DRAINED, 13)
    assert set(without_plan(seen)).isdisjoint(slots), "the manifest is not written yet"
    seen.applies_orders(slots[0])
    assert lineage(seen)[0] == (13, "1.0.1")
    assert {*without_plan(seen)} >= {*slots}


def reaches(seen: Timeline, slot: int, phase: RankPhase, step: int) -> None:
    ranks = seen.agents[slot].ranks
    seen.reports(
        slot, ranks=tuple(rank if rank.exit else replace(rank, phase=phase, step=step) for rank in ranks)
    )
