"""Acts of a person about a job: on what only a person can see, or status requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropeteam.api.conditions import ConditionType
from ropeteam.api.status import PreviousCoordinatorStatus

if TYPE_CHECKING:
    from tests.shipped.site import Site


def end_hung_foreign_pods(site: Site) -> None:
    """Ranks that are not known to use the library: nobody else sees them hang."""
    for uid, agent in site.checks.agents.items():
        for rank in site.pods[uid].alive.values() if agent._state.feature_level == 0 else ():
            if rank.hung:
                rank.signalled(9)


def vouch(site: Site) -> None:
    """Do what status requests, once it is true."""
    previous, stalled = site.status.coordinator.previous, site.status.condition(ConditionType.STALLED)
    confirmed = stalled is not None and stalled.reason == "PreviousCoordinatorMayRun"
    if stalled and confirmed and not any(_lives(site, each) for each in previous):
        name, _, term = stalled.message.split()[-2].partition("=")
        vouched, job = {"annotations": {name: term}}, site.job
        assert job
        site.kubernetes.edit(job, lambda job: job["metadata"].update(vouched))


def _lives(site: Site, previous: PreviousCoordinatorStatus) -> bool:
    live = site.live_containers(coordinators=True)
    if previous.pod_uid:
        return any(pod.uid == previous.pod_uid for pod in live)
    terms = (int(pod.obj["metadata"]["labels"]["ropeteam.dev/term"]) for pod in live)
    return any(term <= previous.term for term in terms)
