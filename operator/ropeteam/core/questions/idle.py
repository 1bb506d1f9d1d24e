"""Pods of a job that certainly train nothing, although no decision about the job can be made.

Used only when reconciles have failed for an hour. A pod that may be part of a world stays, whatever it costs:
training continues without the operator. Coordinators stay too: only they know the outcome of the job.
"""

from __future__ import annotations

from ropeteam.api.job import CleanPodPolicy
from ropeteam.core.objects.actions import Action
from ropeteam.core.questions.gang import deletions
from ropeteam.core.seen.observation import Observation
from ropeteam.core.seen.view import View, build_view
from ropeteam_trainer.contract.desired import WorldPhase


def idle_pod_deletions(seen: Observation) -> tuple[Action, ...]:
    """Deletions of worker pods that have not ended, although the job has ended, or no agent runs in any of
    them. Empty: some pod may train, or a job that has ended retains its pods (spec.cleanPodPolicy None)."""
    view = build_view(seen)
    if not (_has_ended(view) or _runs_no_agent(view)):
        return ()
    return deletions(tuple(pod for pod in view.all_workers if not pod.ended))


def _has_ended(view: View) -> bool:
    """Whether the job has ended, by status, or by a report of Failed: then no rank lives. False with
    spec.cleanPodPolicy None."""
    failed = view.report is not None and view.report.phase is WorldPhase.FAILED
    return (view.status.finished or failed) and view.spec.clean_pod_policy is not CleanPodPolicy.NONE


def _runs_no_agent(view: View) -> bool:
    """Whether no agent is registered with the coordinator, which forms a world, and all worker pods are
    Pending or have ended. False without a report: agents may be registered."""
    report = view.report
    has_agents = report is None or any(slot.registered for slot in report.slots.values())
    forming = report is not None and report.phase is WorldPhase.FORMING
    return forming and not has_agents and all(pod.phase == "Pending" or pod.ended for pod in view.all_workers)
