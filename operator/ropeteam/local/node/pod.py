"""The lifecycle of one pod: scheduling, volumes, init containers in order, containers together, until it is
deleted.

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
    """The part of the kubelet that a PodWorker uses."""

    name: str
    address: str
    home: Path
    environment: dict[str, str]

    def find_by_uid(self, uid: str) -> Object | None: ...
    def lookup(self, namespace: str) -> Lookup: ...
    def working_folder(self, pod: Object) -> Path: ...
    def unused_address(self) -> str: ...
    def write_status(self, pod: Object, status: Object, spec: Object | None = None) -> None: ...
    def record_event(self, pod: Object, kind: str, reason: str, message: str) -> None: ...


class _Stopping(Exception):
    """The pod is being deleted: all waits end."""


LONGEST_TEMPORARY = 70
"""Longest path of a pod's TMPDIR: the path of a Unix socket in it may have 107 bytes. With a deeper home,
containers use the machine's temporary folder."""


class PodWorker:
    """Runs one pod. Call `wake()` whenever the pod, or a claim, a Secret or a ConfigMap has changed."""

    def __init__(self, node: Node, pod: Object) -> None:
        self.node, self.pod, self.uid = node, pod, pod["metadata"]["uid"]
        self.folder = node.home / "pods" / self.uid
        self.temporary = node.home / "t" / self.uid[:8]
        """TMPDIR of its containers, removed with the pod. Short: Unix sockets are created there."""
        logs = self.folder / "logs"
        spec = pod["spec"]
        self.init = [Container(c, logs, self._write_status) for c in spec.get("initContainers", ())]
        self.containers = [Container(c, logs, self._write_status) for c in spec["containers"]]
        self.initialized, self.stopping = False, False
        self._lookup = node.lookup(pod["metadata"]["namespace"])
        self._folders: dict[str, Path] = {}
        self._conditions: dict[str, Object] = {}
        self._scheduled_status: Object = {}
        """Fields of status that are set when the pod is scheduled; empty before."""
        self._change = asyncio.Event()

    def wake(self) -> None:
        """Wake all that wait in `_wait_for_change`. The event is replaced, so that a later wait is for the
        next change."""
        self._change.set()
        self._change = asyncio.Event()

    async def run(self) -> None:
        """Run until the pod is deleted and all its processes have exited. Cancelled: all containers are
        killed, and have exited when this ends."""
        lifecycle = asyncio.create_task(self._run_lifecycle())
        try:
            while (pod := self.node.find_by_uid(self.uid)) and "deletionTimestamp" not in pod["metadata"]:
                await self._change.wait()
            self.stopping = True
            self.wake()
            if not lifecycle.done():
                await self._terminate(lifecycle)
        finally:
            lifecycle.cancel()
            await asyncio.gather(lifecycle, return_exceptions=True)

    async def _terminate(self, lifecycle: asyncio.Task[None]) -> None:
        """Send SIGTERM, wait for the end of `lifecycle` during the grace period, then kill until it ends. The
        grace period is read again at each change of the pod: a second deletion may shorten it."""
        begin = asyncio.get_running_loop().time()
        self.node.record_event(self.pod, "Normal", "Killing", "Stopping containers")
        self._signal_containers(signal.SIGTERM)
        while not lifecycle.done():
            pod = self.node.find_by_uid(self.uid)
            grace = pod["metadata"]["deletionGracePeriodSeconds"] if pod else 0
            left = begin + grace - asyncio.get_running_loop().time()
            if left <= 0:
                while not lifecycle.done():
                    self._signal_containers(signal.SIGINT)
                    await asyncio.wait({lifecycle}, timeout=AGAIN_SECONDS)
                return
            shorter = asyncio.create_task(self._change.wait())
            await asyncio.wait({lifecycle, shorter}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            shorter.cancel()

    def _signal_containers(self, signum: int) -> None:
        for container in (*self.init, *self.containers):
            container.signal(signum)

    async def _run_lifecycle(self) -> None:
        """Schedule the pod, create its volumes, run init containers in order, then all containers until each
        has ended. Ends early at a failed init container, or when the pod is being deleted."""
        try:
            await self._schedule()
            self._folders = await self._retry_until_ready(self._create_volumes)
            for container in self.init:
                if await self._run_container(container, self._init_policy) != 0:
                    return
            self.initialized = True
            self._write_status()
            policy = self.pod["spec"]["restartPolicy"]
            await asyncio.gather(*(self._run_container(container, policy) for container in self.containers))
        except _Stopping:
            pass
        except Exception:
            name = "{namespace}/{name}".format(**self.pod["metadata"])
            _log.exception("pod %s: an error of the local cluster; delete the pod, and create it again", name)
            raise
        finally:
            self._write_status()

    @property
    def _init_policy(self) -> str:
        """Restart policy of init containers: after a success they are never restarted."""
        return "Never" if self.pod["spec"]["restartPolicy"] == "Never" else "OnFailure"

    async def _schedule(self) -> None:
        """Wait until all claims of the pod exist, then give it node and address, in status and spec."""
        reported = ""
        while missing := volumes.missing_claim(self.pod, self._lookup):
            if missing != reported:
                self._set_condition("PodScheduled", False, "Unschedulable", missing)
                self.node.write_status(
                    self.pod, {**self.pod["status"], "conditions": [*self._conditions.values()]}
                )
                self.node.record_event(self.pod, "Warning", "FailedScheduling", missing)
                reported = missing
            await self._wait_for_change()
        address = self.node.unused_address()
        self._scheduled_status = {
            "hostIP": self.node.address,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": timestamp(),
        }
        self._set_condition("PodScheduled", True)
        self.node.write_status(self.pod, self._new_status(), {"nodeName": self.node.name})
        self.pod = self.node.find_by_uid(self.uid) or self.pod
        self.node.record_event(
            self.pod, "Normal", "Scheduled", f"Assigned to {self.node.name} with address {address}"
        )
        images = sorted({container.spec["image"] for container in self.containers})
        text = f"Image {', '.join(images)} is recorded, not used: commands are those of this machine"
        self.node.record_event(self.pod, "Normal", "ImageNotUsed", text)

    async def _run_container(self, container: Container, policy: str) -> int:
        """Run a container, and restart it by the policy. Returns its last exit code; 137 if the pod is
        deleted while the container waits."""
        try:
            return await self._run_by_policy(container, policy)
        except _Stopping:
            return 137

    async def _run_by_policy(self, container: Container, policy: str) -> int:
        """As `_run_container`, but raises _Stopping. Restarts have exponential backoff in seconds; a run that
        was longer than _MAX_BACK_OFF resets it."""
        back_off = 1.0
        clock = asyncio.get_running_loop().time
        while True:
            begin = clock()
            code = await self._run_once(container)
            if self.stopping or policy == "Never" or (policy == "OnFailure" and code == 0):
                container.exit_code = code
                self._write_status()
                return code
            if clock() - begin > _MAX_BACK_OFF:
                back_off = 1.0
            text = f"back-off {back_off:.0f}s restarting failed container={container.name}"
            container.set_waiting("CrashLoopBackOff", text)
            self.node.record_event(
                self.pod, "Warning", "BackOff", f"{text} in pod {self.pod['metadata']['name']}"
            )
            await self._sleep_or_stop(back_off)
            back_off = min(2 * back_off, _MAX_BACK_OFF)
            container.prepare_restart()

    async def _run_once(self, container: Container) -> int:
        """One run, once its Secrets and ConfigMaps exist. Returns its exit code; 127 if the command cannot
        start. Raises _Stopping."""
        started = timestamp()
        try:
            process = await self._retry_until_ready(lambda: self._process_spec(container), container)
            self.node.record_event(self.pod, "Normal", "Started", f"Started container {container.name}")
            return await self._run_with_probe(container, process)
        except ContainerStartError as error:
            container.set_terminated(127, "StartError", started, str(error))
            self.node.record_event(self.pod, "Warning", "Failed", f"Error: {error}")
            return 127

    async def _run_with_probe(self, container: Container, process: podspec.ProcessSpec) -> int:
        """One run, which a failed livenessProbe ends. Returns its exit code."""
        probed = "httpGet" in (container.spec.get("livenessProbe") or {})
        watch = asyncio.create_task(self._kill_when_unhealthy(container)) if probed else None
        try:
            return await container.run(process)
        finally:
            if watch:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)

    async def _kill_when_unhealthy(self, container: Container) -> None:
        """Wait until the livenessProbe has failed, then send SIGTERM, and after the grace period kill until
        cancelled."""
        why = await liveness.wait_for_failure(container.spec, self._scheduled_status["podIP"])
        self.node.record_event(self.pod, "Warning", "Unhealthy", f"Liveness probe failed: {why}")
        text = f"Container {container.name} failed liveness probe, will be restarted"
        self.node.record_event(self.pod, "Normal", "Killing", text)
        container.signal(signal.SIGTERM)
        await asyncio.sleep(self.pod["spec"].get("terminationGracePeriodSeconds", 30))
        while True:
            container.signal(signal.SIGINT)
            await asyncio.sleep(AGAIN_SECONDS)

    def _create_volumes(self) -> dict[str, Path]:
        """Volume name to folder. Raises ContainerNotReady if an object is missing, or the pod needs what the
        local cluster does not support: then the pod waits, with the reason in its status, until it is
        deleted."""
        for container in self.init:
            if container.spec.get("restartPolicy") == "Always":
                text = (
                    f"init container {container.name} is a sidecar (restartPolicy Always), which the local "
                    "cluster does not support; move it to containers"
                )
                raise ContainerNotReady("ContainerCreating", text)
        return volumes.create_folders(self.pod, self.node.home, self._lookup)

    def _process_spec(self, container: Container) -> podspec.ProcessSpec:
        """The process of a container of this pod; creates the pod's TMPDIR. Raises ContainerNotReady,
        ContainerStartError."""
        mounts = volumes.mounted_folders(container.spec, self._folders)
        meta = self.pod["metadata"]
        base = self.node.environment | {"HOSTNAME": meta["name"], "POD_IP": self._scheduled_status["podIP"]}
        if len(str(self.temporary)) <= LONGEST_TEMPORARY:
            self.temporary.mkdir(parents=True, exist_ok=True)
            base["TMPDIR"] = str(self.temporary)
        folder = self.node.working_folder(self.pod)
        return podspec.process_spec(
            self.pod, container.spec, podspec.ExecutionContext(mounts, base, folder), self._lookup
        )

    async def _retry_until_ready(self, attempt: Callable[[], T], container: Container | None = None) -> T:
        """The result of `attempt`, which is called now and after each change until it succeeds. Meanwhile the
        error is in the status of `container`, or of all, and each new one is an event. Raises
        ContainerStartError at once, and _Stopping when the pod is deleted."""
        reported = ""
        while not self.stopping:
            try:
                return attempt()
            except ContainerStartError:
                raise
            except Exception as error:  # a spec that passed validation may still be invalid
                reason = error.reason if isinstance(error, ContainerNotReady) else "ContainerCreating"
                for waiting in [container] if container else [*self.init, *self.containers]:
                    waiting.set_waiting(reason, str(error))
                if str(error) != reported:
                    self.node.record_event(
                        self.pod, "Warning", "Failed" if container else "FailedMount", str(error)
                    )
                reported = str(error)
            await self._wait_for_change()
        raise _Stopping

    async def _wait_for_change(self) -> None:
        """Wait for the next `wake()`. Raises _Stopping if the pod is being deleted."""
        await self._change.wait()
        if self.stopping:
            raise _Stopping

    async def _sleep_or_stop(self, seconds: float) -> None:
        """Sleep through changes of the pod. Raises _Stopping when it is deleted."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            try:
                await asyncio.wait_for(self._wait_for_change(), left)
            except TimeoutError:
                return

    def _write_status(self) -> None:
        """Write the status of a scheduled pod to the store; nothing before that."""
        if self._scheduled_status:
            self.node.write_status(self.pod, self._new_status())

    def _new_status(self) -> Object:
        """The status of the pod as it is now. Also updates `_conditions`, whose lastTransitionTimes it
        keeps."""
        phase = self._phase()
        over = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "")
        unready = [c.name for c in self.containers if not c.running]
        text = f"containers with unready status: [{' '.join(unready)}]" if unready else ""
        for kind in ("Ready", "ContainersReady"):
            self._set_condition(kind, not unready, over or ("ContainersNotReady" if unready else ""), text)
        self._set_condition(
            "Initialized", self.initialized, "" if self.initialized else "ContainersNotInitialized"
        )
        status = {"phase": phase, "qosClass": "BestEffort", **self._scheduled_status}
        status["conditions"] = [dict(condition) for condition in self._conditions.values()]
        if self.init:
            status["initContainerStatuses"] = [container.status() for container in self.init]
        return status | {"containerStatuses": [container.status() for container in self.containers]}

    def _phase(self) -> str:
        """First match wins: Failed by an init container; Failed or Succeeded, if all containers have ended;
        Running, once a container ran; Pending."""
        if any(container.exit_code for container in self.init):
            return "Failed"
        codes = [container.exit_code for container in self.containers]
        if self.initialized and all(code is not None for code in codes):
            return "Failed" if any(codes) else "Succeeded"
        return "Running" if any(container.ever_ran for container in self.containers) else "Pending"

    def _set_condition(self, kind: str, holds: bool, reason: str = "", message: str = "") -> None:
        """Set a condition; its lastTransitionTime changes with its status only."""
        status = "True" if holds else "False"
        old = self._conditions.get(kind, {})
        since = old["lastTransitionTime"] if old.get("status") == status else timestamp()
        new = {"type": kind, "status": status, "lastTransitionTime": since}
        self._conditions[kind] = new | {k: v for k, v in (("reason", reason), ("message", message)) if v}
