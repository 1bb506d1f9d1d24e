"""After a boot: what the coordinator before us had made is adopted, superseded or ended, never run twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lab.coordinator.reports import CLEAN, KILLED, SIGKILL
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.fence import longest_life
from ropeteam_trainer.contract.messages import RankPhase
from ropeteam_trainer.contract.world import Cause, CheckpointRef, Plan, WorldId


def test_nothing_is_ordered_until_a_world_is_adopted():
    film = Timeline(workers=3).up(step=7)
    film.reboots()
    film.desires()
    film.reports(0)
    film.reports(1)
    assert film.phase == "Waiting"
    assert film.orders(0) is None
    film.reports(2)
    assert film.phase == "Running"
    assert film.world_id == WorldId(1, 0, 1), "untouched: the very same world"
    assert film.sent_orders(1).plan == film.agents[1].plan
    assert film.report.incidents == ()


def test_agents_that_came_before_the_operator_spoke_are_remembered():
    film = Timeline().up(step=7)
    film.reboots()
    film.reports(0)
    film.reports(1)
    assert film.report.why == "waiting for the operator's first request"
    film.desires()
    assert film.phase == "Running"


def test_the_next_world_id_of_a_new_boot_is_higher_than_any_before():
    film = Timeline().up(step=7)
    film.reboots()
    film.desires()
    film.applies_orders()
    film.reports(0)
    film.reports(1)
    film.exits(1, SIGKILL)
    film.applies_orders()
    assert film.phase == "Running"
    assert film.world_id == WorldId(1, 1, 1)
    plan = film.sent_orders(0).plan
    assert plan is not None
    assert plan.restart_count == 1


def test_a_fault_while_nobody_watched_is_handled_at_once_when_we_are_back():
    film = Timeline().up(step=7)
    film.reboots()
    film.exits(1, SIGKILL)
    film.desires()
    film.reports(0)
    assert film.phase == "Stopping"
    assert (film.incident.id, film.incident.cause, film.incident.step) == ("1.0.1", Cause.SIGNAL, 7)


def test_a_world_that_the_one_before_us_had_ended_brings_no_second_incident():
    film = Timeline().up(step=7)
    film.reboots()
    for slot in (0, 1):
        film.exits(slot, KILLED)
    film.desires()
    assert film.phase == "Forming"
    assert film.report.incidents == ()
    film.applies_orders()
    assert film.phase == "Running"


def test_a_missing_member_is_waited_for_one_lease_then_it_is_a_fault_of_that_world():
    film = Timeline().up(step=7)
    film.reboots()
    film.falls_silent(1)
    film.desires()
    film.reports(0)
    film.later(4.5)
    assert film.phase == "Waiting"
    film.later(1)
    assert film.phase == "Stopping"
    assert (film.incident.cause, film.incident.slot) == (Cause.AGENT_LOST, 1)
    assert [request.slot for request in film.report.replacement_requests] == [1]


def test_a_pod_that_was_replaced_meanwhile_ends_the_old_world():
    film = Timeline().up(step=7)
    film.reboots()
    film.desires_slot(1, incarnation=2, pod_uid="pod-1-2")
    film.reports(0)
    film.replaces(1)
    assert film.phase == "Stopping"
    assert (film.incident.cause, film.incident.charged) == (Cause.AGENT_LOST, False)
    film.applies_orders()
    assert film.phase == "Running"


def test_a_half_delivered_plan_is_superseded():
    film = Timeline().up(step=7)
    film.exits(1, SIGKILL)
    film.applies_orders(0)  # slot 0 has got world 2, slot 1 not yet
    assert film.agents[0].plan != film.agents[1].plan
    film.reboots()
    film.desires()
    film.reports(0)
    film.reports(1)
    assert film.phase == "Stopping"
    assert film.sent_orders(0).plan is None
    film.applies_orders()
    assert film.world_id == WorldId(1, 1, 1)
    assert film.report.incidents == ()


def test_a_member_that_never_confirmed_must_show_that_it_applied_the_withdrawal():
    film = Timeline().up(step=7)
    film.exits(1, SIGKILL)
    film.applies_orders(0)
    assert film.phase == "Running"
    film.exits(0, SIGKILL)
    film.applies_orders(0)
    film.reports(1, applied=False)
    assert film.phase == "Stopping", "the plan of world 2 may still be on its way to slot 1"
    film.reports(1, applied=True)
    assert film.phase == "Forming", "nothing but the backoff is waited for: world 2 made no step"
    film.later(1)
    assert film.world_id == WorldId(1, 0, 3)


def test_agents_without_any_world_form_one_at_once_under_a_new_term():
    film = Timeline(term=2)
    film.desires()
    film.reports(0)
    assert film.phase == "Waiting"
    film.reports(1)
    film.applies_orders()
    assert film.world_id == WorldId(2, 0, 1)


def test_nobody_reports_and_the_job_is_to_be_drained():
    film = Timeline(boot=1)
    film.desires(drain=True)
    film.later(4)
    assert film.phase == "Waiting"
    film.later(2)
    assert film.phase == "Forming", "whether ranks live is known to nobody"


def test_nobody_reports_for_as_long_as_ranks_live_without_an_answer():
    film = Timeline(boot=1)
    film.desires()
    film.later(longest_life(film.config.timeouts.fence) - 0.1)
    assert film.phase == "Waiting"
    film.later(0.1)
    assert film.phase == "Forming", "nothing is left that could be adopted"
    film.reports(0)
    film.reports(1)
    film.applies_orders()
    assert film.phase == "Running"


def test_a_completion_that_one_agent_knows_of_is_completed_for_all():
    film = Timeline().up(step=7)
    film.exits(0, CLEAN)
    film.exits(1, CLEAN)
    film.reports(1, completed=film.world_id)
    film.reboots()
    film.desires()
    film.reports(1)
    assert film.phase == "Completing"
    film.reports(0)
    assert film.sent_orders(0).complete == film.world_id
    film.applies_orders()
    assert film.phase == "Complete"


def test_completion_does_not_wait_for_agents_that_never_come_back():
    film = Timeline().up(step=7)
    film.exits(0, CLEAN)
    film.exits(1, CLEAN)
    film.reports(1, completed=film.world_id)
    film.reboots()
    film.falls_silent(0)
    film.desires()
    film.reports(1)
    film.later(4)
    assert film.phase == "Completing"
    film.later(2)
    assert film.phase == "Complete"


def test_the_lineage_is_rebuilt_from_the_operator_and_from_the_agents():
    film = Timeline(feature_level=2).up(step=10)
    film.saves(10)
    film.applies_orders()
    film.reaches(20)
    film.saves(20)
    granted = film.sent_orders(0).grant
    assert granted is not None
    film.reports(0, granted=granted.ref)
    known = film.report.lineage
    film.reboots()
    film.desires(lineage=known)
    film.reports(0)
    film.reports(1)
    assert film.phase == "Running"
    assert film.lineage == [(10, "digest-10")]
    film.applies_orders()
    assert film.lineage == [(20, "digest-20"), (10, "digest-10")], "the same grant is given again"


def test_a_manifest_that_is_being_written_is_the_parent_of_the_next():
    """A disk is slow: step 20 is on its way, and 30 is saved meanwhile. Without its parent a manifest is no
    proof that 30 descends from what status names."""
    film = Timeline(feature_level=2).up(step=20)
    film.saves(20)
    granted = film.sent_orders(0).grant
    assert granted is not None
    film.reports(0, granted=granted.ref)
    film.reaches(30)
    film.saves(30)
    film.reboots()
    film.desires()
    film.reports(0)
    film.reports(1)
    assert film.sent_orders(0).grant == granted, "the same grant is given again"
    film.reports(0, committed=replace(granted.ref, digest="d"))
    later = film.sent_orders(0).grant
    assert later is not None
    assert (later.ref.step, later.parent) == (30, replace(granted.ref, digest="d"))


def test_a_commit_that_the_operator_has_not_received_is_not_lost():
    film = Timeline(feature_level=2).up(step=10)
    film.saves(10)
    film.applies_orders()
    film.reboots()
    film.desires()
    film.reports(0)
    film.reports(1)
    assert film.lineage == [(10, "digest-10")]


def test_a_checkpoint_of_a_world_that_was_left_behind_stays_behind():
    orphan = CheckpointRef(100, WorldId(1, 0, 1), "orphan")
    preserved = CheckpointRef(90, WorldId(1, 0, 1), "kept")
    film = Timeline(feature_level=2).up(step=10)
    film.reports(
        0, restored=preserved, committed=orphan, plan=replace(_plan(film), world_id=WorldId(1, 0, 2))
    )
    film.reports(1, plan=film.agents[0].plan)
    film.reboots()
    film.desires(lineage=(preserved,))
    film.reports(0)
    film.reports(1)
    assert film.phase == "Running"
    assert film.lineage == [(90, "kept")]


def test_a_plan_of_another_shape_is_not_adopted():
    film = Timeline().up(step=7)
    plan = replace(_plan(film), members=_plan(film).members[:1])
    film.reboots()
    for slot in (0, 1):
        film.reports(slot, plan=plan, completed=plan.world_id)
    film.desires()
    assert film.phase == "Forming"
    assert film.sent_orders(0).plan is None
    assert film.report.why == "waiting for the ranks of slot 0 to end"
    film.applies_orders()
    assert film.phase == "Running"


def test_two_coordinators_the_older_one_falls_silent():
    film = Timeline().up(step=7)
    film.reports(1, term=2)
    assert film.orders(0) is None
    assert film.report.why == (
        "sending no orders: the agent of slot 1 follows a newer coordinator than 1.0 (term.boot); the "
        "operator replaces this one"
    )
    assert film.report.newer_term == 2, "status may be older than the agents: the operator opens one above"
    film.exits(0, SIGKILL)
    assert film.phase == "Running", "it judges nothing any more"


def test_no_world_id_is_used_twice_where_a_pod_of_the_same_term_and_boot_was_forgotten():
    """A status that was restored makes a pod again of which it did not know, while its agents live on."""
    film = Timeline().up(step=7)
    film.reboots()
    twin = replace(_plan(film), world_id=WorldId(1, 1, 4))
    film.reports(0, plan=twin)
    film.reports(1, plan=twin)
    film.desires()
    assert film.phase == "Running"
    film.exits(0, SIGKILL)
    film.applies_orders()
    assert _plan(film).world_id == WorldId(1, 1, 5)


def test_a_plan_of_a_later_boot_silences_too():
    film = Timeline().up(step=7)
    film.reports(1, plan=replace(_plan(film), world_id=WorldId(1, 3, 1)))
    assert film.report.why.startswith("sending no orders:")
    assert film.report.newer_term == 1


def test_a_world_in_mid_drain_is_brought_to_its_end():
    film = Timeline(feature_level=2).up(step=7)
    film.reboots()
    film.ranks(0, RankPhase.DRAINED, 8)
    film.ranks(1, RankPhase.RUNNING, 7)
    film.desires()
    assert film.phase == "Draining"
    assert film.sent_orders(1).stop_at == 8


@pytest.mark.parametrize("requested", [True, False])
def test_the_step_to_stop_at_is_that_of_the_boot_before_though_a_rank_waits_there(requested: bool):
    """Rank 1 saves at step 8, where rank 0 waits: one step beyond it would wait for rank 1, and that for its
    shard."""
    film = Timeline(feature_level=2).up(step=7)
    film.reboots()
    ordered = tuple(replace(rank, step=8, pause_received=True, stop_at=8) for rank in film.agents[1].ranks)
    film.reports(1, ranks=ordered)
    film.ranks(0, RankPhase.PAUSED, 8)
    film.desires(drain=requested)
    assert film.phase == "Draining"
    assert film.sent_orders(0).stop_at is None, "the order may be of a drain that was withdrawn since"
    film.reports(1)
    assert film.sent_orders(0).stop_at == 8


def _plan(film: Timeline) -> Plan:
    plan = film.agents[0].plan
    assert plan is not None
    return plan
