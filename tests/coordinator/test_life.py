"""The life of a world, frame by frame: it forms, runs, is struck, comes back, and ends."""

from __future__ import annotations

from lab.coordinator.reports import CLEAN, SIGKILL, raised
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.world import Cause, WorldId


def test_a_world_forms_when_every_slot_is_registered_and_the_store_is_held():
    film = Timeline()
    film.reports(0)
    assert film.orders(0) is None, "the operator has not spoken: order nothing"
    film.desires()
    assert film.phase == "Forming"
    assert film.report.why == "waiting for the agent of slot 1 to register"
    assert film.sent_orders(0).host_store == WorldId(1, 0, 1)
    film.reports(1)
    assert film.sent_orders(1).host_store is None, "only the lowest slot holds the store"
    film.applies_orders(0)
    assert film.phase == "Running"
    plan = film.sent_orders(1).plan
    assert plan is not None
    assert plan == film.sent_orders(0).plan
    assert [member.pod_uid for member in plan.members] == ["pod-0-1", "pod-1-1"]
    assert (plan.store_host, plan.store_port, plan.restart_count) == ("10.0.0.1", 29501, 0)


def test_a_killed_rank_costs_one_incident_and_the_gang_restarts_in_place():
    film = Timeline().up(step=7)
    film.exits(1, SIGKILL)
    assert film.phase == "Stopping"
    assert film.report.why == "ending the ranks of world 1.0.1, because Signal: rank 1 was killed by SIGKILL"
    assert film.sent_orders(0).plan is None
    assert film.sent_orders(0).host_store == WorldId(1, 0, 2), (
        "the next store is asked for in the same instant"
    )
    film.applies_orders(0)
    assert film.phase == "Running"
    assert film.world_id == WorldId(1, 0, 2)
    incident = film.incident
    assert (incident.id, incident.cause, incident.slot, incident.rank) == ("1.0.1", Cause.SIGNAL, 1, 1)
    assert (incident.charged, incident.final, incident.step) == (True, True, 7)
    plan = film.sent_orders(0).plan
    assert plan is not None
    assert plan.restart_count == 1


def test_the_plan_is_published_when_the_last_of_store_and_stopped_arrives():
    film = Timeline(workers=3).up(step=7)
    film.exits(1, SIGKILL)
    film.applies_orders(0)
    assert film.agents[0].store is not None
    assert film.phase == "Stopping", "slot 2 still has a living rank"
    film.applies_orders(2)
    assert film.phase == "Running"


def test_the_stages_of_a_recovery_are_reported_in_milliseconds():
    film = Timeline().up(step=7)
    film.exits(1, SIGKILL)
    film.now += 0.25
    film.applies_orders(0)
    film.now += 0.5
    film.applies_orders()
    film.now += 0.25
    film.reaches(6, base=5)
    stages = film.incident.recovery_milliseconds
    assert (stages.stopped, stages.planned, stages.started, stages.first_step) == (250, 250, 750, 1000)
    assert film.incident.steps_lost == 2, "it was at step 7 and went on from 5"


def test_completion_takes_all_ranks_then_an_acknowledgement_from_all_then_release():
    film = Timeline().up(step=7)
    film.exits(0, CLEAN)
    assert film.phase == "Running", "one clean end is no fault"
    film.exits(1, CLEAN)
    assert film.phase == "Completing"
    assert (film.sent_orders(0).complete, film.sent_orders(0).release) == (film.world_id, False)
    film.reports(0, completed=film.world_id)
    assert film.phase == "Completing"
    film.reports(1, completed=film.world_id)
    assert film.phase == "Complete"
    assert film.sent_orders(0).release
    assert film.sent_orders(1).release
    assert film.report.incidents == ()


def test_a_clean_exit_and_a_fault_restart_the_whole_gang():
    film = Timeline().up(step=7)
    film.exits(0, CLEAN)
    film.exits(1, raised())
    assert film.phase in ("Stopping", "Forming")
    assert film.incident.cause is Cause.ERROR
    assert not film.sent_orders(0).release
    film.applies_orders()
    assert film.phase == "Running"


def test_a_checkpoint_is_committed_in_two_steps():
    film = Timeline(feature_level=2).up(step=10)
    film.saves(10, 0)
    assert film.sent_orders(0).grant is None, "rank 1 has not written its shard"
    film.saves(10, 1)
    grant = film.sent_orders(0).grant
    assert grant is not None
    assert film.sent_orders(1).grant is None
    assert (grant.ref.step, grant.world_size, grant.parent) == (10, 2, None)
    assert [file.name for file in grant.files] == ["rank-0.pt", "rank-1.pt"]
    assert film.report.lineage == ()
    film.applies_orders(0)
    assert film.lineage == [(10, "digest-10")]
    assert film.sent_orders(0).grant is None
    assert film.sent_orders(1).lineage == film.report.lineage
