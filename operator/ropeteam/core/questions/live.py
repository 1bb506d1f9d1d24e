"""State, conditions and answer of a live job: started, not ended, and neither draining, suspended nor in
backoff.

One place builds the conditions Running, Recovering and Stalled of such a job, its text in the column STATE,
and the answer that holds all of them.
"""

from __future__ import annotations

from ropeteam.api.conditions import ConditionType
from ropeteam.api.status import JobStatus
from ropeteam.core.objects.actions import Action
from ropeteam.core.questions.answer import Answer
from ropeteam.core.questions.pending import (
    first_obstacle,
    is_recovering,
    is_running,
    is_training,
    reported_obstacle,
    unreachable_message,
)
from ropeteam.core.seen import names
from ropeteam.core.seen.observation import PodSeen
from ropeteam.core.seen.view import View
from ropeteam.core.status.conditions import NOT_SUSPENDED, ConditionFact
from ropeteam_trainer.contract import SIGNED, VERSION
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.world import FailReason


def live_answer(view: View, status: JobStatus, why: str, actions: tuple[Action, ...] = ()) -> Answer:
    """Answer about a live job, with its state and conditions. `status`: as it is to be saved."""
    return Answer(why, status, live_state(view, status), live_facts(view, status), actions)


def live_state(view: View, status: JobStatus) -> str:
    """State of a live job, for status.state. Starting: all pods run, or there is a world without some, but
    there was no first step yet."""
    if is_training(view):
        return "Running"
    if is_recovering(view, status):
        return "Recovering"
    running = sum(pod.container.running for pod in view.workers.values())
    return "Starting" if is_running(view) or running == len(status.slots) else "Pending"


def live_facts(view: View, status: JobStatus) -> tuple[ConditionFact, ...]:
    """Facts about Suspended, Running and Recovering of a live job, and about Stalled only if somebody has to
    act. Otherwise Stalled is as acceptance.facts returns it."""
    recovering = is_recovering(view, status)
    last = status.incidents[-1] if status.incidents else None
    cause = last.cause if last is not None and recovering else "NotRecovering"
    facts = (
        NOT_SUSPENDED,
        _training_fact(view) if is_training(view) else _waiting_fact(view),
        ConditionFact(
            ConditionType.RECOVERING, recovering, cause, last.message if last and recovering else ""
        ),
    )
    obstacle = reported_obstacle(view) or (None if is_running(view) else first_obstacle(view))
    if obstacle is not None and obstacle.stalled:
        return (*facts, ConditionFact(ConditionType.STALLED, True, obstacle.reason, obstacle.message))
    return facts


def _training_fact(view: View) -> ConditionFact:
    """Running=True, with its reason. First match wins: the coordinator is unreachable or has restarted, so
    that training is only assumed; the world completes; the coordinator is overloaded or outdated; none."""
    report, pod = view.report, view.coordinator
    away = bool(view.seen.report_error) or pod is None or not pod.container.running
    if away and report is None:
        return ConditionFact(ConditionType.RUNNING, True, "CoordinatorUnreachable", unreachable_message(view))
    if report is not None and report.phase is WorldPhase.WAITING:
        return ConditionFact(
            ConditionType.RUNNING, True, "CoordinatorRestarted", _restarted_message(report.why)
        )
    if report is not None and report.phase is WorldPhase.COMPLETING:
        return ConditionFact(ConditionType.RUNNING, True, "WorldCompleting", report.why)
    if report is not None and report.lag_seconds:
        return ConditionFact(
            ConditionType.RUNNING, True, "CoordinatorOverloaded", _overload_message(view, report.lag_seconds)
        )
    if pod is not None and pod.contract < SIGNED:
        return ConditionFact(ConditionType.RUNNING, True, "CoordinatorOutdated", _unsigned_message(view, pod))
    return ConditionFact(ConditionType.RUNNING, True, "WorldRunning", _running_message(view))


def _waiting_fact(view: View) -> ConditionFact:
    """Running=False, with what the first step waits for: the stage of a world that forms its first step, else
    the obstacle, else the coordinator's own reason, else the pods."""
    report, saved = view.report, view.status.condition(ConditionType.RUNNING)
    if is_running(view):
        reason, message = (saved.reason, saved.message) if saved else ("", "")
        if report is not None:
            reason, message = report.stage.value or reason, report.why
        return ConditionFact(ConditionType.RUNNING, False, reason, message)
    if (obstacle := first_obstacle(view)) is not None:
        return ConditionFact(ConditionType.RUNNING, False, obstacle.reason, obstacle.message)
    if report is not None:
        return ConditionFact(ConditionType.RUNNING, False, "WorldForming", report.why)
    return ConditionFact(ConditionType.RUNNING, False, "PodsStarting", "Pods are being created and started.")


def _running_message(view: View) -> str:
    notice = view.report.notice if view.report else None
    if notice is None:
        return "All workers train together."
    if notice.reason is FailReason.WORKERS_ABSENT:
        return "Some workers train without the others: see the condition Degraded."
    return "All workers run, but see the condition Degraded."


def _overload_message(view: View, seconds: int) -> str:
    pod, node = names.coordinator(view.job.name, view.status.coordinator.term), view.status.coordinator.node
    return (
        f"{_running_message(view)} Their coordinator does not keep up: it was late by up to {seconds} s, "
        "and recovery from a fault takes as much longer. No worker counts as lost because of that. If this "
        f"persists, pod {pod} gets too little CPU time on node {node}: free CPU there, or raise "
        "jobDefaults.coordinatorResources of Ropeteam's chart for coordinators created from then on."
    )


def _unsigned_message(view: View, pod: PodSeen) -> str:
    return (
        f"{_running_message(view)} Their coordinator is of an earlier release (contract {pod.contract}, "
        f"this one has {VERSION}). Messages between it and the operator are not signed: anyone with access "
        "to that traffic can replay or forge them. The job continues. To give it a coordinator of this "
        f"release, which adopts the running world: kubectl delete pod -n {view.job.namespace} {pod.name}"
    )


def _restarted_message(why: str) -> str:
    """Message about a coordinator in phase Waiting. `why`: JobReport.why, which begins with a participle."""
    return f"The coordinator has restarted and is {why}. Until then it is unknown whether training continues."
