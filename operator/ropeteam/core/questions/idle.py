"""Pods of a job that certainly train nothing, though no decision about the job can be made.

Used only when reconciles have failed for long. A pod that may be part of a world stays, whatever it costs:
training continues without the operator. Coordinators stay too: they know what has become of the job.
"""

from __future__ import annotations

from ropeteam.api.job import CleanPodPolicy
from ropeteam.core.objects.actions import Action
from ropeteam.core.questions.gang import deletions
from ropeteam.core.seen.observation import Observation
from ropeteam.core.seen.view import View, build_view
from ropeteam_trainer.contract.desired import WorldPhase


def idle_pod_deletions(seen: Observation) -> tuple[Action, ...]:
    """Deletions of these pods."""
    view = build_view(seen)
    if not (_has_ended(view) or _never_started(view)):
        return ()
    return deletions(tuple(pod for pod in view.all_workers if not pod.ended))


def _has_ended(view: View) -> bool:
    """The job has ended, by status or by the report of the coordinator, which then lets no rank live."""
    failed = view.report is not None and view.report.phase is WorldPhase.FAILED
    return (view.status.finished or failed) and view.spec.clean_pod_policy is not CleanPodPolicy.NONE


def _never_started(view: View) -> bool:
    """No agent is registered with the coordinator, and no container was ever observed to start."""
    report = view.report
    has_agents = report is None or any(slot.registered for slot in report.slots.values())
    forming = report is not None and report.phase is WorldPhase.FORMING
    return forming and not has_agents and all(pod.phase == "Pending" or pod.ended for pod in view.all_workers)
