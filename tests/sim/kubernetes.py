"""A Kubernetes of one job: objects, optimistic status writes, a scheduler, and kubelets with their own mind.

What an operator can do is `execute(action)` and `write_status`; nothing else creates or deletes in its name.
Every change makes a new View. Views are kept for a while, because a cache may be behind.
Kubelets (kubelet.py) start, signal and reap; a node that is out of touch reports nothing and applies nothing.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NamedTuple

from tests.builders import pod_from
from tests.sim.clock import Clock
from tests.sim.kubelet import Kubelet, Pod

from ropeteam.api.defaults import Defaults
from ropeteam.api.job import KIND, Metadata
from ropeteam.api.status import JobStatus
from ropeteam.core.objects.actions import Action, CreateSecret
from ropeteam.core.objects.execution import carry_out
from ropeteam.core.seen import names
from ropeteam.core.seen.observation import ContainerSeen, PodSeen, Role, ServiceSeen

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
JOB_NAME, JOB_UID = "climb", "0a1b2c3d-job"
_VIEWS = 64


class View(NamedTuple):
    """Contents of a fresh cache."""

    version: int
    """resourceVersion of the job."""
    metadata: Metadata
    spec: dict[str, Any]
    status: JobStatus
    pods: tuple[PodSeen, ...]
    service: ServiceSeen | None
    secrets: frozenset[str]


@dataclass
class Service:
    name: str
    uid: str
    term: int
    leads_to: int
    """The term that traffic reaches: behind `term` while the nodes do not know of it."""
    pointed_at: float = 0.0
    address: str = "10.96.0.7"


@dataclass
class Job:
    spec: dict[str, Any]
    status: JobStatus = field(default_factory=JobStatus)
    version: int = 1
    generation: int = 1
    exists: bool = True
    annotations: dict[str, str] = field(default_factory=dict)


class Kubernetes:
    def __init__(self, clock: Clock, random: Random, spec: dict[str, Any], nodes: int) -> None:
        self.clock, self.random = clock, random
        self.job = Job(spec)
        self.pods: dict[str, Pod] = {}
        self.service: Service | None = None
        self.secrets: set[str] = set()
        self.policies: set[str] = set()
        self.kubelets = [Kubelet(f"node-{number}", self) for number in range(nodes)]
        self.rang: Callable[[], None] = lambda: None
        self.start_process: Callable[[Pod, int], Any]
        self.created: list[Pod] = []
        """Every pod ever created, for the checks."""
        self.slots_without_capacity: Collection[int] = ()
        """Slots for whose pods no node has capacity."""
        self._uids = 0
        self._times: list[float] = []
        self._views: list[View] = []
        self.changed()

    # ---- what an operator reads

    def view(self, at: float) -> View:
        """The cluster as it was at `at` (at least as old as what is still remembered)."""
        index = bisect.bisect_right(self._times, at)
        return self._views[max(index - 1, 0)]

    def changed(self) -> None:
        """Something is different: take a new view and ring the operator's bell."""
        job = self.job
        metadata = Metadata(
            name=JOB_NAME,
            uid=JOB_UID,
            generation=job.generation,
            resource_version=str(job.version),
            creation_timestamp=BEGAN,
            annotations=dict(job.annotations),
        )
        service = None
        if self.service is not None:
            service = ServiceSeen(
                name=self.service.name,
                uid=self.service.uid,
                cluster_ip=self.service.address,
                term=self.service.term,
            )
        pods = tuple(pod.seen() for pod in self.pods.values())
        self._views.append(
            View(job.version, metadata, job.spec, job.status, pods, service, frozenset(self.secrets))
        )
        self._times.append(self.clock.now)
        if len(self._views) > 2 * _VIEWS:
            del self._views[:_VIEWS], self._times[:_VIEWS]
        self.rang()

    def time(self) -> datetime:
        return BEGAN + timedelta(seconds=self.clock.now)

    # ---- what an operator does

    def write_status(self, status: JobStatus, version: int) -> bool:
        """False: a conflict, somebody wrote since `version`."""
        if not self.job.exists or version != self.job.version:
            return False
        self.job.status = status
        self.job.version += 1
        self.changed()
        return True

    def execute(self, action: Action) -> None:
        """Twice is the same as once; the API server refuses nothing but what is not there any more."""
        carry_out(action, self)
        self.changed()

    def create(self, manifest: dict[str, Any]) -> None:
        if manifest["kind"] == "Pod":
            self._create_pod(manifest)
            return
        assert manifest["kind"] == "Service"
        if self.service is None and self.job.exists:
            term = int(manifest["spec"]["selector"][names.TERM])
            self.service = Service(manifest["metadata"]["name"], self._uid("svc"), term, term)

    def delete(self, kind: str, name: str, uid: str, grace_seconds: int | None) -> None:
        if kind == "Pod":
            pod = self.pods.get(name)
            if pod and pod.uid == uid:
                self.delete_pod(pod, grace_seconds)
        elif kind == "Service":
            if self.service and self.service.uid == uid:
                self.service = None
        else:
            assert (kind, uid) == (KIND, JOB_UID)
            self.delete_job()

    def merge(self, kind: str, name: str, patch: dict[str, Any]) -> None:
        assert kind == "Service"
        if self.service and (self.service.name, self.service.uid) == (name, patch["metadata"]["uid"]):
            self._point(int(patch["spec"]["selector"][names.TERM]))

    def create_policy(self, manifest: dict[str, Any]) -> None:
        self.policies.add(manifest["metadata"]["name"])

    def create_secret(self, action: CreateSecret) -> None:
        self.secrets.add(action.name)

    def ensure_agent(self) -> None:
        self.secrets.add(Defaults().agent_secret)

    def _point(self, term: int) -> None:
        service = self.service
        assert service
        service.term, service.pointed_at = term, self.clock.now

        def routes_follow() -> None:
            service.leads_to = service.term

        self.clock.after(0.1 + self.random.random(), routes_follow)

    def _create_pod(self, manifest: dict[str, Any]) -> None:
        meta = manifest["metadata"]
        if meta["name"] in self.pods or not self.job.exists:
            return
        seen = pod_from(manifest, self._uid("pod"))
        grace = float(manifest["spec"].get("terminationGracePeriodSeconds") or 30)
        identity = (seen.name, seen.uid, seen.role, seen.slot, seen.incarnation, seen.term)
        pod = Pod(*identity, grace, manifest)
        self.pods[pod.name] = pod
        self.created.append(pod)
        self.clock.after(0.05 + 0.3 * self.random.random(), self._schedule, pod)

    def _uid(self, kind: str) -> str:
        self._uids += 1
        return f"{kind}-{self._uids}"

    # ---- what happens by itself, or by a person

    def _schedule(self, pod: Pod) -> None:
        if self.pods.get(pod.name) is not pod:
            return
        fits = pod.role is Role.COORDINATOR or pod.slot not in self.slots_without_capacity
        ready = [kubelet for kubelet in self.kubelets if fits and not kubelet.lost]
        if not ready:
            pod.scheduled_message = f"0/{len(self.kubelets)} nodes are available"
            self.changed()
            self.clock.after(2, self._schedule, pod)
            return
        pod.scheduled_message = ""
        pod.kubelet = self.random.choice(ready)
        pod.kubelet.accept(pod)
        self.changed()

    def delete_pod(self, pod: Pod, grace: float | None = None) -> None:
        """kubectl delete pod: SIGTERM, its grace, SIGKILL, and only then the object goes."""
        grace = pod.grace if grace is None else grace
        if not pod.deleting:
            pod.deleting = True
            pod.delete_at = self.time() + timedelta(seconds=grace)
        if pod.kubelet is None:
            self.remove(pod)
        else:
            pod.kubelet.deletion_requested(pod, grace)
        self.changed()

    def force_delete(self, pod: Pod) -> None:
        """kubectl delete --force: the object goes at once, its processes live until their kubelet knows of
        it.
        """
        pod.deleting = True
        self.remove(pod)
        if pod.kubelet:
            pod.kubelet.deletion_requested(pod, 0)

    def remove(self, pod: Pod) -> None:
        if self.pods.get(pod.name) is pod:
            del self.pods[pod.name]
            self.changed()

    def delete_job(self) -> None:
        """The garbage collector takes what the job owns."""
        self.job.exists = False
        self.service = None
        self.secrets.clear()
        self.policies.clear()
        for pod in list(self.pods.values()):
            self.delete_pod(pod)
        self.changed()

    def annotate(self, name: str, value: str) -> None:
        """kubectl annotate trainingjob."""
        if self.job.annotations.get(name) != value:
            self.job.annotations[name] = value
            self.job.version += 1
            self.changed()

    def edit(self, **changes: Any) -> None:
        """A person changes the spec."""
        spec = {**self.job.spec, **changes}
        if spec != self.job.spec:
            self.job.spec = spec
            self.job.generation += 1
            self.job.version += 1
            self.changed()


def waiting(reason: str, message: str = "") -> ContainerSeen:
    return ContainerSeen(waiting_reason=reason, waiting_message=message)
