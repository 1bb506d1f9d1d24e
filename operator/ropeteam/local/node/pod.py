"""The lifecycle of one pod: scheduled, mounted, init containers in order, containers together, until deleted.

A pod is never moved and never restarted. Its object is removed once it was deleted and all its processes have
exited. Limits: a running container is a ready one; of probes only livenessProbe is run; resources, node
selection and deadlines are ignored.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from ropeteam.local.api.verbs import timestamp
from ropeteam.local.node import liveness, podspec, volumes
from ropeteam.local.node.container import AGAIN_SECONDS, Container
from ropeteam.local.node.podspec import ContainerNotReady, ContainerStartError, Lookup
from ropeteam.local.resources import Object

T = TypeVar("T")
_log = logging.getLogger(__name__)
_MAX_BACK_OFF = 60.0


class Node(Protocol):
    """The interface of the kubelet for a pod."""

    name: str
    address: str
    home: Path
    environment: dict[str, str]

    def pod(self, uid: str) -> Object | None: ...
    def lookup(self, namespace: str) -> Lookup: ...
    def folder_of(self, pod: Object) -> Path: ...
    def new_address(self) -> str: ...
    def publish(self, pod: Object, status: Object, spec: Object | None = None) -> None: ...
    def record(self, pod: Object, kind: str, reason: str, message: str) -> None: ...


class _Stopping(Exception):
    """The pod is being deleted: all waits end."""


LONGEST_TEMPORARY = 70
"""A Unix socket's path has at most 107 bytes; with a deeper home the machine's temporary folder is used."""


class PodWorker:
    """Runs one pod. `wake()` whenever the pod, or a claim, a Secret or a ConfigMap has changed."""

    def __init__(self, node: Node, pod: Object) -> None:
        self.node, self.pod, self.uid = node, pod, pod["metadata"]["uid"]
        self.folder = node.home / "pods" / self.uid
        self.temporary = node.home / "t" / self.uid[:8]
        """TMPDIR of its containers, removed with the pod. Short: Unix sockets are created there."""
        logs = self.folder / "logs"
        spec = pod["spec"]
        self.init = [Container(c, logs, self._publish) for c in spec.get("initContainers", ())]
        self.containers = [Container(c, logs, self._publish) for c in spec["containers"]]
        self.initialized, self.stopping = False, False
        self._lookup = node.lookup(pod["metadata"]["namespace"])
        self._folders: dict[str, Path] = {}
        self._conditions: dict[str, Object] = {}
        self._fixed: Object = {}
        self._change = asyncio.Event()

    def wake(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    async def run(self) -> None:
        """Run until the pod is deleted and all its processes have exited. Cancelled: everything is killed."""
        lifecycle = asyncio.create_task(self._run_lifecycle())
        try:
            while (pod := self.node.pod(self.uid)) and "deletionTimestamp" not in pod["metadata"]:
                await self._change.wait()
            self.stopping = True
            self.wake()
            if not lifecycle.done():
                await self._terminate(lifecycle)
        finally:
            lifecycle.cancel()
            await asyncio.gather(lifecycle, return_exceptions=True)

    async def _terminate(self, lifecycle: asyncio.Task[None]) -> None:
        begin = asyncio.get_running_loop().time()
        self.node.record(self.pod, "Normal", "Killing", "Stopping containers")
        self._signal(signal.SIGTERM)
        while not lifecycle.done():
            pod = self.node.pod(self.uid)
            grace = pod["metadata"]["deletionGracePeriodSeconds"] if pod else 0
            left = begin + grace - asyncio.get_running_loop().time()
            if left <= 0:
                while not lifecycle.done():
                    self._signal(signal.SIGINT)
                    await asyncio.wait({lifecycle}, timeout=AGAIN_SECONDS)
                return
            shorter = asyncio.create_task(self._change.wait())
            await asyncio.wait({lifecycle, shorter}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            shorter.cancel()

    def _signal(self, number: int) -> None:
        for container in (*self.init, *self.containers):
            container.signal(number)

    async def _run_lifecycle(self) -> None:
        try:
            await self._schedule()
            self._folders = await self._when_ready(self._mount)
            for container in self.init:
                if await self._run(container, self._init_policy) != 0:
                    return
            self.initialized = True
            self._publish()
            policy = self.pod["spec"]["restartPolicy"]
            await asyncio.gather(*(self._run(container, policy) for container in self.containers))
        except _Stopping:
            pass
        except Exception:
            _log.exception("pod %s cannot continue", self.pod["metadata"]["name"])
            raise
        finally:
            self._publish()

    @property
    def _init_policy(self) -> str:
        return "Never" if self.pod["spec"]["restartPolicy"] == "Never" else "OnFailure"

    async def _schedule(self) -> None:
        reported = ""
        while missing := volumes.missing_claim(self.pod, self._lookup):
            if missing != reported:
                self._condition("PodScheduled", False, "Unschedulable", missing)
                self.node.publish(
                    self.pod, {**self.pod["status"], "conditions": [*self._conditions.values()]}
                )
                self.node.record(self.pod, "Warning", "FailedScheduling", missing)
                reported = missing
            await self._changed()
        address = self.node.new_address()
        self._fixed = {
            "hostIP": self.node.address,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": timestamp(),
        }
        self._condition("PodScheduled", True)
        self.node.publish(self.pod, self._status(), {"nodeName": self.node.name})
        self.pod = self.node.pod(self.uid) or self.pod
        self.node.record(
            self.pod, "Normal", "Scheduled", f"Assigned to {self.node.name} with address {address}"
        )
        images = sorted({container.spec["image"] for container in self.containers})
        text = f"Image {', '.join(images)} is recorded, not used: commands are those of this machine"
        self.node.record(self.pod, "Normal", "ImageNotUsed", text)

    async def _run(self, container: Container, policy: str) -> int:
        """Run, and restart by the policy. Returns the last exit code."""
        try:
            return await self._run_by_policy(container, policy)
        except _Stopping:
            return 137

    async def _run_by_policy(self, container: Container, policy: str) -> int:
        back_off = 1.0
        clock = asyncio.get_running_loop().time
        while True:
            begin = clock()
            code = await self._run_once(container)
            if self.stopping or policy == "Never" or (policy == "OnFailure" and code == 0):
                container.exit_code = code
                self._publish()
                return code
            if clock() - begin > _MAX_BACK_OFF:
                back_off = 1.0
            text = f"back-off {back_off:.0f}s restarting failed container={container.name}"
            container.wait("CrashLoopBackOff", text)
            self.node.record(self.pod, "Warning", "BackOff", f"{text} in pod {self.pod['metadata']['name']}")
            await self._sleep(back_off)
            back_off = min(2 * back_off, _MAX_BACK_OFF)
            container.begin_anew()

    async def _run_once(self, container: Container) -> int:
        started = timestamp()
        try:
            process = await self._when_ready(lambda: self._process_spec(container), container)
            self.node.record(self.pod, "Normal", "Started", f"Started container {container.name}")
            return await self._run_with_probe(container, process)
        except ContainerStartError as error:
            container.end(127, "StartError", started, str(error))
            self.node.record(self.pod, "Warning", "Failed", f"Error: {error}")
            return 127

    async def _run_with_probe(self, container: Container, process: podspec.ProcessSpec) -> int:
        """One run, which a failed livenessProbe ends."""
        probed = "httpGet" in (container.spec.get("livenessProbe") or {})
        watch = asyncio.create_task(self._kill_when_unhealthy(container)) if probed else None
        try:
            return await container.run(process)
        finally:
            if watch:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)

    async def _kill_when_unhealthy(self, container: Container) -> None:
        why = await liveness.failed(container.spec, self._fixed["podIP"])
        self.node.record(self.pod, "Warning", "Unhealthy", f"Liveness probe failed: {why}")
        text = f"Container {container.name} failed liveness probe, will be restarted"
        self.node.record(self.pod, "Normal", "Killing", text)
        container.signal(signal.SIGTERM)
        await asyncio.sleep(self.pod["spec"].get("terminationGracePeriodSeconds", 30))
        while True:
            container.signal(signal.SIGINT)
            await asyncio.sleep(AGAIN_SECONDS)

    def _mount(self) -> dict[str, Path]:
        for container in self.init:
            if container.spec.get("restartPolicy") == "Always":
                text = (
                    f"init container {container.name} is a sidecar, which the local cluster does not support"
                )
                raise ContainerNotReady("ContainerCreating", text)
        return volumes.make(self.pod, self.node.home, self._lookup)

    def _process_spec(self, container: Container) -> podspec.ProcessSpec:
        mounts = volumes.mounts(container.spec, self._folders)
        meta = self.pod["metadata"]
        base = self.node.environment | {"HOSTNAME": meta["name"], "POD_IP": self._fixed["podIP"]}
        if len(str(self.temporary)) <= LONGEST_TEMPORARY:
            self.temporary.mkdir(parents=True, exist_ok=True)
            base["TMPDIR"] = str(self.temporary)
        folder = self.node.folder_of(self.pod)
        return podspec.process_spec(
            self.pod, container.spec, podspec.ExecutionContext(mounts, base, folder), self._lookup
        )

    async def _when_ready(self, attempt: Callable[[], T], container: Container | None = None) -> T:
        """Try now and at each change, with the reason in the status meanwhile."""
        reported = ""
        while not self.stopping:
            try:
                return attempt()
            except ContainerStartError:
                raise
            except Exception as error:  # a spec that passed validation may still be invalid
                reason = error.reason if isinstance(error, ContainerNotReady) else "ContainerCreating"
                for waiting in [container] if container else [*self.init, *self.containers]:
                    waiting.wait(reason, str(error))
                if str(error) != reported:
                    self.node.record(
                        self.pod, "Warning", "Failed" if container else "FailedMount", str(error)
                    )
                reported = str(error)
            await self._changed()
        raise _Stopping

    async def _changed(self) -> None:
        await self._change.wait()
        if self.stopping:
            raise _Stopping

    async def _sleep(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            try:
                await asyncio.wait_for(self._changed(), left)
            except TimeoutError:
                return

    def _publish(self) -> None:
        if self._fixed:
            self.node.publish(self.pod, self._status())

    def _status(self) -> Object:
        phase = self._phase()
        over = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "")
        unready = [c.name for c in self.containers if not c.running]
        text = f"containers with unready status: [{' '.join(unready)}]" if unready else ""
        for kind in ("Ready", "ContainersReady"):
            self._condition(kind, not unready, over or ("ContainersNotReady" if unready else ""), text)
        self._condition(
            "Initialized", self.initialized, "" if self.initialized else "ContainersNotInitialized"
        )
        status = {"phase": phase, "qosClass": "BestEffort", **self._fixed}
        status["conditions"] = [dict(condition) for condition in self._conditions.values()]
        if self.init:
            status["initContainerStatuses"] = [container.status() for container in self.init]
        return status | {"containerStatuses": [container.status() for container in self.containers]}

    def _phase(self) -> str:
        if any(container.exit_code for container in self.init):
            return "Failed"
        codes = [container.exit_code for container in self.containers]
        if self.initialized and all(code is not None for code in codes):
            return "Failed" if any(codes) else "Succeeded"
        return "Running" if any(container.ever_ran for container in self.containers) else "Pending"

    def _condition(self, kind: str, holds: bool, reason: str = "", message: str = "") -> None:
        status = "True" if holds else "False"
        old = self._conditions.get(kind, {})
        since = old["lastTransitionTime"] if old.get("status") == status else timestamp()
        new = {"type": kind, "status": status, "lastTransitionTime": since}
        self._conditions[kind] = new | {k: v for k, v in (("reason", reason), ("message", message)) if v}
