"""A small Kubernetes in memory, with a coordinator that always finds a world as soon as all workers run.

It applies actions as the API server would, moves pods as a kubelet would on request, and runs reconciles.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from tests.builders import Scene, a_report, pod_from

from ropeteam.api.job import KIND
from ropeteam.api.status import JobStatus
from ropeteam.core.decide import decide
from ropeteam.core.decision import Decision
from ropeteam.core.objects.actions import Action, CreateSecret
from ropeteam.core.objects.execution import carry_out
from ropeteam.core.seen.names import TERM
from ropeteam.core.seen.observation import ContainerSeen, PodSeen, PolicySeen, Role, ServiceSeen
from ropeteam_trainer.contract.desired import Incident, JobReport, WorldPhase


class FakeCluster:
    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        """Everything that was seen, but for the report."""
        self.gone = False
        self.agent_secret = False
        self.finished = False
        """All ranks of the world are done."""
        self.made: list[str] = []
        """Names of pods, in the order of their creation."""
        self.decisions: list[Decision] = []
        self.exit: ContainerSeen | None = None
        """How every trainer container ends as soon as it is started."""
        self.incidents: tuple[Incident, ...] = ()
        """Report of the coordinator of the current term."""
        self._uids = 10 * len(scene.pods)

    # ---- one round of the operator

    def observe(self) -> Scene:
        return self.scene.but(report=self._report())

    def round(self, crash_after: int | None = None) -> Decision:
        """Decide, save, act. `crash_after`: the operator dies after so many calls, the write included."""
        seen = self.observe()
        decision = decide(seen)
        self.decisions.append(decision)
        calls: list[Callable[[], None]] = []
        if decision.status != seen.status:
            calls.append(lambda: self.save(decision.status))
        calls += [partial(self.act, action) for action in decision.actions]
        for call in calls[:crash_after]:
            call()
        return decision

    def save(self, status: JobStatus) -> None:
        """Through JSON, as every real write goes."""
        self.scene = self.scene.but(status=JobStatus.model_validate(status.to_json()))

    def settle(self, rounds: int = 50) -> Decision:
        """Rounds until there is nothing to write and nothing to do. Fails if that never comes."""
        for _ in range(rounds):
            before = self.scene.status
            decision = self.round()
            if decision.status == before and not decision.actions:
                return decision
        raise AssertionError(f"never settles; the last: {decision.why}")

    def play(self, until: Callable[[Scene], bool], rounds: int = 400) -> int:
        """Rounds, kubelets and time together, until something holds. Gives the number of rounds."""
        for count in range(rounds):
            if self.gone or until(self.observe()):
                return count
            decision, pods = self.round(), self.scene.pods
            self.kubelets()
            waits = self.scene.pods == pods  # else they ring
            self.pass_time(max(0.5, min(decision.requeue_after_seconds or 0.5, 30)) if waits else 0.5)
        raise AssertionError(f"not reached in {rounds} rounds: {[each.why for each in self.decisions[-5:]]}")

    def pass_time(self, seconds: float) -> None:
        self.scene = self.scene.but(now=self.scene.now + timedelta(seconds=seconds))

    # ---- the API server

    def act(self, action: Action) -> None:
        carry_out(action, self)

    def create(self, manifest: dict[str, Any]) -> None:
        {"Pod": self._create_pod, "Service": self._create_service}[manifest["kind"]](manifest)

    def delete(self, kind: str, name: str, uid: str, grace_seconds: int | None) -> None:  # noqa: ARG002
        """All pods have the same grace period here."""
        assert uid, f"{name} is deleted by name alone"
        if kind == "Pod":
            self._change(uid, deleting=True, delete_at=self.scene.now + timedelta(seconds=70))
        elif kind == "Service":
            if self.scene.service is not None and self.scene.service.uid == uid:
                self.scene = self.scene.but(service=None)
        else:
            assert kind == KIND
            self.gone = True

    def merge(self, kind: str, name: str, patch: dict[str, Any]) -> None:
        service = self.scene.service
        assert kind == "Service"
        if service is not None and (service.name, service.uid) == (name, patch["metadata"]["uid"]):
            term = int(patch["spec"]["selector"][TERM])
            self.scene = self.scene.but(service=service.model_copy(update={"term": term}))

    def create_secret(self, action: CreateSecret) -> None:  # noqa: ARG002
        self.scene = self.scene.but(secret_exists=True, secret_age=0.0)

    def create_policy(self, manifest: dict[str, Any]) -> None:
        self.scene = self.scene.but(policy=PolicySeen(name=manifest["metadata"]["name"]))

    def ensure_agent(self) -> None:
        self.agent_secret = True

    def _create_pod(self, manifest: dict[str, Any]) -> None:
        if any(pod.name == manifest["metadata"]["name"] for pod in self.scene.pods):
            return  # AlreadyExists is as good as created
        pod = pod_from(manifest, self._uid())
        assert self.agent_secret or pod.role is Role.COORDINATOR, "nothing to mount"
        self.made.append(pod.name)
        self.scene = self.scene.but(pods=(*self.scene.pods, pod))

    def _create_service(self, manifest: dict[str, Any]) -> None:
        if self.scene.service is None:
            spec = manifest["spec"]
            self.scene = self.scene.but(
                service=ServiceSeen(
                    name=manifest["metadata"]["name"],
                    uid=self._uid(),
                    cluster_ip=spec.get("clusterIP", "10.0.0.1"),
                    term=int(spec["selector"][TERM]),
                )
            )

    def _uid(self) -> str:
        self._uids += 1
        return f"uid-{self._uids}"

    # ---- kubelets

    def kubelets(self) -> None:
        """Pods that wait are started, pods that are deleted go."""
        living = tuple(pod for pod in self.scene.pods if not pod.deleting)
        self.scene = self.scene.but(pods=tuple(self._started(pod) for pod in living))

    def _started(self, pod: PodSeen) -> PodSeen:
        if pod.phase != "Pending" or pod.scheduled_message or pod.container.waiting_reason:
            return pod
        node = f"node-{max(pod.slot, 0)}"
        if self.exit is not None and pod.role is Role.WORKER:
            return pod.model_copy(update={"phase": "Failed", "node": node, "container": self.exit})
        running = ContainerSeen(running=True)
        return pod.model_copy(update={"phase": "Running", "node": node, "container": running})

    def _change(self, uid: str, **fields: Any) -> None:
        pods = (pod.model_copy(update=fields) if pod.uid == uid else pod for pod in self.scene.pods)
        self.scene = self.scene.but(pods=tuple(pods))

    # ---- the coordinator

    def _report(self) -> JobReport | None:
        status, service = self.scene.status, self.scene.service
        desired = self.decisions[-1].desired if self.decisions else None
        here = any(
            pod.role is Role.COORDINATOR and pod.term == status.coordinator.term and pod.container.running
            for pod in self.scene.pods
        )
        if desired is None or not here or service is None or service.term != status.coordinator.term:
            return None
        report = a_report(self.scene)
        held = [
            report.slots[slot].pod_uid == wanted.pod_uid
            for slot, wanted in desired.slots.items()
            if slot in report.slots and report.slots[slot].incarnation == wanted.incarnation
        ]
        phase = WorldPhase.FORMING
        if desired.drain:
            phase = WorldPhase.DRAINED
        elif self.finished:
            phase = WorldPhase.COMPLETE
        elif len(held) == len(desired.slots) and all(held):
            phase = WorldPhase.RUNNING
        return a_report(self.scene, phase, incidents=self.incidents)
