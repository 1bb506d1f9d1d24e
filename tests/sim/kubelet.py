"""Nodes, and the kubelet on each: it starts, signals and reaps containers, and reports to the API server.

A node can lose power (its processes vanish without a report), be cut off (they live on, their reports do
not arrive), or only its kubelet is away. After NOTICE seconds the control plane calls it lost; after EVICT
more it marks its pods as deleted. When it comes back, the kubelet catches up with all that was requested
meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from ropeteam.core.seen.observation import ContainerSeen, PodSeen, Role

if TYPE_CHECKING:
    from tests.sim.kubernetes import Kubernetes

NOTICE, EVICT = 8.0, 20.0
KILLED = 137


class Container(Protocol):
    """The first process of a pod."""

    frozen: bool

    def terminate(self) -> None:
        """SIGTERM."""

    def kill(self) -> None:
        """SIGKILL: its kernel closes its connections. Calls nobody back."""

    def vanish(self) -> None:
        """The machine lost power: not even that."""


@dataclass(eq=False)
class Pod:
    name: str
    uid: str
    role: Role
    slot: int
    incarnation: int
    term: int
    grace: float
    manifest: dict[str, Any] = field(repr=False)
    kubelet: Kubelet | None = field(default=None, repr=False)
    phase: str = "Pending"
    reason: str = ""
    container: ContainerSeen = ContainerSeen()
    scheduled_message: str = ""
    deleting: bool = False
    delete_at: datetime | None = None
    process: Container | None = field(default=None, repr=False)
    lives: int = 0
    """How often its container has started."""

    def seen(self) -> PodSeen:
        return PodSeen(
            name=self.name,
            uid=self.uid,
            role=self.role,
            slot=self.slot,
            incarnation=self.incarnation,
            term=self.term,
            phase=self.phase,
            reason=self.reason,
            node=self.kubelet.name if self.kubelet else "",
            node_lost=bool(self.kubelet and self.kubelet.lost),
            deleting=self.deleting,
            delete_at=self.delete_at,
            scheduled_message=self.scheduled_message,
            container=self.container,
        )

    def secret_names(self) -> list[str]:
        volumes = self.manifest["spec"].get("volumes") or ()
        return [volume["secret"]["secretName"] for volume in volumes if "secret" in volume]


class Kubelet:
    def __init__(self, name: str, kubernetes: Kubernetes) -> None:
        self.name, self._kubernetes = name, kubernetes
        self.powered, self.connected, self.lost = True, True, False
        self.cabled = True
        """False: its pods reach nobody. (A kubelet can be out of touch while its pods are not.)"""
        self.pods: list[Pod] = []
        self._missed: list[tuple[Any, ...]] = []
        self._outage = 0

    @property
    def in_touch(self) -> bool:
        return self.powered and self.connected

    def accept(self, pod: Pod) -> None:
        self.pods.append(pod)
        self._later(0.2 + 1.5 * self._kubernetes.random.random(), self._start, pod, 0)

    def deletion_requested(self, pod: Pod, grace: float) -> None:
        self._later(0.05, self._delete, pod, grace)

    # ---- power and cable

    def go_out_of_touch(self, power_too: bool) -> None:
        if power_too and self.powered:
            self.powered = False
            for pod in self.pods:
                if pod.process:
                    pod.process.vanish()
                    pod.process = None
        if self.connected and not power_too:
            self.connected = False
        self._outage += 1
        self._kubernetes.clock.after(NOTICE, self._noticed, self._outage)

    def come_back(self) -> None:
        if self.in_touch:
            return
        had_power, self.powered, self.connected, self.lost = self.powered, True, True, False
        self.cabled = True
        self._outage += 1
        if not had_power:
            for pod in list(self.pods):
                self._report_exit(pod, pod.lives, 255, "Unknown")
        missed, self._missed = self._missed, []
        for call, *arguments in missed:
            call(*arguments)
        self._kubernetes.changed()

    def disown(self) -> None:
        """The Node object is deleted: the garbage collector takes its pods, whatever still runs there."""
        for pod in list(self._kubernetes.pods.values()):
            if pod.kubelet is self:
                self._kubernetes.force_delete(pod)

    def _noticed(self, outage: int) -> None:
        if outage == self._outage and not self.in_touch:
            self.lost = True
            self._kubernetes.changed()
            self._kubernetes.clock.after(EVICT, self._evict, outage)

    def _evict(self, outage: int) -> None:
        if outage == self._outage and not self.in_touch:
            for pod in list(self._kubernetes.pods.values()):
                if pod.kubelet is self and not pod.deleting:
                    self._kubernetes.delete_pod(pod)

    # ---- containers

    def _later(self, seconds: float, call: Any, *arguments: Any) -> None:
        self._kubernetes.clock.after(seconds, self._when_in_touch, call, *arguments)

    def _when_in_touch(self, call: Any, *arguments: Any) -> None:
        if self.in_touch:
            call(*arguments)
        else:
            self._missed.append((call, *arguments))

    def _start(self, pod: Pod, restarts: int) -> None:
        if pod.deleting or pod not in self.pods:
            return
        if any(name not in self._kubernetes.secrets for name in pod.secret_names()):
            self._later(1.0, self._start, pod, restarts)
            return
        pod.lives += 1
        pod.phase, pod.container = "Running", ContainerSeen(running=True, restarts=restarts)
        pod.process = self._kubernetes.start_process(pod, restarts)
        if probe := pod.manifest["spec"]["containers"][0].get("livenessProbe"):
            self._kubernetes.clock.after(probe["periodSeconds"], self._probe, pod, pod.lives, probe, 0)
        self._kubernetes.changed()

    def _probe(self, pod: Pod, life: int, probe: dict[str, Any], failures: int) -> None:
        """livenessProbe: a kubelet runs it alone, also one that is out of touch."""
        if pod.process is None or pod.lives != life or not self.powered:
            return
        failures = failures + 1 if pod.process.frozen else 0
        if failures >= probe["failureThreshold"]:
            pod.process.kill()
            self.exited(pod, KILLED, "Error")
            return
        self._kubernetes.clock.after(probe["periodSeconds"], self._probe, pod, life, probe, failures)

    def _delete(self, pod: Pod, grace: float) -> None:
        """The object is marked (or gone): end its processes, then say that they have ended."""
        if pod not in self.pods:
            return
        if pod.process is None:
            self._forget(pod)
            return
        if grace > 0:
            pod.process.terminate()
        self._later(grace, self._kill, pod)

    def _kill(self, pod: Pod) -> None:
        if pod.process is not None:
            pod.process.kill()
            self.exited(pod, KILLED, "Error")

    def exited(self, pod: Pod, code: int, reason: str = "") -> None:
        """The first process of the container ended (the process calls this, or its killer)."""
        pod.process = None
        seconds = 0.02 + 0.2 * self._kubernetes.random.random()
        reason = reason or ("Completed" if code == 0 else "Error")
        self._later(seconds, self._report_exit, pod, pod.lives, code, reason)

    def _report_exit(self, pod: Pod, life: int, code: int, reason: str) -> None:
        if life != pod.lives or not pod.container.running:
            return
        restarts = pod.container.restarts
        if pod.role is Role.COORDINATOR and not pod.deleting:
            pod.container = ContainerSeen(waiting_reason="CrashLoopBackOff", restarts=restarts + 1)
            self._later(min(0.3 * 2**restarts, 10.0), self._start, pod, restarts + 1)
        else:
            pod.phase = "Succeeded" if code == 0 else "Failed"
            pod.container = ContainerSeen(exit_code=code, exit_reason=reason, restarts=restarts)
        self._kubernetes.changed()
        if pod.deleting:
            self._later(0.1, self._forget, pod)

    def evict(self, pod: Pod) -> None:
        """Node pressure: the kubelet fails the pod; the object stays."""
        if pod.process is not None and self.in_touch and not pod.deleting:
            pod.reason = "Evicted"
            pod.process.terminate()
            self._later(3.0, self._kill, pod)

    def _forget(self, pod: Pod) -> None:
        if pod in self.pods:
            self.pods.remove(pod)
        self._kubernetes.remove(pod)
