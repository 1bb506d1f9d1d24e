"""The machine under sync Exact: ranks that continue without lost ones, and those that are started again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.agent.life import Life, a_plan, a_recovery_plan, killed, world_id

from ropeteam_trainer.agent.machine import metrics
from ropeteam_trainer.agent.machine.effects import CloseStore, Exit, KillRanks, SendToRank, StartRanks
from ropeteam_trainer.agent.machine.events import RankDying, RanksStarted, RankUnkillable, StoreUp
from ropeteam_trainer.agent.machine.report import urgent_part
from ropeteam_trainer.contract.config import Timeouts
from ropeteam_trainer.contract.local import LiveWorld, ToRank
from ropeteam_trainer.contract.messages import RankPhase, StoreOffer
from ropeteam_trainer.contract.world import ProcessExit, ShardFile

WORLD_2 = LiveWorld(world_id(2), "s", 1, (1,), world_id(1))
"""As a rank that lives on receives a_recovery_plan(2, 1)."""
STUCK = "process 7 does not end"


def a_life(slot: int = 0, **settings: Any) -> Life:
    """World 1 runs, and has made step 7. The ranks of this pod can continue without others."""
    life = Life(slot, **settings).running(slot=slot)
    for rank in a_plan(slot=slot).ranks(slot):
        life.rank_sends(rank, hello_pid=1, feature_level=3, regroups=True).heartbeats(rank, step=7)
    return life


def recovered(*ranks: int, **settings: Any) -> Life:
    """World 2 has started these ranks of slot 0 again, which had died."""
    life = a_life(**settings).died(*ranks).ordered(lost=ranks)
    return life.ordered(plan=a_recovery_plan(2, *ranks), lost=()).receives(RanksStarted(world_id(1)))


def sent(life: Life) -> dict[int, ToRank]:
    """Messages of the last event, by rank."""
    return {effect.rank: effect.message for effect in life.did if isinstance(effect, SendToRank)}


def phases(life: Life) -> list[RankPhase]:
    return [rank.phase for rank in life.report.ranks]


# ---- a rank is lost


def test_a_rank_that_can_continue_without_others_is_reported_so():
    life = Life().running().rank_sends(0, hello_pid=1, regroups=True).rank_sends(1, hello_pid=1)
    assert [rank.regroups for rank in life.report.ranks] == [True, False]
    life.rank_sends(0, loss="1")
    assert life.report.ranks[0].regroups, "a message without the field changes nothing"


def test_when_a_rank_dies_the_others_of_its_pod_live_on_and_know_of_it():
    life = a_life().died(1)
    assert life.did_no(KillRanks)
    life.ordered(lost=(1,))
    assert life.did_no(KillRanks), "it is dead"
    assert sent(life) == {0: ToRank(lost=(1,))}
    assert phases(life) == [RankPhase.RUNNING, RankPhase.EXITED]
    assert life.report.ranks[1].exit == replace(killed(), fingerprint="SIGKILL"), "its own end, not ours"


def test_when_a_rank_of_another_pod_is_lost_all_ranks_here_live_on_and_know_of_it():
    life = a_life().ordered(lost=(2,))
    assert life.did_no(KillRanks)
    assert sent(life) == {0: ToRank(lost=(2,)), 1: ToRank(lost=(2,))}
    assert sent(life.ordered()) == {}, "once"
    assert sent(life.ordered(lost=(2, 3))) == {0: ToRank(lost=(2, 3)), 1: ToRank(lost=(2, 3))}


def test_a_lost_rank_that_still_lives_is_killed_once_and_receives_nothing():
    life = a_life().ordered(lost=(1,))
    assert life.did_a(KillRanks) == KillRanks(world_id(1), (1,))
    assert sent(life) == {0: ToRank(lost=(1,))}
    assert life.ordered(lineage=()).did == ()
    assert life.ordered(lost=(1, 2)).did_no(KillRanks)
    assert life.died(1).report.ranks[1].exit.killed
    assert phases(life) == [RankPhase.RUNNING, RankPhase.EXITED]


def test_a_lost_rank_that_dies_otherwise_than_by_our_kill_shows_how():
    life = a_life().ordered(lost=(1,)).died(1, exit=ProcessExit(None, 11))
    assert not life.report.ranks[1].exit.killed


def test_a_dying_rank_is_reported_as_such_until_nothing_of_it_lives():
    life = a_life().receives(RankDying(world_id(), 1, killed()))
    assert [rank.dying for rank in life.report.ranks] == [False, True]
    life.ordered(lost=(1,))
    assert life.did_no(KillRanks), "something has killed it already"
    assert sent(life) == {0: ToRank(lost=(1,))}
    life.died(1)
    assert [rank.dying for rank in life.report.ranks] == [False, False]
    assert not life.report.ranks[1].exit.killed


def test_a_rank_without_the_library_receives_nothing():
    life = Life().running().rank_sends(0, hello_pid=1, regroups=True).ordered(lost=(2,))
    assert [*sent(life)] == [0]


def test_ranks_that_cannot_continue_are_killed_by_the_orders_as_ever():
    life = Life().running().died(1).ordered(plan=None)
    assert life.did_a(KillRanks) == KillRanks(world_id(1), (0,))
    life = Life().running().died(1).ordered(plan=a_plan(2))
    assert life.did_a(KillRanks) == KillRanks(world_id(1), (0,))
    assert life.died(0).did_a(StartRanks).ranks == (0, 1)


def test_lost_ranks_are_reported_for_a_coordinator_that_is_restarted():
    life = a_life().ordered(lost=(2,))
    assert urgent_part(life.report).lost == (2,)
    life.ordered(plan=a_recovery_plan(2, 1, 2), lost=())
    assert (life.report.plan, life.report.lost) == (a_plan(1), (1, 2)), "it waits for the end of rank 1"
    life.died(1)
    assert (life.report.plan.world_id, life.report.lost) == (world_id(2), ())
    assert life.ordered(lost=(3,)).report.lost == (3,)
    assert life.ordered(plan=a_plan(3)).report.lost == (), "they are of another world"
    assert life.did_a(KillRanks).ranks == (0, 1)


# ---- the next world starts it again


def test_only_the_lost_rank_is_started_again_and_once():
    life = a_life().died(1).ordered(lost=(1,))
    before = life.state.world.ranks[0]
    plan = a_recovery_plan(2, 1)
    life.ordered(plan=plan, lost=())
    assert life.did_a(StartRanks) == StartRanks(plan, (1,), fork=False)
    assert life.did_no(KillRanks)
    assert life.report.plan == plan
    assert phases(life) == [RankPhase.RUNNING, RankPhase.STARTING]
    first, again = life.state.world.ranks
    assert replace(first, sent=before.sent) == before, "the others are as they were"
    assert (again.started_in, again.exit, again.started_at) == (world_id(2), None, None)
    assert life.ordered(plan=plan).did_no(StartRanks)


def test_each_rank_has_its_own_start():
    life = a_life().died(1).wait(60).ordered(plan=a_recovery_plan(2, 1))
    life.receives(RanksStarted(world_id(1)))
    assert [rank.started_at for rank in life.state.world.ranks] == [1000.0, 1060.0]


def test_a_plan_that_starts_no_rank_of_this_pod_only_changes_its_world():
    life = a_life().ordered(lost=(2,)).ordered(plan=a_recovery_plan(2, 2), lost=())
    assert life.report.plan == a_recovery_plan(2, 2)
    assert life.did_no(StartRanks)
    assert life.did_no(KillRanks)
    live = replace(WORLD_2, started=(2,))
    assert sent(life) == dict.fromkeys((0, 1), ToRank(live_world=live))


def test_a_plan_waits_for_the_end_of_a_lost_rank_and_kills_only_that_one():
    life = a_life().ordered(plan=a_recovery_plan(2, 1))
    assert life.did_a(KillRanks) == KillRanks(world_id(1), (1,))
    assert life.did_no(StartRanks)
    assert life.report.plan == a_plan(1)
    assert sent(life) == {0: ToRank(live_world=WORLD_2)}, "the others need not wait to know"
    assert life.wait(1).did == ()
    life.died(1)
    assert life.did_a(StartRanks).ranks == (1,)
    assert sent(life) == {}


def test_a_plan_waits_for_what_a_dead_rank_has_left_alive():
    life = a_life().receives(RankDying(world_id(), 1, killed())).ordered(plan=a_recovery_plan(2, 1))
    assert life.did_no(KillRanks)
    assert life.did_no(StartRanks)
    assert life.died(1).did_a(StartRanks).ranks == (1,)


def test_stores_of_both_worlds_are_open_while_a_plan_waits():
    offers = [StoreOffer(world_id(n), "s", n) for n in (1, 2)]
    life = Life().ordered(host_store=world_id(1)).receives(StoreUp(offers[0])).running()
    life.ordered(host_store=world_id(2)).receives(StoreUp(offers[1]))
    life.ordered(plan=a_recovery_plan(2, 1, store_port=2), host_store=None)
    assert life.did_no(CloseStore), "ranks of the running world still use theirs"
    assert life.died(1).did_a(CloseStore) == CloseStore(world_id(1))
    assert life.state.stores == (offers[1],)


def test_ranks_that_live_on_receive_their_world_and_those_that_it_starts_do_not():
    life = a_life().died(1).ordered(lost=(1,))
    plan = a_recovery_plan(2, 1, store_host="10.0.0.9", store_port=77, restart_count=3)
    live = LiveWorld(world_id(2), "10.0.0.9", 77, (1,), world_id(1), 3)
    assert sent(life.ordered(plan=plan, lost=())) == {0: ToRank(live_world=live)}
    life.receives(RanksStarted(world_id(1))).rank_sends(1, hello_pid=2, feature_level=3, regroups=True)
    assert sent(life) == {}, "its environment names that world"
    live = LiveWorld(world_id(3), "s", 1, (2,), world_id(1))
    assert sent(life.ordered(plan=a_recovery_plan(3, 2))) == dict.fromkeys((0, 1), ToRank(live_world=live))


def test_checkpoints_are_stored_under_the_world_that_started_the_lead_rank():
    life = a_life(slot=1).ordered(plan=a_recovery_plan(2, 0, 1, new=(0,), slot=1))
    assert {message.live_world.saves_as for message in sent(life).values()} == {world_id(2)}
    assert life.report.plan.world_id == world_id(2)


def test_a_new_pod_starts_all_its_ranks_and_keeps_none():
    life = Life(1).running(slot=1).ordered(plan=None).died(2, 3)
    plan = a_recovery_plan(2, 2, 3, new=(1,), slot=1)
    assert life.ordered(plan=plan).did_a(StartRanks) == StartRanks(plan, (2, 3), fork=False)


def test_a_pod_whose_ranks_are_all_lost_and_which_the_plan_retains_starts_all_of_them():
    life = a_life().died(0, 1).ordered(lost=(0, 1))
    assert life.report.stopped
    life.ordered(plan=a_recovery_plan(2, 0, 1), lost=())
    assert life.did_a(StartRanks).ranks == (0, 1)
    assert not life.report.stopped


def test_a_rank_that_dies_again_before_it_joins_is_started_again_alone():
    life = recovered(1).died(1)
    assert life.did_no(KillRanks)
    life.ordered(lost=(1,))
    assert sent(life) == {0: ToRank(live_world=WORLD_2, lost=(1,))}
    plan = a_recovery_plan(3, 1)
    life.ordered(plan=plan, lost=())
    assert life.did_a(StartRanks) == StartRanks(plan, (1,), fork=False)
    assert life.state.world.ranks[1].started_in == world_id(3)
    assert sent(life) == {0: ToRank(live_world=replace(WORLD_2, world_id=world_id(3)))}


def test_a_rank_that_died_while_the_plan_was_made_is_left_to_the_next_one():
    life = a_life().died(0, 1).ordered(plan=a_recovery_plan(2, 1))
    assert life.did_a(StartRanks).ranks == (1,)
    assert phases(life) == [RankPhase.EXITED, RankPhase.STARTING]
    assert life.ordered(plan=a_recovery_plan(3, 0)).did_a(StartRanks).ranks == (0,)


def test_a_plan_between_may_have_been_missed():
    life = a_life().died(1).ordered(plan=a_recovery_plan(4, 1))
    assert life.did_a(StartRanks).ranks == (1,)
    assert life.report.plan.world_id == world_id(4)


def test_when_the_job_is_stopped_ranks_started_again_end_with_the_others():
    life = recovered(1).ordered(plan=None)
    assert life.did_a(KillRanks) == KillRanks(world_id(1), (0, 1))
    assert all(rank.exit.killed for rank in life.died(0, 1).report.ranks)


def test_while_all_ranks_are_being_killed_none_is_lost_and_none_is_started_again():
    life = a_life().ordered(plan=None)
    assert life.did_a(KillRanks).ranks == (0, 1)
    life.ordered(plan=a_recovery_plan(2, 1), lost=(1,))
    assert life.did == ()
    assert life.died(0, 1).did_no(StartRanks)
    assert phases(life) == [RankPhase.EXITED] * 2, "the world after that replaces them"
    assert life.report.plan.world_id == world_id(2)


def test_ranks_that_live_on_are_fenced_like_all_others():
    life = recovered(1, timeouts=Timeouts(hang=500)).unanswered(120)
    assert life.did_a(KillRanks) == KillRanks(world_id(1), (0, 1))
    assert {rank.exit.fingerprint for rank in life.died(0, 1).report.ranks} == {"fenced"}


def test_what_a_rank_that_was_started_again_reports_is_its_own():
    life = recovered(1)
    assert (life.report.ranks[1].step, life.report.ranks[1].regroups) == (0, False)
    life.rank_sends(1, hello_pid=2, feature_level=3, regroups=True).heartbeats(1, step=9, steps_here=2)
    found = life.report.ranks[1]
    assert (found.step, found.steps_here, found.regroups, found.exit) == (9, 2, True, None)


def test_a_rank_may_find_out_that_it_cannot_continue_without_others():
    life = recovered(1)
    life.rank_sends(1, hello_pid=2, feature_level=3, regroups=True)
    assert life.report.ranks[1].regroups
    life.rank_sends(1, regroups=False)
    assert not life.report.ranks[1].regroups


def test_a_shard_is_reported_as_the_rank_names_it():
    life = recovered(1)
    files = (ShardFile("rank-1.pt", 1, "0"),)
    life.rank_sends(1, shard_step=9, shard_files=files, shard_world=world_id(2), shard_whole=True)
    life.rank_sends(0, shard_step=9, shard_files=files)
    assert [(shard.rank, shard.world_id, shard.whole) for shard in life.report.shards] == [
        (1, world_id(2), True),
        (0, world_id(1), False),
    ]


# ---- hangs, drains, processes that do not end


def test_a_rank_that_hangs_alone_is_replaced_alone():
    life = a_life()
    for _ in range(3):
        life.wait(2).heartbeats(0, step=8)
    assert life.did_no(KillRanks)
    assert KillRanks(world_id(1), (1,)) in life.all
    assert [effect for effect in life.all if isinstance(effect, KillRanks)] == [KillRanks(world_id(1), (1,))]
    exit = life.died(1).report.ranks[1].exit
    assert (exit.hung, exit.killed) == (True, False)
    life.ordered(lost=(1,)).ordered(plan=a_recovery_plan(2, 1), lost=())
    assert life.did_a(StartRanks).ranks == (1,)
    assert phases(life) == [RankPhase.RUNNING, RankPhase.STARTING]


def test_a_rank_that_was_started_again_has_the_time_of_a_start():
    life = recovered(1)
    for _ in range(200):
        life.wait(3).heartbeats(0, step=8)
        assert life.did_no(KillRanks)
    life.wait(1)
    assert life.did_a(KillRanks) == KillRanks(world_id(1), (1,))
    assert life.died(1).report.ranks[1].exit.late_start


def test_a_drain_without_a_lost_rank():
    life = a_life().died(1).ordered(lost=(1,), pause=world_id(1))
    assert sent(life) == {0: ToRank(pause=True, lost=(1,))}
    life.rank_sends(0, paused=7)
    assert phases(life) == [RankPhase.PAUSED, RankPhase.EXITED]
    assert sent(life.ordered(stop_at=8)) == {0: ToRank(pause=True, stop_at=8, lost=(1,))}
    life.rank_sends(0, drained=8)
    assert phases(life) == [RankPhase.DRAINED, RankPhase.EXITED]


def test_a_rank_that_is_lost_during_a_drain_ends_it_for_nobody_else():
    life = a_life().ordered(pause=world_id(1)).ordered(pause=world_id(1), stop_at=9, lost=(1,))
    assert life.did_a(KillRanks).ranks == (1,)
    assert sent(life) == {0: ToRank(pause=True, stop_at=9, lost=(1,))}
    assert sent(life.died(1).ordered(pause=None, stop_at=None)) == {0: ToRank(lost=(1,))}


def test_a_drain_of_a_plan_that_waits_reaches_the_ranks_that_live_on():
    life = a_life().ordered(plan=a_recovery_plan(2, 1), pause=world_id(2), stop_at=9)
    assert sent(life) == {0: ToRank(pause=True, stop_at=9, live_world=WORLD_2)}


def test_a_lost_rank_that_cannot_be_killed_ends_the_pod_after_the_others():
    life = a_life().ordered(lost=(1,)).receives(RankUnkillable(world_id(), 1, killed(), STUCK))
    assert life.did_a(KillRanks) == KillRanks(world_id(1), (0, 1)), "another pod takes the slot"
    assert life.did_no(Exit)
    assert life.died(0).did_a(Exit) == Exit(3)


def test_a_clean_exit_that_leaves_a_process_ends_the_pod_only_if_the_rank_is_to_be_started_again():
    left = RankUnkillable(world_id(), 1, ProcessExit(0, None), STUCK)
    assert a_life().receives(left).did == ()
    life = a_life().receives(left).ordered(plan=a_recovery_plan(2, 1))
    assert life.did_no(StartRanks)
    assert life.died(0).did_a(Exit) == Exit(3)


def test_without_a_world_no_rank_is_lost():
    assert Life().ordered(lost=(1,)).did == ()


# ---- what Prometheus reads


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_was_started_again_is_counted_as_started_twice(rank: int):
    life = a_life()
    counts = metrics.updated_counts({}, life.state)
    life.died(rank).ordered(plan=a_recovery_plan(2, rank))
    counts = metrics.updated_counts(counts, life.state)
    assert {number: each.starts for number, each in counts.items()} == {0: 1, 1: 1}, "not started yet"
    life.receives(RanksStarted(world_id(1)))
    counts = metrics.updated_counts(counts, life.state)
    assert {number: each.starts for number, each in counts.items()} == {rank: 2, 1 - rank: 1}
    for step in (8, 9):
        life.wait(2).heartbeats(0, step).heartbeats(1, step)
        counts = metrics.updated_counts(counts, life.state)
    made = {number: (each.steps, each.seconds) for number, each in counts.items()}
    assert made == {rank: (1, 2.0), 1 - rank: (2, 4.0)}, "the first step of a process is not measured"
