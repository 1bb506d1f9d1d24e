"""A job's life from the first look to the last: start, run, end, and what is cleaned up then."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.builders import (
    NOON,
    Scene,
    a_job,
    a_problem,
    a_running_job,
    an_incident,
    edited,
    ended,
    force_deleted,
    refused,
    reporting,
    saved,
    seconds,
    silent,
    unreachable,
    written,
)
from tests.core.fake_cluster import FakeCluster

from ropeteam.api.conditions import ConditionType
from ropeteam.core.decide import decide
from ropeteam.core.decision import Decision
from ropeteam.core.objects.actions import (
    CreatePod,
    CreateSecret,
    CreateService,
    DeleteJob,
    DeletePod,
    DeleteService,
    EnsureAgent,
)
from ropeteam.core.seen import view
from ropeteam.core.seen.observation import ContainerSeen
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.world import Cause, FailReason


def test_a_new_job_is_started_on_paper_first() -> None:
    decision = decide(a_job(workers=2))
    assert (decision.status.attempt, decision.status.coordinator.term) == (1, 1)
    assert [slot.incarnation for slot in decision.status.slots] == [1, 1]
    assert decision.actions == (), "save the intent first"
    assert decision.requeue_after_seconds == 0


def test_what_is_missing_waits_for_what_is_to_be_written() -> None:
    seen = a_running_job().but(secret_exists=False).after(reporting(launcher="PerPod"))
    assert decide(seen).actions == ()
    assert decide(seen.after(written)).actions != ()


def test_objects_are_created_in_the_order_in_which_they_need_each_other() -> None:
    cluster = FakeCluster(a_job(workers=2))
    cluster.round()
    assert [type(action) for action in cluster.round().actions] == [
        CreateSecret,
        EnsureAgent,
        CreateService,
        CreatePod,
    ]
    cluster.round()
    status = cluster.observe().status
    assert (status.coordinator.address, status.coordinator.pod_uid) == ("10.0.0.1", "uid-2")
    assert [str(action) for action in cluster.round().actions] == [
        "ensure the agent's Secret",
        "create Pod mnist-0-1",
        "create Pod mnist-1-1",
    ]


def test_a_job_starts_runs_and_completes() -> None:
    cluster = FakeCluster(a_job(workers=2))
    cluster.play(until=lambda seen: seen.status.state == "Running")
    assert cluster.made == ["mnist-coordinator-1", "mnist-0-1", "mnist-1-1"]
    cluster.finished = True
    cluster.play(until=lambda seen: seen.status.state == "Complete")
    cluster.play(until=lambda seen: seen.service is None)
    assert cluster.settle().actions == ()


def test_a_running_job_is_left_alone() -> None:
    seen = a_running_job()
    decision = decide(seen)
    assert (decision.status, decision.actions) == (seen.status, ())
    assert decision.requeue_after_seconds == 5, "the coordinator is asked now and then"
    assert seen.status.workers.summary == "4/4"


def test_the_coordinator_is_polled_often_only_while_it_knows_what_comes_next() -> None:
    seen = a_running_job().after(reporting(phase=WorldPhase.FORMING), written)
    assert decide(seen).requeue_after_seconds == 1, "all pods run: the world may form any moment"
    pods = tuple(
        pod.model_copy(update={"container": ContainerSeen()}) if pod.slot == 2 else pod for pod in seen.pods
    )
    assert decide(seen.but(pods=pods).after(written)).requeue_after_seconds == 15, (
        "a pod will tell when it runs"
    )


def test_a_job_that_is_being_deleted_takes_no_more_decisions() -> None:
    seen = a_running_job()
    leaving = seen.metadata.model_copy(update={"deletion_timestamp": NOON})
    decision = decide(seen.but(metadata=leaving).after(force_deleted(0)))
    assert (decision.status, decision.actions, decision.desired) == (seen.status, (), None)


def test_an_invalid_spec_shows_what_to_change_and_comes_to_rest() -> None:
    seen = a_job(workers=0)
    decision = decide(seen)
    assert decision.status.state == "Invalid"
    accepted = decision.status.condition(ConditionType.ACCEPTED)
    assert accepted is not None
    assert "spec.workers" in accepted.message
    assert (accepted.status, accepted.reason) == ("False", "InvalidSpec")
    again = decide(seen.after(saved(decision), seconds(5)))
    assert (again.status, again.requeue_after_seconds) == (decision.status, None)


def test_a_spec_that_was_left_out_is_invalid_for_the_reason_given() -> None:
    decision = decide(a_job().but(spec={}, spec_error="spec: has 900 KiB"))
    assert (decision.status.state, decision.status.reason) == ("Invalid", "InvalidSpec")
    assert decision.why == "the spec is invalid: spec: has 900 KiB"


def test_a_long_spec_is_validated_and_not_remembered() -> None:
    seen = a_job(args=["x" * 5000])
    before = view._validated_cached.cache_info().currsize
    assert decide(seen).status.state != "Invalid"
    assert view._validated_cached.cache_info().currsize == before


def test_a_name_that_cannot_be_used_is_an_invalid_job() -> None:
    seen = a_job()
    decision = decide(seen.but(metadata=seen.metadata.model_copy(update={"name": "4-GPUs"})))
    assert (decision.status.state, decision.status.reason) == ("Invalid", "InvalidSpec")
    assert "metadata.name" in decision.why


def test_a_spec_that_becomes_invalid_stops_nothing() -> None:
    decision = decide(a_running_job().after(edited(workers="many")))
    assert (decision.status.state, accepted(decision)) == ("Running", "InvalidSpec")
    assert decision.desired is not None, "the coordinator is still told what is saved"
    assert len(decision.desired.slots) == 4


def test_the_servers_refusal_is_reported_in_its_own_message() -> None:
    decision = decide(a_job().after(refused('persistentvolumes "fast" is forbidden')))
    assert (decision.status.state, decision.status.attempt) == ("Invalid", 0)
    assert 'persistentvolumes "fast" is forbidden' in decision.why


def accepted(decision: Decision) -> str:
    """Why the spec is not accepted."""
    condition = decision.status.condition(ConditionType.ACCEPTED)
    assert condition is not None
    assert not condition.holds
    return condition.reason


def test_a_refusal_of_a_running_job_is_only_reported() -> None:
    decision = decide(a_running_job().after(refused("no such field")))
    assert (decision.status.state, accepted(decision)) == ("Running", "PodRefused")


def test_the_exit_of_one_agent_with_0_completes_the_job() -> None:
    decision = decide(a_running_job().after(unreachable, ended(2, code=0)))
    assert decision.status.state == "Complete"
    assert decision.status.completion_time is not None
    finished = decision.status.condition(ConditionType.FINISHED)
    assert finished is not None
    assert (finished.status, finished.reason) == ("True", "Succeeded")


def test_released_workers_have_a_moment_to_exit_by_themselves() -> None:
    seen = completed()
    assert decide(seen).actions == ()
    later = decide(seen.after(seconds(11)))
    assert [action.name for action in later.actions if isinstance(action, DeletePod)] == [
        "mnist-0-1",
        "mnist-1-1",
    ]


def test_a_sidecar_that_never_ends_is_ended_with_its_pod() -> None:
    released = completed().after(ended(0, code=0, phase="Running"), ended(1, code=0))
    assert not [a for a in decide(released).actions if str(a).startswith("delete Pod mnist-0")], (
        "give it time"
    )
    later = decide(released.after(seconds(11))).actions
    assert [str(action) for action in later] == [f"delete Pod mnist-0-1 (uid {released.worker(0).uid})"]


def completed(**spec: object) -> Scene:
    seen = a_running_job(workers=2, **spec).after(reporting(phase=WorldPhase.COMPLETE))
    return seen.after(written)


def failed(**spec: object) -> Scene:
    seen = a_running_job(workers=2, **spec).after(reporting(failure=a_problem()))
    return seen.after(written)


def test_the_coordinator_goes_when_all_workers_have_ended() -> None:
    seen = completed().after(ended(0, 0), ended(1, 0))
    actions = decide(seen).actions
    assert [str(action) for action in actions[:1]] == ["delete Pod mnist-coordinator-1 (uid uid-2)"]
    assert isinstance(actions[1], DeleteService)


def test_agents_of_a_failed_job_are_informed_and_what_has_ended_by_itself_stays() -> None:
    seen = failed()
    decision = decide(seen)
    assert decision.actions == ()
    assert decision.desired is not None
    assert decision.desired.failure == a_problem()
    assert decision.requeue_after_seconds == 1
    over = decide(seen.after(ended(0, 4), ended(1, 4)))
    assert [action.name for action in over.actions if isinstance(action, DeletePod)] == [
        "mnist-coordinator-1"
    ]
    assert over.desired is None


def test_a_reason_that_a_newer_operator_has_saved_is_sent_as_one_that_we_know() -> None:
    seen = failed()
    facts = (each.model_copy(update={"reason": "Newest"}) for each in seen.status.conditions)
    desired = decide(seen.but(status=seen.status.model_copy(update={"conditions": tuple(facts)}))).desired
    assert desired is not None
    assert desired.failure is not None
    assert desired.failure.reason is FailReason.REPEATED_ERROR


def test_pods_that_report_that_the_job_has_failed_are_not_replaced_before_a_poll_of_the_coordinator() -> None:
    """The operator was away when the pods ended."""
    seen = a_running_job(workers=2).after(ended(0, 4), ended(1, 4))
    unanswered = seen.but(report=None)
    decision = decide(unanswered)
    assert (decision.status.slots, decision.status.incidents) == (unanswered.status.slots, ())
    unanswered = unanswered.after(written)
    assert decide(unanswered).actions == ()
    assert decide(unanswered).desired is not None
    assert decide(seen.after(reporting(failure=a_problem()))).status.state == "Failed"
    assert decide(unanswered.after(unreachable)).status != unanswered.status, (
        "nobody knows why: it is tried again"
    )


def test_workers_of_a_failed_job_that_do_not_exit_go_and_the_coordinator_after_them() -> None:
    seen = failed().after(seconds(20))
    assert [action.name for action in decide(seen).actions if isinstance(action, DeletePod)] == [
        "mnist-0-1",
        "mnist-1-1",
    ]
    deleting = tuple(pod.model_copy(update={"deleting": pod.slot >= 0}) for pod in seen.pods)
    assert decide(seen.but(pods=deleting)).actions == ()


@pytest.mark.parametrize(
    ("policy", "goes"),
    [("All", {"mnist-0-1", "mnist-1-1"}), ("Running", {"mnist-1-1"}), ("None", {"mnist-1-1"})],
)
def test_clean_pod_policy_decides_which_pods_stay(policy: str, goes: set[str]) -> None:
    actions = decide(failed(cleanPodPolicy=policy).after(ended(0), seconds(20))).actions
    assert {action.name for action in actions if isinstance(action, DeletePod)} == goes


@pytest.mark.parametrize(
    ("policy", "goes"),
    [("All", {"mnist-0-1", "mnist-1-1"}), ("Running", {"mnist-1-1"}), ("None", {"mnist-coordinator-1"})],
)
def test_clean_pod_policy_of_a_completed_job(policy: str, goes: set[str]) -> None:
    """One worker has ended, the other's sidecar runs on."""
    seen = completed(cleanPodPolicy=policy).after(ended(0, 0), ended(1, 0, phase="Running"), seconds(11))
    assert {action.name for action in decide(seen).actions if isinstance(action, DeletePod)} == goes


def test_a_finished_job_is_deleted_when_its_time_is_over() -> None:
    seen = completed(ttlSecondsAfterFinished=3600)
    assert decide(seen).requeue_after_seconds == 10
    assert decide(seen.but(pods=(), service=None).after(seconds(11))).requeue_after_seconds == 3589
    assert decide(seen.after(seconds(3600))).actions == (DeleteJob("mnist", seen.metadata.uid),)


def test_a_finished_job_never_changes_its_state() -> None:
    seen = failed().after(edited(suspend=True), ended(0, 0))
    decision = decide(seen)
    assert decision.status == seen.status.model_copy(update={"observed_generation": 2})


def test_a_problem_that_no_restart_mends_fails_the_job_with_its_message() -> None:
    status = failed().status
    assert (status.state, status.reason) == ("Failed", "CommandNotFound")
    condition = status.condition(ConditionType.FAILED)
    assert condition is not None
    assert condition.message == "no such file: trian.py"


def test_the_deadline_ends_the_job() -> None:
    seen = a_running_job(activeDeadlineSeconds=600)
    decision = decide(seen.after(seconds(600)))
    assert (decision.status.state, decision.status.reason) == ("Failed", FailReason.DEADLINE_EXCEEDED.value)


def test_the_deadline_goes_by_the_job_s_clock_and_status_keeps_it() -> None:
    seen = a_running_job(activeDeadlineSeconds=600)
    assert seen.status.clock
    stepped = seen.after(seconds(3600)).but(job_time=seen.now + timedelta(seconds=500))
    assert decide(stepped).status.state == "Running"
    passed = seen.but(job_time=seen.now + timedelta(seconds=600))
    assert decide(passed).status.reason == FailReason.DEADLINE_EXCEEDED.value
    (clock,) = {stepped.after(reporting(incidents=(an_incident(),)), written).status.clock}
    assert clock
    assert (clock.job, clock.wall) == (stepped.job_time, stepped.now)


def test_the_deadline_does_not_run_while_suspended() -> None:
    decision = decide(a_running_job(activeDeadlineSeconds=600).after(edited(suspend=True), seconds(600)))
    assert decision.status.state == "Suspending"


def test_the_end_charges_what_was_still_provisional() -> None:
    seen = a_running_job().after(reporting(incidents=(an_incident(),), failure=a_problem()))
    status = decide(seen).status
    assert (status.failures.charged, status.incidents[0].final) == (1, True)


def test_a_job_that_breaks_its_budget_fails() -> None:
    incidents = tuple(an_incident(Cause.SIGNAL, n=n) for n in (1, 2))
    seen = a_running_job(recovery={"maxFailures": 1}).after(reporting(incidents=incidents), silent(0))
    seen = seen.after(saved(decide(seen)), seconds(10))
    decision = decide(seen)
    assert (decision.status.state, decision.status.reason) == ("Failed", "FailureBudgetSpent")
    assert "bad lr" in decision.why
    assert "spec.recovery.maxFailures" in decision.why


def test_a_pod_that_was_replaced_does_not_complete_the_job() -> None:
    """The world was partitioned as a whole, and came to its end after the next one had begun."""
    seen = a_running_job(workers=2)
    slots = tuple(
        slot.model_copy(
            update={"incarnation": 2, "pod_uid": f"new-{slot.slot}", "previous_pod_uid": slot.pod_uid}
        )
        for slot in seen.status.slots
    )
    replaced = seen.but(status=seen.status.model_copy(update={"slots": slots}))
    assert decide(replaced.after(ended(0, code=0))).status.state != "Complete"
    relieved = tuple(slot.model_copy(update={"handover_pending": True}) for slot in slots)
    holding = seen.but(status=seen.status.model_copy(update={"slots": relieved}))
    assert decide(holding.after(ended(0, code=0))).status.state == "Complete", "it still holds its slot"


def test_a_coordinator_that_waits_for_our_acknowledgement_is_polled_soon() -> None:
    seen = a_running_job().after(reporting(phase=WorldPhase.COMPLETING), written)
    assert decide(seen).requeue_after_seconds == 1


def test_of_a_job_that_has_ended_nobody_is_ready() -> None:
    done = a_running_job(workers=2).after(reporting(phase=WorldPhase.COMPLETE), written)
    assert done.status.workers.summary == "0/2"
    assert failed().status.workers.summary == "0/2"


@pytest.mark.parametrize(("workers", "expected"), [(3, "0/3"), ("three", "0/1"), (5000, "0/1")])
def test_an_invalid_job_is_shown_with_the_workers_that_it_wants(workers: Any, expected: str) -> None:
    assert decide(a_job(workers=workers, image=7)).status.workers.summary == expected
