"""Observations of a job, built step by step: `a_running_job(workers=4).after(evicted(slot=2))`.

A Scene is an Observation that can be changed step by step. `a_running_job` is not painted by hand: it is what
`decide` itself makes of a new job in a small in-memory Kubernetes (`tests/core/fake_cluster.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ropeteam.api.defaults import Defaults
from ropeteam.api.job import Metadata
from ropeteam.api.status import JobStatus
from ropeteam.core.decide import decide
from ropeteam.core.decision import Decision
from ropeteam.core.seen import names
from ropeteam.core.seen.observation import ContainerSeen, HeldSlot, Observation, PodSeen, Refusal, Role
from ropeteam_trainer.contract.desired import Incident, JobReport, ReplacementRequest, SlotReport, WorldPhase
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import Cause, FailReason, WorldId

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
UID = "5eed5eed-0000-4000-8000-000000000001"
Change = Callable[["Scene"], "Scene"]


class Scene(Observation):
    """An observation, and what happens next."""

    def after(self, *changes: Change) -> Scene:
        scene = self
        for change in changes:
            scene = change(scene)
        return scene

    def but(self, **fields: Any) -> Scene:
        if unknown := fields.keys() - Observation.model_fields.keys():
            raise TypeError(f"an Observation has no field {', '.join(sorted(unknown))}")
        return self.model_copy(update=fields)

    def worker(self, slot: int) -> PodSeen:
        """The newest pod of a slot."""
        pods = [pod for pod in self.pods if pod.role is Role.WORKER and pod.slot == slot]
        return max(pods, key=lambda pod: pod.incarnation)


def pod_from(manifest: dict[str, Any], uid: str) -> PodSeen:
    """The pod that was just created from it."""
    meta, labels = manifest["metadata"], manifest["metadata"]["labels"]
    return PodSeen(
        name=meta["name"],
        uid=uid,
        role=Role(labels[names.ROLE]),
        slot=int(labels.get(names.SLOT, -1)),
        incarnation=int(labels.get(names.INCARNATION, 0)),
        term=int(labels.get(names.TERM, 0)),
    )


def a_job(workers: int = 4, **spec: Any) -> Scene:
    """Just applied. `spec`: fields of the manifest, for example suspend=True or command=None."""
    fields = {"workers": workers, "image": "train:1", "command": ["python", "train.py"], **spec}
    return Scene(
        now=NOON,
        metadata=Metadata(name="mnist", namespace="lab", uid=UID, generation=1, creation_timestamp=NOON),
        spec={name: value for name, value in fields.items() if value is not None},
        status=JobStatus(),
        key_id="k1",
        defaults=Defaults(operator_image="ropeteam:test", agent_secret="ropeteam-agent-test"),
    )


def a_running_job(workers: int = 4, **spec: Any) -> Scene:
    """Started, all pods running, the coordinator reports it, nothing left to do."""
    from tests.core.fake_cluster import FakeCluster

    cluster = FakeCluster(a_job(workers, **spec))
    cluster.play(until=lambda seen: seen.status.state == "Running")
    return cluster.observe()


def _pods(scene: Scene, change: Callable[[PodSeen], PodSeen | None], slot: int) -> Scene:
    target = scene.worker(slot).uid
    pods = (change(pod) if pod.uid == target else pod for pod in scene.pods)
    return scene.but(pods=tuple(pod for pod in pods if pod is not None))


def force_deleted(slot: int) -> Change:
    """The pod object is gone: deleted without grace."""
    return lambda scene: _pods(scene, lambda _: None, slot)


def deleted(slot: int, grace: float = 70) -> Change:
    """The pod is terminating; its container still runs."""
    return lambda scene: _pods(
        scene,
        lambda pod: pod.model_copy(
            update={"deleting": True, "delete_at": scene.now + timedelta(seconds=grace)}
        ),
        slot,
    )


def ended(slot: int, code: int = 1, exit_reason: str = "Error", **fields: Any) -> Change:
    """The trainer container has terminated. `exit_reason`: the kubelet's; `fields`: of the pod."""
    container = ContainerSeen(exit_code=code, exit_reason=exit_reason)
    phase = "Succeeded" if code == 0 else "Failed"
    fields = {"phase": phase, "container": container, **fields}
    return lambda scene: _pods(scene, lambda pod: pod.model_copy(update=fields), slot)


def evicted(slot: int) -> Change:
    return ended(slot, 137, reason="Evicted", message="The node was low on memory.")


def on_a_lost_node(slot: int) -> Change:
    """The node is NotReady, and the coordinator receives no more reports of the agent."""

    def change(scene: Scene) -> Scene:
        scene = _pods(scene, lambda pod: pod.model_copy(update={"node_lost": True}), slot)
        return scene.after(silent(slot)) if scene.report else scene

    return change


def silent(slot: int) -> Change:
    """The coordinator receives no more reports of this agent."""

    def change(scene: Scene) -> Scene:
        report = scene.report
        assert report is not None
        slots = report.slots | {str(slot): replace(report.slots[str(slot)], registered=False)}
        return scene.but(report=replace(report, slots=slots))

    return change


def without_coordinator_pod(scene: Scene) -> Scene:
    return scene.but(pods=tuple(pod for pod in scene.pods if pod.role is Role.WORKER), report=None)


def reporting(**fields: Any) -> Change:
    """The coordinator's report differs in these fields."""

    def change(scene: Scene) -> Scene:
        assert scene.report is not None
        return scene.but(report=replace(scene.report, **fields))

    return change


def unreachable(scene: Scene) -> Scene:
    return scene.but(report=None, report_error="10.0.0.1: no answer within 3 s")


def held(scene: Scene, number: float) -> tuple[HeldSlot, ...]:
    """Times by this operator's own clock, `number` seconds later."""
    before = {(each.slot, each.incarnation): each.seconds for each in scene.held_slots}
    slots = (slot for slot in scene.status.slots if not slot.previous_pod_fenced)
    return tuple(
        HeldSlot(
            slot=slot.slot,
            incarnation=slot.incarnation,
            seconds=max(0.0, before.get((slot.slot, slot.incarnation), 0.0) + number),
        )
        for slot in slots
    )


def seconds(number: float) -> Change:
    """Time passes, by every clock."""
    return lambda scene: scene.but(now=scene.now + timedelta(seconds=number), held_slots=held(scene, number))


def edited(**spec: Any) -> Change:
    """The user changed the manifest."""

    def change(scene: Scene) -> Scene:
        meta = scene.metadata.model_copy(update={"generation": scene.metadata.generation + 1})
        return scene.but(spec=scene.spec | spec, metadata=meta)

    return change


def saved(decision: Decision) -> Change:
    """The status write went through, and came back from the server."""
    return lambda scene: scene.but(status=JobStatus.model_validate(decision.status.to_json()))


def written(scene: Scene) -> Scene:
    """Everything that `decide` wants to write about this moment is written; its actions are still to come."""
    for _ in range(5):
        decision = decide(scene)
        if decision.status == scene.status:
            return scene
        scene = scene.after(saved(decision))
    raise AssertionError(f"still writes: {decision.why}")


def refused(message: str) -> Change:
    return lambda scene: scene.but(refusal=Refusal(message=message))


def an_incident(
    cause: Cause = Cause.ERROR, slot: int = 0, n: int = 1, term: int = 1, **fields: Any
) -> Incident:
    """As the coordinator reports it."""
    shown: dict[str, Any] = {
        "message": "ValueError: bad lr (train.py:31)",
        "step": 7,
        "rank": slot,
    }
    shown["node"] = f"node-{slot}"
    shown["unix_ms"] = int(NOON.timestamp() * 1000)
    id = str(WorldId(term, 0, n))
    return Incident(id=id, cause=cause, charged=cause.charged, slot=slot, **{**shown, **fields})


def a_request(
    slot: int, incarnation: int = 1, cause: Cause = Cause.AGENT_LOST, avoid_node: bool = False
) -> ReplacementRequest:
    return ReplacementRequest(slot, incarnation, cause, "silent for 5 seconds", avoid_node)


def a_problem(
    reason: FailReason = FailReason.COMMAND_NOT_FOUND, message: str = "no such file: trian.py"
) -> Problem:
    return Problem(reason, message)


def a_report(scene: Observation, phase: WorldPhase = WorldPhase.RUNNING, **fields: Any) -> JobReport:
    """From a coordinator of the current term at which every worker pod that runs is registered."""
    term = scene.status.coordinator.term
    slots = {
        str(pod.slot): SlotReport(pod.incarnation, pod.uid, pod.node, registered=True, term=term)
        for pod in scene.pods
        if pod.role is Role.WORKER and pod.container.running
    }
    known: dict[str, Any] = {
        "slots": slots,
        "why": f"the world is {phase.value}",
        "world_id": WorldId(term, 0, 1),
    }
    return JobReport(job_uid=scene.metadata.uid, term=term, boot=0, phase=phase, **{**known, **fields})
