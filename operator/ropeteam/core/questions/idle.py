"""Which pods of a job certainly train nothing, though no decision about it can be made.

Asked only when rounds have failed for long. A pod that may be part of a world stays, whatever it costs:
training goes on without the operator. Coordinators stay too: what has become of the job is known by them.
"""

from __future__ import annotations

from ropeteam.api.job import CleanPodPolicy
from ropeteam.core.objects.actions import Action
from ropeteam.core.questions.gang import remove
from ropeteam.core.seen.observation import Observation
from ropeteam.core.seen.view import View, build_view
from ropeteam_trainer.contract.desired import WorldPhase


def idle(seen: Observation) -> tuple[Action, ...]:
    """Their deletion."""
    view = build_view(seen)
    if not (_is_over(view) or _never_began(view)):
        return ()
    return remove(tuple(pod for pod in view.all_workers if not pod.ended))


def _is_over(view: View) -> bool:
    """By status, or by the coordinator, which then lets no rank live."""
    failed = view.report is not None and view.report.phase is WorldPhase.FAILED
    return (view.status.finished or failed) and view.spec.clean_pod_policy is not CleanPodPolicy.NONE


def _never_began(view: View) -> bool:
    """The coordinator hears no agent, and no container was ever seen to start."""
    report = view.report
    heard = report is None or any(slot.registered for slot in report.slots.values())
    forms = report is not None and report.phase is WorldPhase.FORMING
    return forms and not heard and all(pod.phase == "Pending" or pod.ended for pod in view.all_workers)
