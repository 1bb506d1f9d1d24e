"""Nodes: scheduler, kubelets and the control plane's opinion of them.

A kubelet starts containers, signals, reaps, probes and reports, while its node has power and reaches the API
server; what it could not report it reports later. A node without a report for `notice` seconds is not
Ready; after `evict` more its pods are marked as deleted.
Limits: one container per pod counts, images and quota do not exist, liveness by HTTP only.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.shipped.kubernetes import Object, copy_of
from tests.shipped.loop import Process
from tests.shipped.session import CONTROL

if TYPE_CHECKING:
    from tests.shipped.site import Site

KILLED = 137


@dataclass(eq=False)
class Pod:
    """State of one pod in the kubelet."""

    obj: Object = field(repr=False)
    """As it was made."""
    node: Node = field(repr=False)
    ip: str
    process: Process | None = None
    lives: int = 0
    restarts: int = 0
    deleting: bool = False
    over: bool = False
    status: Object = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.obj["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.obj["metadata"]["uid"])

    def label(self, name: str) -> str:
        return str(self.obj["metadata"]["labels"].get(f"ropeteam.dev/{name}", ""))

    @property
    def slot(self) -> int:
        return int(self.label("slot") or -1)

    @property
    def is_coordinator(self) -> bool:
        return self.label("role") == "coordinator"

    @property
    def container(self) -> Object:
        found: Object = self.obj["spec"]["containers"][0]
        return found

    @property
    def env(self) -> dict[str, str]:
        return {each["name"]: each["value"] for each in self.container.get("env") or () if "value" in each}


class Node:
    """And its kubelet. `start(pod)` makes the pod's process."""

    def __init__(self, site: Site, name: str, start: Callable[[Pod], Process]) -> None:
        self.site, self.name, self._start_process = site, name, start
        self.powered, self.receives = True, True
        """`hears`: its kubelet runs (pods can live without it)."""
        self.pods: dict[str, Pod] = {}
        self.kubelet = Process(site.loop, f"kubelet of {name}", name, f"10.1.0.{name}")
        self._missed: list[tuple[Any, ...]] = []
        self._silent_since: float | None = None
        self.ready = True
        conditions = [{"type": "Ready", "status": "True"}]
        meta = {"name": name, "uid": name, "namespace": ""}
        site.kubernetes.put("ADDED", {"kind": "Node", "metadata": meta, "status": {"conditions": conditions}})
        site.loop.after(1.0, self._renew_lease)

    @property
    def in_touch(self) -> bool:
        return self.powered and self.receives and self.site.network.reaches(self.name, CONTROL)

    # ---- the control plane's view

    def _renew_lease(self) -> None:
        """Each second: what the node lifecycle controller would conclude from leases."""
        site = self.site
        site.loop.after(1.0, self._renew_lease)
        if self.in_touch and not site.api_away:
            self._silent_since = None
            self._set_ready(True)
            missed, self._missed = self._missed, []
            for call, *arguments in missed:
                call(*arguments)
            return
        if site.api_away:
            return
        if self._silent_since is None:
            self._silent_since = site.loop.now
        silent = site.loop.now - self._silent_since
        if silent >= site.setup.notice:
            self._set_ready(False)
        if silent >= site.setup.notice + site.setup.evict:
            for obj in site.kubernetes.all("Pod"):
                if obj["spec"].get("nodeName") == self.name and "deletionTimestamp" not in obj["metadata"]:
                    site.kubernetes.delete(obj)

    def _set_ready(self, ready: bool) -> None:
        if ready == self.ready:
            return
        self.ready = ready
        node = self.site.kubernetes.find("Node", self.name)
        if node is not None:
            new = copy_of(node)
            new["status"]["conditions"][0]["status"] = "True" if ready else "Unknown"
            self.site.kubernetes.put("MODIFIED", new)

    def taint_out_of_service(self) -> None:
        """A person says that it has no power."""
        if node := self.site.kubernetes.find("Node", self.name):
            new = copy_of(node)
            taint = {
                "key": "node.kubernetes.io/out-of-service",
                "effect": "NoExecute",
                "value": "nodeshutdown",
            }
            new["spec"] = {"taints": [taint]}
            self.site.kubernetes.put("MODIFIED", new)

    def lose_power(self) -> None:
        if not self.powered:
            return
        self.powered = False
        for pod in self.pods.values():
            if pod.process:
                pod.process.die(silent=True)

    def come_back(self) -> None:
        """With power and a kubelet; what ran before a power cut has ended."""
        had_power, self.powered, self.receives = self.powered, True, True
        if node := self.site.kubernetes.find("Node", self.name):
            new = copy_of(node)
            new.pop("spec", None)
            if new != node:
                self.site.kubernetes.put("MODIFIED", new)
        if not had_power:
            for pod in list(self.pods.values()):
                if pod.process is not None and not pod.process.alive:
                    self.exited(pod, 255, "Unknown")

    # ---- pods

    def _later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        self.site.loop.after(seconds, self._when_in_touch, call, *arguments)

    def _when_in_touch(self, call: Callable[..., None], *arguments: Any) -> None:
        if self.in_touch and not self.site.api_away:
            call(*arguments)
        else:
            self._missed.append((call, *arguments))

    def accept(self, obj: Object) -> None:
        pod = Pod(obj, self, self.site.next_ip())
        self.pods[pod.uid] = pod
        self._later(0.2 + 1.5 * self.site.loop.random.random(), self._start, pod)

    def on_event(self, event: str, obj: Object) -> None:
        """The pod's object changed, or is gone."""
        pod = self.pods.get(obj["metadata"]["uid"])
        if pod is None:
            return
        if event == "DELETED":
            self._later(0.1, self._end, pod, 0.0)
        elif "deletionTimestamp" in obj["metadata"] and not pod.deleting:
            grace = float(obj["metadata"]["deletionGracePeriodSeconds"])
            self._later(0.1, self._end, pod, grace)

    def _start(self, pod: Pod) -> None:
        if pod.deleting or pod.over or self.pods.get(pod.uid) is not pod:
            return
        secrets = [
            volume["secret"]["secretName"] for volume in pod.obj["spec"]["volumes"] if "secret" in volume
        ]
        if not all(self.site.kubernetes.find("Secret", name) for name in secrets):
            self._later(1.0, self._start, pod)
            return
        pod.lives += 1
        pod.process = self._start_process(pod)
        self._report(pod, "Running", {"running": {}})
        if probe := pod.container.get("livenessProbe"):
            life = pod.process
            self.kubelet.spawn(lambda: self._probe(pod, life, probe))

    def _report(self, pod: Pod, phase: str, state: Object, reason: str = "") -> None:
        status = {"name": pod.container["name"], "restartCount": pod.restarts, "state": state}
        pod.status = {"phase": phase, "podIP": pod.ip, "containerStatuses": [status]}
        if reason:
            pod.status["reason"] = reason
        self._publish(pod)

    def _publish(self, pod: Pod) -> None:
        def write(new: Object) -> None:
            new["status"] = copy_of(pod.status)

        self.site.kubernetes.edit(pod.obj, write)

    def _end(self, pod: Pod, grace: float) -> None:
        pod.deleting = True
        process = pod.process
        if process is None or not process.alive:
            if not pod.over or process is None:
                self._forget(pod)
            return
        if grace > 0:
            process.signal(signal.SIGTERM, process.die)
            self._later(0.0, self._reap_if_dead, pod, process)
        self.site.loop.after(grace, self._kill, pod, process)

    def _reap_if_dead(self, pod: Pod, process: Process) -> None:
        if not process.alive and pod.process is process and not pod.over:
            self.exited(pod, 143)

    def _kill(self, pod: Pod, process: Process) -> None:
        if process.alive and self.powered and self.receives:
            process.die()
            self.exited(pod, KILLED)

    def exited(self, pod: Pod, code: int, reason: str = "") -> None:
        """The first process of its container has ended."""
        pod.over = True
        seconds = 0.02 + 0.2 * self.site.loop.random.random()
        reason = reason or ("Completed" if code == 0 else "Error")
        self._later(seconds, self._report_exit, pod, pod.lives, code, reason)

    def _report_exit(self, pod: Pod, life: int, code: int, reason: str) -> None:
        if life != pod.lives:
            return
        ended = {"terminated": {"exitCode": code, "reason": reason}}
        if pod.is_coordinator and not pod.deleting:
            pod.restarts += 1
            pod.over = False
            self._report(pod, "Running", {"waiting": {"reason": "CrashLoopBackOff", "message": ""}})
            self._later(min(0.3 * 2**pod.restarts, 10.0), self._start, pod)
        else:
            self._report(pod, "Succeeded" if code == 0 else "Failed", ended)
        if pod.deleting:  # sometimes in one rush, so that nobody reads the pod in between
            self._later(self.site.loop.random.choice((0.0, 0.1)), self._forget, pod)

    def _forget(self, pod: Pod) -> None:
        self.pods.pop(pod.uid, None)
        self.site.kubernetes.remove(pod.obj)

    def evict(self, pod: Pod) -> None:
        """Node pressure: the kubelet fails the pod; the object stays."""
        if pod.process and pod.process.alive and self.in_touch:
            pod.status["reason"] = "Evicted"
            pod.process.signal(signal.SIGTERM, pod.process.die)
            self.site.loop.after(3.0, self._kill, pod, pod.process)

    # ---- liveness

    async def _probe(self, pod: Pod, life: Process, probe: Object) -> None:
        """As the kubelet does: failureThreshold failures in a row end the container."""
        await asyncio.sleep(float(probe.get("initialDelaySeconds", 0)))
        failures = 0
        while life.alive and pod.process is life:
            await asyncio.sleep(float(probe.get("periodSeconds", 10)))
            if not self.powered or not self.receives:
                continue
            well = await self._polls(pod, probe["httpGet"], float(probe.get("timeoutSeconds", 1)))
            failures = 0 if well else failures + 1
            if failures >= int(probe.get("failureThreshold", 3)) and life.alive:
                self.site.counts["liveness kills"] += 1
                life.signal(signal.SIGTERM, life.die)
                await asyncio.sleep(float(pod.obj["spec"].get("terminationGracePeriodSeconds", 30)))
                if life.alive:
                    life.die()
                if pod.process is life and not pod.over:
                    self.exited(pod, KILLED)
                return

    async def _polls(self, pod: Pod, get: Object, seconds: float) -> bool:
        port = get["port"]
        named = {each["name"]: each["containerPort"] for each in pod.container.get("ports") or ()}
        try:
            async with asyncio.timeout(seconds):
                reader, writer = await asyncio.open_connection(pod.ip, int(named.get(port) or port))
                try:
                    writer.write(f"GET {get['path']} HTTP/1.1\r\nHost: pod\r\n\r\n".encode())
                    return b" 200 " in (await reader.readline())
                finally:
                    writer.transport.abort()
        except (OSError, TimeoutError):
            return False


class Scheduler:
    """A node for each pod that has none."""

    def __init__(self, site: Site, nodes: dict[str, Node]) -> None:
        self._site, self._nodes = site, nodes
        site.kubernetes.changed.append(self._changed)

    def _changed(self, event: str, obj: Object) -> None:
        if obj["kind"] != "Pod":
            return
        if event == "ADDED":
            self._site.loop.after(0.05 + 0.3 * self._site.loop.random.random(), self._schedule, obj)
        elif name := obj["spec"].get("nodeName"):
            self._nodes[name].on_event(event, obj)

    def _schedule(self, obj: Object) -> None:
        kubernetes, random = self._site.kubernetes, self._site.loop.random
        known = kubernetes.find("Pod", obj["metadata"]["name"])
        if known is None or known["metadata"]["uid"] != obj["metadata"]["uid"]:
            return
        ready = [node for node in self._nodes.values() if node.ready]
        wanted = self._wanted(ready)
        if not wanted:
            self._site.loop.after(2.0, self._schedule, obj)
            return
        node = random.choice(wanted)

        def place(new: Object) -> None:
            new["spec"]["nodeName"] = node.name

        if placed := kubernetes.edit(obj, place):
            node.accept(placed)

    def _wanted(self, ready: list[Node]) -> list[Node]:
        """Not where a pod of ours already is, if that can be."""
        free = [node for node in ready if all(pod.over for pod in node.pods.values())]
        return free or ready if self._site.setup.spread else ready
