"""With parameter servers the ranks of slots that are well live on when another one is replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lab.coordinator.reports import CLEAN, SIGKILL, raised
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.desired import Stage
from ropeteam_trainer.contract.messages import RankPhase
from ropeteam_trainer.contract.world import Cause, CheckpointRef, Plan
from ropeteam_trainer.coordinator.membership import step as membership

WORKERS, SERVERS, EVERYBODY = (0, 1, 2), (3, 4), (0, 1, 2, 3, 4)


def film(feature_level: int = 3) -> Timeline:
    """Three workers and two servers at step 10."""
    return Timeline(workers=3, servers=2, feature_level=feature_level).up(step=10)


def struck(*slots: int, how=SIGKILL) -> Timeline:
    """All ranks of these slots die, one slot after the other, before any agent has received the others."""
    seen = film()
    for slot in slots:
        seen.exits(slot, how)
    return seen


def recovered(seen: Timeline) -> Plan:
    """The plan after the backoff, known to all."""
    seen.applies_orders()
    seen.later(3)
    seen.applies_orders()
    assert seen.phase == "Running"
    plan = seen.sent_orders(0).plan
    assert plan is not None
    assert plan.world_id == seen.world_id
    return plan


def others(*slots: int) -> tuple[int, ...]:
    return tuple(slot for slot in EVERYBODY if slot not in slots)


@pytest.mark.parametrize("slot", EVERYBODY)
def test_a_rank_dies_and_the_others_go_on(slot):
    seen = struck(slot)
    old = seen.sent_orders(others(slot)[0]).plan
    assert seen.phase in ("Stopping", "Forming")
    assert seen.sent_orders(slot).plan is None
    assert all(seen.sent_orders(other).plan == old for other in others(slot)), "their world goes on meanwhile"
    assert "the ranks of 4 slots continue" in seen.report.why
    seen.applies_orders()
    plan = seen.sent_orders(0).plan
    assert seen.phase == "Running"
    assert plan.preserved == others(slot)
    assert plan.world_id > old.world_id
    assert {plan.started_in(other) for other in others(slot)} == {old.world_id}
    assert (plan.started_in(slot), plan.server_generation) == (plan.world_id, old.world_id)
    assert seen.incident.slot == slot
    assert (seen.incident.steps_lost, len(seen.report.incidents)) == (0, 1)


def test_a_leading_server_that_died_is_granted_nothing():
    seen = struck(SERVERS[0])
    seen.saves(20, SERVERS[0])
    assert seen.phase in ("Stopping", "Forming")
    assert seen.sent_orders(SERVERS[0]).grant is None, "who would write it has died"
    seen.applies_orders()
    assert seen.lineage == []


def test_without_servers_all_end():
    seen = Timeline(workers=3, feature_level=3).up(step=10)
    seen.exits(1, SIGKILL)
    assert [seen.sent_orders(slot).plan for slot in (0, 1, 2)] == [None] * 3


def test_a_world_of_preserved_ranks_runs_once_all_have_made_a_step():
    seen = struck(1)
    seen.applies_orders()
    assert seen.report.stage is Stage.FIRST_STEP
    seen.reaches(12, base=11)
    assert seen.report.stage is Stage.TRAINING
    assert seen.incident.recovery_milliseconds.first_step is not None


def test_a_preserved_rank_that_has_ended_well_takes_part_as_it_is():
    seen = film()
    seen.exits(0, CLEAN)
    seen.exits(1, SIGKILL)
    seen.applies_orders()
    assert seen.sent_orders(0).plan.preserved == others(1), "its script is not run again"
    seen.ranks(1, RankPhase.RUNNING, 11)
    seen.reaches(11)
    seen.exits(0, CLEAN)
    for slot in others(0):
        seen.exits(slot, CLEAN)
    assert seen.phase == "Completing"


@pytest.mark.parametrize("steps_here", [True, False])
def test_done_ranks_do_not_keep_a_world_from_running(steps_here):
    seen = struck(1)
    seen.applies_orders()
    if steps_here:
        seen.reaches(11)
    else:
        seen.exits(1, CLEAN)
    assert seen.report.stage is Stage.TRAINING


def test_the_death_of_a_preserved_rank_counts_before_its_agent_knows_the_new_plan():
    seen = struck(1)
    seen.applies_orders(1)
    assert seen.phase == "Forming", "the store of slot 0 is missing"
    seen._apply_orders(0)
    assert seen.phase == "Running"
    before = seen.agents[2]
    assert before.plan != seen.state.world.plan
    seen.exits(2, SIGKILL)
    assert seen.phase in ("Stopping", "Forming")
    assert seen.sent_orders(2).plan is None
    assert recovered(seen).preserved == others(1, 2), "slot 1 had not confirmed that world yet"
    assert {each.slot for each in seen.report.incidents} == {1, 2}


def test_a_preserved_rank_that_fails_while_the_world_forms_is_replaced_as_well():
    seen = struck(1)
    seen.exits(4, SIGKILL)
    assert seen.sent_orders(4).plan is None
    seen.applies_orders()
    assert seen.sent_orders(0).plan.preserved == (0, 2, 3)
    assert seen.sent_orders(0).plan.origin is not None, "the server's state is in the memory of its pod"
    assert len(seen.report.incidents) == 1, "what fails during one recovery is one incident"


def test_a_slot_that_is_not_preserved_any_more_never_is_again():
    """The order to end it may be on its way."""
    seen = struck(1)
    seen.falls_silent(2)
    seen.later(6)
    assert seen.phase == "Forming"
    seen.silent.clear()
    seen.reports(2)
    assert seen.sent_orders(2).plan is None
    assert not seen.agents[2].stopped
    seen.applies_orders()
    assert seen.sent_orders(0).plan.preserved == (0, 3, 4)


@pytest.mark.parametrize("slot", SERVERS)
def test_a_lost_server_sends_all_back_to_the_checkpoint(slot):
    seen = film()
    seen.saves(8, 3)
    seen.applies_orders()
    seen.falls_silent(slot)
    seen.later(6)
    assert all(seen.sent_orders(other).plan is None for other in others(slot))
    seen.replaces(slot)
    seen.applies_orders()
    plan = seen.sent_orders(0).plan
    assert (plan.preserved, plan.origin) == ((), None)
    assert plan.restore[0].step == 8


def test_a_lost_worker_is_replaced_alone():
    seen = film()
    old = seen.world_id
    seen.falls_silent(2)
    seen.later(6)
    assert seen.phase == "Forming"
    seen.replaces(2)
    seen.applies_orders()
    plan = seen.sent_orders(0).plan
    assert (plan.preserved, plan.server_generation) == (others(2), old)
    assert plan.member(2).incarnation == 2


def test_a_terminating_worker_disturbs_nobody():
    seen = film()
    seen.reports(1, terminating=True)
    seen.later(2)
    seen.applies_orders()
    assert seen.sent_orders(1).leave
    assert all(seen.sent_orders(slot).plan and not seen.sent_orders(slot).pause for slot in others(1))
    seen.replaces(1)
    seen.applies_orders()
    assert seen.sent_orders(0).plan.preserved == others(1)
    assert seen.incident.cause is Cause.POD_DELETED


def test_when_all_ranks_die_at_once_servers_still_go_on_from_memory():
    seen = film()
    old = seen.world_id
    seen.exits(0, SIGKILL)
    for slot in others(0):
        seen.exits(slot, SIGKILL)
    seen.applies_orders()
    plan = seen.sent_orders(0).plan
    assert (plan.preserved, plan.origin) == ((), old)


def test_a_server_that_was_not_there_from_the_start_remembers_nothing():
    """The plan that begins again has not reached its agent: what it has in memory is of another line."""
    seen = film()
    seen.falls_silent(3)
    seen.later(6)
    seen.replaces(3)
    seen.applies_orders(4)
    seen.applies_orders(0, 1, 2, 3)
    assert seen.phase == "Running"
    assert (seen.agents[3].plan.origin, seen.agents[4].plan.world_id.n) == (None, 1)
    seen.exits(0, SIGKILL)
    assert [seen.sent_orders(slot).plan for slot in EVERYBODY] == [None] * 5


@pytest.mark.parametrize("replacement", [{"drain": True}, {"attempt": 2}])
def test_what_ends_the_whole_world_keeps_nobody(replacement: dict[str, int]):
    seen = struck(1)
    assert seen.sent_orders(0).plan
    seen.desires(**replacement)
    assert [seen.sent_orders(slot).plan for slot in EVERYBODY] == [None] * 5


def test_a_job_that_has_failed_keeps_nobody():
    seen = Timeline(workers=3, servers=2, feature_level=3, no_progress_limit=1).up(step=10)
    seen.exits(1, raised())
    seen.applies_orders(1)
    assert seen.phase == "Failed"
    assert [seen.sent_orders(slot).plan for slot in EVERYBODY] == [None] * 5


def test_two_failures_of_one_rank_replace_its_pod_and_no_other():
    seen = film()
    for _ in range(3):
        seen.later(70)
        seen.applies_orders()
        seen.exits(1, SIGKILL)
        seen.applies_orders()
    assert [request.slot for request in seen.report.replacement_requests] == [1]
    assert not seen.report.replace_all


def test_the_same_error_again_is_the_scripts_though_others_make_steps():
    seen = film()
    for step in (20, 30, 40):
        seen.exits(1, raised())
        seen.later(70)
        seen.applies_orders()
        for slot in others(1):
            if seen.agents[slot].ranks:
                seen.ranks(slot, RankPhase.RUNNING, step)
    assert seen.phase == "Failed"


# ---- checkpoints


def lineage(seen: Timeline) -> list[tuple[int, str]]:
    return [(ref.step, str(ref.world_id)) for ref in seen.report.lineage]


def test_the_first_server_alone_saves():
    seen = film()
    seen.saves(8, 0, 4)
    assert seen.state.grant is None
    seen.saves(8, 3)
    assert [slot for slot in EVERYBODY if seen.sent_orders(slot).grant] == [3]
    assert seen.sent_orders(3).grant.world_size == 5
    assert [file.name for file in seen.sent_orders(3).grant.files] == ["rank-3.pt"]
    seen.applies_orders()
    assert lineage(seen) == [(8, "1.0.1")]


def test_a_preserved_chief_continues_to_save_under_its_own_world():
    seen = struck(1)
    saves_as_started(seen, 11)
    seen.applies_orders(3)
    assert (seen.phase, lineage(seen)) == ("Forming", [(11, "1.0.1")])
    seen.applies_orders()
    assert seen.world_id.n == 2
    saves_as_started(seen, 12)
    seen.applies_orders()
    assert lineage(seen) == [(12, "1.0.1"), (11, "1.0.1")]


def test_a_grant_outlives_a_plan_that_keeps_the_chief():
    seen = film()
    saves_as_started(seen, 11)
    seen.exits(1, SIGKILL)
    seen.applies_orders(0, 1, 2, 4)
    assert seen.world_id.n == 2
    assert seen.sent_orders(3).grant.ref == CheckpointRef(11, seen.state.world.plan.server_generation)
    seen.applies_orders()
    assert lineage(seen) == [(11, "1.0.1")]


def test_a_grant_that_is_being_written_is_not_overtaken_by_the_next():
    seen = film()
    for step in (11, 12):  # the first is granted, and its disk is slow
        saves_as_started(seen, step)
    seen.exits(1, SIGKILL)
    seen.applies_orders(0, 1, 2, 4)
    assert (seen.world_id.n, seen.sent_orders(3).grant.ref.step) == (2, 11)
    seen.applies_orders()
    assert lineage(seen) == [(12, "1.0.1"), (11, "1.0.1")]


def test_what_was_being_written_when_the_chief_died_counts_for_a_line_that_goes_on():
    seen = struck(3)
    seen.applies_orders()
    assert seen.world_id.n == 2
    seen.reports(3, committed=CheckpointRef(11, seen.state.world.plan.server_generation, "d1"))
    assert lineage(seen) == [(11, "1.0.1")]


def test_a_chief_that_is_back_saves_under_its_new_world():
    seen = struck(3)
    seen.applies_orders()
    saves_as_started(seen, 12)
    seen.applies_orders()
    assert lineage(seen) == [(12, "1.0.2")]


def test_only_the_chiefs_agent_reports_where_it_resumed():
    seen = Timeline(workers=3, servers=2, feature_level=3)
    before = CheckpointRef(5, replace(seen.state.next_world_id, n=9), "d")
    seen.desired = replace(seen.desired, lineage=(before,))
    seen.up(step=10)
    seen.reports(0, restored=before)
    assert seen.state.world.restored is None
    seen.reports(3, restored=before)
    assert seen.state.world.restored == before


def saves_as_started(seen: Timeline, step: int) -> None:
    """As the film's `saves`, but under the world that started the chief."""
    seen.saves(step, 3)
    report = seen.agents[3]
    started_in = report.plan.started_in(3)
    seen.reports(3, shards=tuple(replace(shard, world_id=started_in) for shard in report.shards))


# ---- a server leaves


def test_when_a_server_leaves_all_stop_where_the_first_worker_waits():
    seen = film()
    seen.reports(4, terminating=True)
    seen.later(1.1)
    assert seen.phase == "Draining"
    assert all(seen.sent_orders(slot).pause == seen.world_id for slot in EVERYBODY)
    seen.ranks(3, RankPhase.PAUSED, 11)
    for slot, step in zip(WORKERS, (12, 15, 11), strict=True):
        assert seen.state.world.stop_at is None, "some have not said yet where they are"
        seen.ranks(slot, RankPhase.PAUSED, step)
    assert seen.sent_orders(0).stop_at == 15
    seen.saves(15, 3)
    for slot in EVERYBODY:
        seen.ranks(slot, RankPhase.DRAINED, 15)
    assert seen.phase == "Draining", "the checkpoint is not committed yet"
    seen.applies_orders()
    assert lineage(seen) == [(15, "1.0.1")]
    assert all(seen.sent_orders(slot).plan is None for slot in EVERYBODY)


def test_a_worker_that_waits_for_a_paused_one_is_set_free():
    seen = film()
    seen.reports(4, terminating=True)
    seen.later(1.1)
    seen.ranks(0, RankPhase.PAUSED, 12)
    seen.ranks(1, RankPhase.RUNNING, 14)
    assert seen.sent_orders(0).stop_at is None
    seen.later(1.1)
    assert seen.sent_orders(0).stop_at == 15


def test_a_worker_that_is_done_is_not_waited_for_in_a_drain():
    seen = film()
    seen.exits(0, CLEAN)
    seen.desires(drain=True)
    for slot in others(0):
        seen.ranks(slot, RankPhase.PAUSED, 12)
    assert seen.sent_orders(1).stop_at == 12
    seen.saves(12, 3)
    for slot in others(0):
        seen.ranks(slot, RankPhase.DRAINED, 12)
    assert seen.phase == "Draining"
    seen.applies_orders()
    assert (seen.phase, lineage(seen)) == ("Drained", [(12, "1.0.1")])


def test_a_slot_beyond_the_servers_is_no_part_of_the_job():
    seen = film()
    assert membership.job_report(seen.state, seen.now).slots.keys() == set(map(str, EVERYBODY))
    assert seen.report.world_size == 5
