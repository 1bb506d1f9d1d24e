"""A status that went back to an older one (a backup of etcd) catches up with what runs.

The terms of coordinators: test_recovery.py, test_previouscoordinators.py; on shipped code:
tests/shipped/test_shipped.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.builders import a_running_job, reporting

from ropeteam.core.decide import decide
from ropeteam.core.seen.observation import PodSeen, Role


@pytest.mark.parametrize(("seen_too", "incarnation"), [(True, 3), (False, 4)])
def test_it_catches_up_with_the_pods_that_the_coordinator_knows(seen_too: bool, incarnation: int) -> None:
    """The coordinator would take no older desired state, and the job would run on unseen."""
    seen = a_running_job(workers=2)
    assert seen.report
    later = replace(seen.report.slots["1"], incarnation=3)
    seen = seen.after(reporting(slots={**seen.report.slots, "1": later}))
    ahead = PodSeen(name="mnist-1-3", uid="w3", role=Role.WORKER, slot=1, incarnation=3)
    decision = decide(seen.but(pods=(*seen.pods, ahead) if seen_too else seen.pods))
    assert [each.incarnation for each in decision.status.slots] == [1, incarnation]
    assert not decision.status.slots[1].previous_pod_fenced
    assert decision.why.endswith(f"later pods than status: incarnation {incarnation} of slot 1")


def test_it_knows_again_a_pod_that_only_the_coordinator_remembers() -> None:
    """The node is lost, and the object gone: nothing proves that its ranks have ended."""
    seen = a_running_job(workers=2)
    slots = (seen.status.slots[0], seen.status.slots[1].model_copy(update={"pod_uid": ""}))
    forgotten = seen.but(status=seen.status.model_copy(update={"slots": slots}))
    gone = tuple(pod for pod in seen.pods if (pod.role, pod.slot) != (Role.WORKER, 1))
    decision = decide(forgotten.but(pods=gone))
    assert [each.incarnation for each in decision.status.slots] == [1, 2]
    assert not decision.status.slots[1].previous_pod_fenced
    assert decide(forgotten).status.slots == seen.status.slots, "it is seen"


def test_a_coordinator_that_has_received_a_later_desired_state_gets_a_successor() -> None:
    """Agents follow the present coordinator, which takes no older desired state."""
    seen = a_running_job(workers=2)
    later = seen.after(reporting(observed_generation=seen.metadata.generation + 1))
    assert decide(later).status.coordinator.term == seen.status.coordinator.term + 1
    same = seen.after(reporting(observed_generation=seen.metadata.generation))
    assert decide(same).status.coordinator.term == seen.status.coordinator.term


def test_a_term_is_above_that_of_a_coordinator_that_is_seen() -> None:
    """Agents stay with it: they would train unseen."""
    seen = a_running_job(workers=2)
    ahead = PodSeen(name="mnist-coordinator-4", uid="c4", role=Role.COORDINATOR, term=4, node="node-7")
    decision = decide(seen.but(pods=(*seen.pods, ahead)))
    assert decision.status.coordinator.term == 5
    assert "status is older than the coordinator of term 4" in decision.why
