"""The machine under sync Exact: the store of a world that starts ranks beside others ends."""

from __future__ import annotations

import pytest
from tests.agent.life import Life, a_recovery_plan, world_id
from tests.agent.test_keepingrules import a_life, phases

from ropeteam_trainer.agent.machine.effects import KillRanks
from ropeteam_trainer.agent.machine.events import LinkUp, RanksStarted, StoreDown, StoreUp
from ropeteam_trainer.agent.machine.report import urgent_part
from ropeteam_trainer.contract.messages import RankPhase, StoreOffer


def a_host(*started: int) -> Life:
    """World 2 starts these ranks beside others. Its store is here."""
    life = a_life().ordered(lost=started, host_store=world_id(2))
    life.receives(StoreUp(StoreOffer(world_id(2), "s", 2)))
    return life.ordered(plan=a_recovery_plan(2, *started, store_port=2), lost=(), host_store=None)


@pytest.mark.parametrize("rank", [1, 2])
def test_the_end_of_a_store_is_reported_and_kills_nobody(rank: int):
    """The ranks here had formed no group either: their hooks may not have worked."""
    life = a_host(rank).died(1).receives(RanksStarted(world_id(1)))
    assert life.report.lost_store is None
    life.receives(StoreDown(world_id(2)))
    assert life.report.lost_store == world_id(2)
    assert life.did_no(KillRanks)
    assert life.wait(1).did_no(KillRanks)
    assert urgent_part(life.report).lost_store == world_id(2), "at once"


def test_the_end_of_a_store_is_reported_while_its_plan_waits_for_the_end_of_a_lost_rank():
    life = a_host(1).receives(StoreDown(world_id(2)))
    assert life.report.plan.world_id == world_id(1)
    assert life.report.lost_store == world_id(2)


def test_of_a_later_world_and_of_another_store_no_end_is_reported():
    life = a_host(2).receives(StoreDown(world_id(2)))
    life.ordered(plan=a_recovery_plan(3, 2, store_port=3))
    assert life.report.lost_store is None
    assert life.ordered(plan=a_recovery_plan(2, 2, store_port=4)).report.lost_store is None
    assert life.ordered(plan=None).report.lost_store is None


def test_a_new_pod_whose_store_ends_kills_none_of_the_ranks_that_wait_in_it():
    """The coordinator ends them: ranks of other pods wait there, too."""
    life = Life().receives(LinkUp()).ordered(host_store=world_id(2))
    life.receives(StoreUp(StoreOffer(world_id(2), "s", 2)))
    life.ordered(plan=a_recovery_plan(2, 0, 1, new=(0,), store_port=2), host_store=None)
    life.receives(RanksStarted(world_id(2)), StoreDown(world_id(2))).wait(0)
    assert life.did_no(KillRanks)
    assert (life.report.lost_store, phases(life)) == (world_id(2), [RankPhase.RUNNING] * 2)
