"""The machine: which ranks may live, and when the agent may end."""

from __future__ import annotations

import pytest
from tests.agent.life import Life, a_plan, killed, world_id

from ropeteam_trainer.agent.machine.effects import (
    DropLink,
    Exit,
    KillRanks,
    StartRanks,
    TerminateRanks,
    WarmUp,
)
from ropeteam_trainer.agent.machine.events import (
    LinkLost,
    LinkUp,
    OrdersReceived,
    ProblemFound,
    RankDying,
    RankExited,
    Terminated,
    Tick,
)
from ropeteam_trainer.contract.config import Start, Timeouts
from ropeteam_trainer.contract.messages import Orders, Problem, RankPhase
from ropeteam_trainer.contract.world import FailReason, ProcessExit
from ropeteam_trainer.launchers import Launch, Run


def test_a_plan_starts_its_ranks_once():
    life = Life().receives(LinkUp()).ordered(plan=a_plan())
    assert life.did_a(StartRanks) == StartRanks(a_plan(), (0, 1), fork=False)
    assert life.ordered(plan=a_plan()).did_no(StartRanks), "orders are repeated, ranks are not"
    assert not life.report.stopped


def test_ranks_of_the_next_world_wait_for_the_last_of_the_previous():
    life = Life().running(1)
    life.ordered(plan=a_plan(2))
    assert life.did_a(KillRanks) == KillRanks(world_id(1), (0, 1))
    assert life.died(0).did_no(StartRanks)
    assert life.wait(1).did == (), "a kill is ordered once"
    assert life.died(1).did_a(StartRanks).plan == a_plan(2)


def test_no_plan_ends_the_world_and_what_we_killed_is_marked():
    life = Life().running().ordered(plan=None)
    life.did_a(KillRanks)
    assert life.report.plan == a_plan(1), "kept until the next one"
    report = life.died(0, 1).report
    assert report.stopped
    assert all(rank.exit.killed for rank in report.ranks)


def test_a_rank_that_died_by_itself_during_the_kill_keeps_its_own_story():
    life = Life().running().ordered(plan=None).died(0, exit=ProcessExit(None, 11))
    assert not life.report.ranks[0].exit.killed


def test_a_dying_rank_is_reported_before_it_is_gone():
    life = Life().running().receives(RankDying(world_id(), 0, killed()))
    assert (life.report.ranks[0].phase, life.report.ranks[1].phase) == (RankPhase.EXITED, RankPhase.RUNNING)
    assert life.died(1).report.stopped is False, "something of rank 0 is left"
    assert life.died(0).report.stopped


def test_a_rank_that_was_dying_when_the_kill_came_keeps_its_own_story():
    life = Life().running().receives(RankDying(world_id(), 0, killed())).ordered(plan=None).died(0, 1)
    assert [rank.exit.killed for rank in life.report.ranks] == [False, True]


def test_a_rank_that_dies_long_is_not_hung():
    life = Life().running().heartbeats(0, step=3).receives(RankDying(world_id(), 0, killed())).wait(60)
    assert life.did_no(KillRanks)


def test_a_plan_that_ended_here_is_never_started_again():
    life = Life().running().ordered(plan=None).died(0, 1).ordered(plan=a_plan(1))
    assert life.did_no(StartRanks)
    assert life.ordered(plan=a_plan(1, restart_count=9)).did_no(StartRanks), "nor another of the same number"


def test_a_rank_fault_kills_nothing_and_ends_nothing():
    life = Life().running().died(0, exit=ProcessExit(1, None))
    assert life.did == ()
    assert not life.report.stopped
    assert life.report.ranks[0].phase is RankPhase.EXITED


@pytest.mark.parametrize("changes", [{"slot": 0}, {"incarnation": 2}, {"pod_uid": "other"}])
def test_a_plan_for_another_pod_of_this_slot_is_not_ours(changes):
    plan = a_plan()
    member = plan.members[0].__class__(**{**plan.members[0].__dict__, **changes})
    members = (plan.members[1],) if changes == {"slot": 0} else (member, plan.members[1])
    assert Life().receives(LinkUp()).ordered(plan=a_plan(members=members)).did_no(StartRanks)


def test_orders_of_a_lower_term_change_nothing_and_the_link_is_dropped():
    life = Life().running()
    life.ordered(term=2)
    before = life.report
    life.receives(OrdersReceived(Orders(term=1, boot=5, number=9)))
    why = "it is of term 1.5, and a coordinator of term 2.0 has answered before; the agent looks for that one"
    assert life.did == (DropLink(why),)
    assert life.report == before


def test_a_stale_coordinator_is_no_sign_of_life():
    life = Life(timeouts=Timeouts(fence=20)).running().ordered(term=2).receives(LinkLost())
    for _ in range(9):
        life.unanswered(2).receives(LinkUp(), OrdersReceived(Orders(term=1, boot=0, number=1)), LinkLost())
        assert not life.state.fenced
    assert life.unanswered(2).did_a(KillRanks).ranks == (0, 1)


def test_without_an_answer_for_fence_seconds_no_rank_lives():
    life = Life().running().wait(500).receives(LinkLost()).wait(119)
    assert life.did_no(KillRanks)
    assert life.wait(1).did_a(KillRanks) == KillRanks(world_id(), (0, 1))
    life.died(0, 1)
    assert life.report.ranks[0].exit.message == (
        "no coordinator answered for spec.recovery.fenceSeconds (120 s), so the agent killed this rank; "
        "check that the coordinator's pod runs and that this node reaches it"
    )
    assert life.report.ranks[0].exit.killed
    life.receives(LinkUp()).ordered()
    assert life.did_no(StartRanks), "the coordinator hears that its world is dead"
    assert life.ordered(plan=a_plan(2)).did_a(StartRanks)


def test_a_short_absence_of_the_coordinator_is_nothing():
    life = Life().running().receives(LinkLost()).wait(100).receives(LinkUp()).wait(100)
    assert life.did == ()


def test_a_refused_agent_kills_its_ranks_and_stays():
    life = Life().running().ordered(refused="older incarnation")
    life.did_a(KillRanks)
    assert life.died(0, 1).did_no(Exit)


def test_a_problem_is_reported_and_nothing_is_started():
    problem = Problem(FailReason.COMMAND_NOT_FOUND, "no such thing")
    life = Life().receives(ProblemFound(problem), LinkUp()).ordered(plan=a_plan())
    assert life.did_no(StartRanks)
    assert life.report.problem == problem


@pytest.mark.parametrize("module", ["checkpoint.decisions.restore", "checkpoint.restore"])
def test_a_missing_checkpoint_is_a_problem_that_no_restart_mends(module: str):
    """For any release of the library in the image."""
    life = (
        Life()
        .running()
        .rank_sends(
            0,
            error_type="CheckpointNotFound",
            error_class=f"ropeteam_trainer.{module}.CheckpointNotFound",
            fingerprint="f",
            message="no step 7",
        )
    )
    assert life.report.problem == Problem(FailReason.CHECKPOINT_NOT_FOUND, "no step 7")


def test_a_users_own_exception_of_that_name_is_an_error_like_any_other():
    life = Life().running()
    life.rank_sends(
        0, error_type="CheckpointNotFound", error_class="__main__.CheckpointNotFound", fingerprint="f"
    )
    assert life.report.problem is None


@pytest.mark.parametrize(
    ("name", "storage"),
    [
        ("ropeteam_trainer.checkpoint.decisions.restore.CheckpointUnavailable", "here"),
        ("ropeteam_trainer.checkpoint.restore.CheckpointUnavailable", "here"),
        ("ropeteam_trainer.checkpoint.decisions.restore.UnavailableElsewhere", "elsewhere"),
        ("ropeteam_trainer.checkpoint.decisions.restore.UnavailableEverywhere", "everywhere"),
        ("__main__.CheckpointUnavailable", ""),
    ],
)
def test_an_exit_shows_that_checkpoints_could_not_be_read(name: str, storage: str):
    life = Life().running().rank_sends(0, error_type=name.split(".")[-1], error_class=name, message="stale")
    exit = life.died(0, exit=ProcessExit(1, None)).report.ranks[0].exit
    assert (exit.storage, exit.message) == (storage, "stale")
    assert life.report.problem is None


def test_exit_zero_comes_after_complete_and_release_only():
    life = Life().running().died(0, 1, exit=ProcessExit(0, None)).ordered(complete=world_id())
    assert life.did_no(Exit)
    assert life.report.completed == world_id()
    assert life.ordered(release=True).did_a(Exit) == Exit(0)
    assert life.receives(Tick(), Terminated()).did == (), "nothing follows Exit"


def test_release_kills_what_still_lives_before_the_exit():
    life = Life().running().ordered(release=True)
    life.did_a(KillRanks)
    assert life.did_no(Exit)
    assert life.died(0, 1).did_a(Exit) == Exit(0)


def test_a_failed_job_kills_what_still_lives_and_ends_its_agents_with_a_code_of_its_own():
    life = Life().running().ordered(failed="RepeatedError: five times the same")
    life.did_a(KillRanks)
    assert life.did_no(Exit)
    assert life.died(0, 1).did_a(Exit) == Exit(4)


def test_sigterm_is_reported_and_answered_with_leave():
    life = Life().running().receives(Terminated())
    assert life.report.terminating
    assert life.did_no(KillRanks), "the world goes on until the coordinator has had its checkpoint"
    life.ordered(leave=True)
    life.did_a(KillRanks)
    assert life.died(0, 1).did_a(Exit) == Exit(143)


def test_leave_without_sigterm_means_nothing():
    assert Life().running().ordered(leave=True).did == ()


def test_sigterm_waits_no_longer_than_its_grace():
    life = Life(timeouts=Timeouts(drain=60)).running().receives(Terminated()).wait(64).receives(Terminated())
    assert life.did_no(KillRanks)
    life.wait(1).did_a(KillRanks)


def test_sigterm_without_a_coordinator_ends_soon():
    assert Life().receives(Terminated()).did_a(Exit) == Exit(143), "idle: at once"
    life = Life().running().receives(LinkLost(), Terminated()).wait(4)
    assert life.did_no(KillRanks), "it may come back"
    life.wait(1).did_a(KillRanks)


def test_a_drain_of_a_script_that_saves_by_itself():
    life = Life(timeouts=Timeouts(drain=30)).running().ordered(pause=world_id(), terminate=True)
    assert life.did_a(TerminateRanks) == TerminateRanks(world_id(), (0, 1))
    assert life.wait(29).did_no(KillRanks)
    assert life.wait(1).did_a(KillRanks) == KillRanks(world_id(), (0, 1))
    assert life.wait(1).did == ()
    life.died(0, exit=ProcessExit(None, 15))
    assert life.report.ranks[0].exit.killed


def test_terminate_of_another_world_is_not_ours():
    assert Life().running().ordered(pause=world_id(7), terminate=True).did == ()
    assert Life().running().ordered(terminate=True).did == ()


def test_ranks_are_forked_on_request_or_once_the_library_was_seen():
    always = Life(start=Start.FORK).receives(LinkUp())
    always.did_a(WarmUp)
    assert always.ordered(plan=a_plan()).did_a(StartRanks).fork
    later = Life(start=Start.AUTO).running()
    assert later.rank_sends(0, hello_pid=1, feature_level=1).did_no(WarmUp)
    assert later.heartbeats(0, 1).did_no(WarmUp), "rank 1 still starts"
    later.heartbeats(1, 1).did_a(WarmUp)
    assert later.heartbeats(0, 2).heartbeats(1, 2).wait(1).did_no(WarmUp), "once"
    assert later.ordered(plan=a_plan(2)).died(0, 1).did_a(StartRanks).fork
    later.heartbeats(0, 3, 2).heartbeats(1, 3, 2).did_a(WarmUp)
    never = (
        Life(start=Start.AUTO, launch=Launch(Run.COMMAND, ("sh",))).running().rank_sends(0, feature_level=1)
    )
    assert never.did_no(WarmUp)


def test_a_pod_that_replaces_another_forks_its_first_ranks_if_the_library_was_seen():
    knows = Life(start=Start.AUTO, feature_level=1).receives(LinkUp())
    knows.did_a(WarmUp)
    assert knows.ordered(plan=a_plan()).did_a(StartRanks).fork
    assert knows.report.feature_level == 1
    assert Life(start=Start.EXEC, feature_level=1).receives(LinkUp()).did_no(WarmUp)


def test_a_command_that_runs_once_per_pod_counts_for_all_ranks():
    life = Life(launch=Launch(Run.COMMAND, ("sh",), per_pod=True)).running()
    life.died(0, exit=ProcessExit(0, None))
    assert [rank.exit.clean for rank in life.report.ranks] == [True, True]
    assert life.report.stopped


def test_events_of_a_previous_world_change_nothing():
    life = Life().running(1).ordered(plan=a_plan(2)).died(0, 1)
    before = life.report
    assert life.died(0, n=1).rank_sends(0, feature_level=3).heartbeats(0, 5).report == before
    assert Life().receives(RankExited(world_id(), 0, ProcessExit(0, None))).did == ()
    assert life.rank_sends(9, n=2, feature_level=0).report == before, "nor of a rank that is not here"
