"""Faults in any order, and an operator that dies between any two calls: when they stop, the job ends."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.builders import (
    Change,
    a_job,
    an_incident,
    deleted,
    edited,
    ended,
    evicted,
    force_deleted,
    on_a_lost_node,
)
from tests.core.fake_cluster import FakeCluster

from ropeteam.api.status import JobStatus
from ropeteam.core.seen.observation import PodSeen, Role
from ropeteam_trainer.contract.world import Cause

WORKERS = 2
places = st.integers(0, WORKERS - 1)
mishaps: st.SearchStrategy[Change] = st.builds(
    lambda kind, slot: kind(slot),
    st.sampled_from([force_deleted, deleted, ended, evicted, on_a_lost_node]),
    places,
)


class BadDay(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = FakeCluster(a_job(WORKERS, recovery={"maxFailures": 3, "windowSeconds": 604_800}))
        self.before = JobStatus()
        self.worlds = 0

    @initialize(started=st.booleans())
    def begin(self, started: bool) -> None:
        if started:
            self.cluster.play(until=lambda seen: seen.status.state == "Running")

    @rule(calls=st.none() | st.integers(0, 4))
    def reconcile(self, calls: int | None) -> None:
        self.cluster.round(crash_after=calls)

    @rule()
    def kubelets_work(self) -> None:
        self.cluster.kubelets()

    @rule(seconds=st.sampled_from([0.1, 1, 20, 300]))
    def time_passes(self, seconds: float) -> None:
        self.cluster.pass_time(seconds)

    @precondition(lambda self: len([pod for pod in self.pods if pod.role is Role.WORKER]) >= WORKERS)
    @rule(mishap=mishaps)
    def a_pod_has_an_accident(self, mishap: Change) -> None:
        slots = {pod.slot for pod in self.pods if pod.role is Role.WORKER}
        if slots == set(range(WORKERS)):
            self.cluster.scene = self.cluster.scene.after(mishap)

    @rule(cause=st.sampled_from([Cause.ERROR, Cause.SIGNAL, Cause.AGENT_LOST]), slot=places)
    def a_world_ends(self, cause: Cause, slot: int) -> None:
        self.worlds += 1
        incident = an_incident(
            cause, slot, n=self.worlds, unix_ms=int(self.cluster.scene.now.timestamp() * 1000)
        )
        self.cluster.incidents = (*self.cluster.incidents, incident)[-10:]

    @rule()
    def the_coordinator_pod_goes(self) -> None:
        pods = tuple(pod for pod in self.pods if pod.role is not Role.COORDINATOR)
        self.cluster.scene = self.cluster.scene.but(pods=pods)

    @rule()
    def the_service_goes(self) -> None:
        self.cluster.scene = self.cluster.scene.but(service=None)

    @rule(suspend=st.booleans())
    def the_user_suspends_or_resumes(self, suspend: bool) -> None:
        self.cluster.scene = self.cluster.scene.after(edited(suspend=suspend))

    @rule(hour=st.integers(10, 12))
    def the_user_restarts(self, hour: int) -> None:
        self.cluster.scene = self.cluster.scene.after(edited(restartedAt=f"2026-11-20T{hour}:00:00Z"))

    @property
    def pods(self) -> tuple[PodSeen, ...]:
        return self.cluster.scene.pods

    @invariant()
    def what_is_saved_never_goes_back(self) -> None:
        old, new = self.before, self.cluster.scene.status
        assert new.attempt >= old.attempt
        assert new.coordinator.term >= old.coordinator.term
        incarnations = {slot.slot: slot.incarnation for slot in new.slots}
        assert all(incarnations[slot.slot] >= slot.incarnation for slot in old.slots)
        assert {each.id for each in old.failures.charges} <= {each.id for each in new.failures.charges}
        if old.finished:
            assert new.conditions == old.conditions
        self.before = new

    @invariant()
    def no_name_is_used_by_two_pods(self) -> None:
        names = [pod.name for pod in self.pods]
        assert len(names) == len(set(names))

    def teardown(self) -> None:
        """The quiet end."""
        cluster = self.cluster
        cluster.scene = cluster.scene.after(edited(suspend=False))
        cluster.finished = True
        cluster.play(until=lambda seen: seen.status.finished, rounds=80)
        cluster.play(until=lambda seen: seen.service is None, rounds=20)
        cluster.settle()
        assert not [pod for pod in self.pods if not pod.ended and not pod.deleting]


BadDay.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestBadDay = BadDay.TestCase
