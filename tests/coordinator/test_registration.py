"""Registration of agents: the operator's choice is final, a lease must be renewed, and our own pauses harm
nobody."""

from __future__ import annotations

from dataclasses import replace

from lab.coordinator.reports import SIGKILL, agent
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.messages import AgentReport, StoreOffer
from ropeteam_trainer.contract.world import Cause, WorldId
from ropeteam_trainer.coordinator.membership import step as membership


def refused(film: Timeline, foreign: AgentReport) -> str:
    film.event(membership.ReportReceived(foreign))
    orders = membership.orders_for_sender(film.state, foreign, film.now)
    return orders.refused if orders else ""


def test_foreign_pods_are_refused_with_a_reason():
    film = Timeline().up(step=3)
    assert refused(film, agent(0, job_uid="other")) == "this is the coordinator of job job-uid, not of other"
    assert refused(film, agent(0, contract=9)) == "contract 9 is unknown; this coordinator supports 1 to 3"
    assert refused(film, agent(5)) == "slot 5 is not part of this job"
    assert refused(film, agent(0, pod_uid="twin")) == "slot 0 is held by another pod (pod-0-1)"
    assert refused(film, agent(0, incarnation=0)) == "incarnation 0 of slot 0 was replaced by 1"
    assert film.phase == "Running", "none of them changed anything"


def test_a_terminating_foreign_pod_may_leave():
    film = Timeline().up(step=3)
    foreign = agent(0, pod_uid="twin", terminating=True)
    orders = membership.orders_for_sender(film.state, foreign, film.now)
    assert orders is not None
    assert orders.leave


def test_slots_that_the_operator_does_not_name_are_refused():
    film = Timeline(workers=3)
    film.desires(slots={"0": film.desired.slots["0"]})
    assert refused(film, agent(1)) == "slot 1 is not part of this job"
    assert film.report.why == "waiting for the agent of slot 0 to register"


def test_a_pod_that_the_operator_has_not_seen_yet_waits_without_orders():
    film = Timeline()
    film.desires_slot(1, pod_uid="")
    film.reports(0)
    film.reports(1)
    assert film.orders(1) is None
    assert film.report.why == "waiting for the pod of slot 1 to be created"
    film.applies_orders(0)
    film.desires_slot(1, pod_uid="pod-1-1")
    assert film.phase == "Running", "it had registered already"


def test_an_operator_that_does_not_see_a_pod_withdraws_nothing():
    film = Timeline().up(step=3)
    film.desires_slot(1, pod_uid="")
    assert film.phase == "Running"
    assert film.sent_orders(1).plan is not None


def test_a_late_request_of_the_operator_is_ignored():
    film = Timeline().up(step=3)
    old = film.desired
    film.desires(generation=2, attempt=1)
    film.desires_slot(1, incarnation=2, pod_uid="pod-1-2")
    assert film.phase == "Stopping"
    for late in (
        old,
        replace(old, generation=2),
        replace(old, generation=2, attempt=0),
        replace(old, term=2),
    ):
        film.event(membership.DesiredReceived(late))
    assert film.sent_orders(1).refused == "incarnation 1 of slot 1 was replaced by 2"


def test_a_member_that_is_replaced_ends_the_world_and_its_successor_joins_the_next():
    film = Timeline().up(step=3)
    film.desires_slot(1, incarnation=2, pod_uid="")
    assert (film.phase, film.incident.cause) == ("Stopping", Cause.AGENT_LOST)
    film.applies_orders()
    assert film.report.why == "waiting for the pod of slot 1 to be created"
    film.replaces(1)
    film.applies_orders()
    assert film.phase == "Running"


def test_a_successor_whose_turn_has_not_come_gets_no_orders_and_may_leave():
    film = Timeline().up(step=3)
    early = agent(1, 2)
    film.event(membership.ReportReceived(early))
    assert membership.orders_for_sender(film.state, early, film.now) is None
    orders = membership.orders_for_sender(film.state, replace(early, terminating=True), film.now)
    assert orders is not None
    assert (orders.leave, orders.plan, orders.refused) == (True, None, "")
    assert film.phase == "Running"


def test_below_feature_level_2_a_replacement_waits_for_proof_that_the_old_pod_has_ended():
    film = Timeline(feature_level=1).up(step=3)
    film.desires_slot(1, incarnation=2, pod_uid="pod-1-2", previous_pod_fenced=False)
    film.agents[1] = agent(1, 2)
    film.reports(1)
    film.applies_orders()
    assert film.report.why == (
        "waiting for proof that the previous pod of slot 1 has ended: it may still write the script's files"
    )
    film.desires_slot(1, previous_pod_fenced=True)
    assert film.phase == "Running"


def test_from_feature_level_2_on_a_replacement_starts_at_once():
    film = Timeline(feature_level=2).up(step=3)
    film.desires_slot(1, incarnation=2, pod_uid="pod-1-2", previous_pod_fenced=False)
    film.agents[1] = agent(1, 2)
    film.reports(1)
    film.applies_orders()
    assert film.phase == "Running"


def test_only_the_store_of_the_next_world_counts():
    film = Timeline()
    film.desires()
    film.reports(1)
    film.reports(0, store=StoreOffer(WorldId(1, 0, 7), "10.0.0.1", 1))
    assert film.report.why == "waiting for the store (TCPStore) of world 1.0.1 in the pod of slot 0"


def test_a_pause_of_our_own_loop_costs_nobody_the_lease():
    film = Timeline().up(step=3)
    film.now += 60
    film.event(membership.Tick())
    assert film.phase == "Running"
    film.now += 1
    film.event(membership.Tick())
    assert film.phase == "Running"
    film.silent = {0, 1}
    film.later(7)
    assert film.incident.cause is Cause.AGENT_LOST, "the lease goes on from there"


def test_a_pause_while_we_wait_for_agents_counts_as_no_time():
    film = Timeline().up(step=3)
    film.reboots()
    film.falls_silent(1)
    film.desires()
    film.reports(0)
    film.now += 60
    film.event(membership.Tick())
    assert film.phase == "Waiting"


def test_ticks_are_requested_only_where_time_can_change_something():
    film = Timeline()
    assert membership.wake_at(film.state, film.now) is None
    film.desires()
    assert membership.wake_at(film.state, film.now) == film.now + 1


def test_the_operator_sees_who_is_registered():
    film = Timeline()
    film.desires()
    film.reports(0, launcher="PerRank")
    film.now += 0.5
    slot = film.report.slots["0"]
    assert (slot.registered, slot.node, slot.silent_seconds) == (True, "node-0", 0.5)
    assert list(film.report.slots) == ["0"]
    assert film.report.launcher == "PerRank"
    film.falls_silent(0)
    film.later(6)
    assert not film.report.slots["0"].registered


def test_no_replacement_is_requested_for_a_slot_without_any_agent():
    film = Timeline().up(step=3)
    film.desires_slot(1, incarnation=2, pod_uid="pod-1-2")
    film.applies_orders(0)
    assert film.report.replacement_requests == ()


def test_reports_of_a_replaced_member_change_nothing():
    film = Timeline().up(step=3)
    film.desires_slot(1, incarnation=2, pod_uid="pod-1-2")
    film.exits(1, SIGKILL)
    assert film.incident.cause is Cause.AGENT_LOST


def test_forming_in_a_drain_waits_for_ranks_that_live():
    film = Timeline().up(step=3)
    film.falls_silent(0)
    film.falls_silent(1)
    film.later(7)
    assert film.phase == "Forming"
    film.silent.clear()
    film.reports(0)
    film.desires(drain=True)
    assert (
        film.report.why
        == "the job is to be drained; waiting for its last ranks to end, or for proof that they have"
    )
    film.applies_orders()
    assert film.phase == "Drained"
