"""The one node: a PodWorker for each pod, events about pods, and their logs."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import cycle
from pathlib import Path

from ropeteam.core.seen import names
from ropeteam.local import resources as r
from ropeteam.local.api.store import Event, key_of
from ropeteam.local.api.validation import RequestOptions
from ropeteam.local.api.verbs import Verbs, timestamp
from ropeteam.local.node.pod import PodWorker
from ropeteam.local.node.podspec import Lookup
from ropeteam.local.node.services import ADDRESSES
from ropeteam.local.resources import Object, StatusError
from ropeteam_trainer.contract.config import RESERVED_ENV

_POLL_SECONDS = 0.05


class Kubelet:
    """Runs the pods of the store as processes of this machine."""

    name = "local"

    def __init__(self, verbs: Verbs, home: Path, network: str) -> None:
        """`network`: the first two numbers of the cluster's addresses, as in `127.64`."""
        self.verbs, self.store, self.home = verbs, verbs.store, home
        self.address = f"{network}.0.1"
        self.environment = base_environment(os.environ)
        self._addresses = _pod_addresses(network)
        self._workers: dict[str, tuple[PodWorker, asyncio.Task[None]]] = {}

    def start(self) -> None:
        """Register the node, ready, and follow the store from now on; pods that it already has are not
        run."""
        self.verbs.create(r.NODES, "", {"metadata": {"name": self.name}}, RequestOptions())
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "lastTransitionTime": timestamp(),
        }
        addresses = [{"type": "InternalIP", "address": self.address}]
        status = {"conditions": [ready], "addresses": addresses, "nodeInfo": {"kubeletVersion": "v1.32.0"}}
        self.verbs.write_status(r.NODES, ("", self.name), status)
        self.store.listeners.append(self._handle_event)

    async def stop(self) -> None:
        """Kill every container, and wait until all have exited."""
        self.store.listeners.remove(self._handle_event)
        tasks = [task for _, task in self._workers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _handle_event(self, event: Event) -> None:
        """Start a PodWorker for a new pod; wake those that a write may concern, as the Secret that a pod
        waits for."""
        if event.resource in (r.SECRETS, r.CONFIG_MAPS, r.CLAIMS):
            for worker, _ in self._workers.values():
                worker.wake()
        elif event.resource == r.PODS:
            uid = event.object["metadata"]["uid"]
            if event.type == "ADDED":
                worker = PodWorker(self, event.object)
                self._workers[uid] = worker, asyncio.create_task(self._run_pod(worker))
            elif uid in self._workers:
                self._workers[uid][0].wake()

    async def _run_pod(self, worker: PodWorker) -> None:
        """Run a pod to its end, remove its folders, then let the store remove the object."""
        try:
            await worker.run()
        finally:
            del self._workers[worker.uid]
            for folder in (worker.folder, worker.temporary):
                shutil.rmtree(folder, ignore_errors=True)
        if self.find_by_uid(worker.uid):
            self.verbs.release(r.PODS, key_of(worker.pod))

    def find_by_uid(self, uid: str) -> Object | None:
        """The stored object of any kind with this UID, a pod or a pod's owner. None: it is gone."""
        found = self.store.by_uid.get(uid)
        return self.store.find(*found) if found else None

    def lookup(self, namespace: str) -> Lookup:
        """A function that finds objects of a namespace."""
        return lambda resource, name: self.store.find(resource, (namespace, name))

    def working_folder(self, pod: Object) -> Path:
        """Working directory of containers that set none: from the annotation of the pod, else of one of its
        owners (the job), else that of this process."""
        owners = [self.find_by_uid(owner["uid"]) for owner in pod["metadata"].get("ownerReferences", ())]
        for value in (pod, *owners):
            if value and (folder := (value["metadata"].get("annotations") or {}).get(names.WORKDIR)):
                return Path(folder)
        return Path.cwd()

    def unused_address(self) -> str:
        """The next address that no pod has. Limit: with 56,642 pods that have one it never returns."""
        used = {pod["status"].get("podIP") for pod in self.store.list(r.PODS)}
        return next(address for address in self._addresses if address not in used)

    def write_status(self, pod: Object, status: Object, spec: Object | None = None) -> None:
        """Write the status of a pod, and fields that the scheduler sets in its spec; nothing if the pod is
        gone."""
        if self.find_by_uid(pod["metadata"]["uid"]):
            self.verbs.write_status(r.PODS, key_of(pod), status, spec)

    def record_event(self, pod: Object, kind: str, reason: str, message: str) -> None:
        """Create an Event about a pod. `kind`: Normal or Warning."""
        meta = pod["metadata"]
        subject = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "namespace": meta["namespace"]}
        subject["uid"] = meta["uid"]
        event: Object = {"involvedObject": subject, "type": kind, "reason": reason, "message": message}
        now = timestamp()
        event |= {"source": {"component": "kubelet", "host": self.name}}
        event |= {"firstTimestamp": now, "lastTimestamp": now, "count": 1}
        name = f"{meta['name']}.{secrets.token_hex(8)}"
        try:
            self.verbs.create(
                r.EVENTS, meta["namespace"], {"metadata": {"name": name}, **event}, RequestOptions()
            )
        except StatusError:
            return  # the namespace is being deleted

    async def read_log(
        self, pod: Object, container: str, *, previous: bool, follow: bool, tail: int | None
    ) -> AsyncIterator[bytes]:
        """Output of a container's current run, or of the `previous` one; of `tail` only its last lines. With
        `follow` until the run ends. Raises 400 at the first part if there is no such container or no log."""
        uid = pod["metadata"]["uid"]
        status = _container_status(pod, container)
        run = status["restartCount"] - (1 if previous else 0)
        path = self.home / "pods" / uid / "logs" / container / f"{run}.log"
        if not path.exists():
            raise _log_missing_error(pod, status, previous)
        with path.open("rb") as file:
            if tail is not None:
                yield b"".join(file.read().splitlines(keepends=True)[-tail:] if tail else [])
            while True:
                now = self.find_by_uid(uid)
                status = _container_status(now, container) if now else {"state": {}, "restartCount": run}
                live = follow and status["restartCount"] == run and "running" in status["state"]
                while part := file.read(65536):
                    yield part
                if not live:
                    return
                await asyncio.sleep(_POLL_SECONDS)


def base_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in place of the image's: `environ` without variables of Ropeteam, of ranks, and
    KUBECONFIG. On PATH the programs beside our Python come first; with an activated virtualenv or conda
    environment, last."""
    environment = {
        name: value
        for name, value in environ.items()
        if not name.startswith("ROPETEAM_") and name not in RESERVED_ENV and name != "KUBECONFIG"
    }
    ours, path = str(Path(sys.prefix, "bin")), environ.get("PATH", os.defpath)
    active = environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX")
    return environment | {"PATH": os.pathsep.join([path, ours] if active else [ours, path])}


def _pod_addresses(network: str) -> Iterator[str]:
    """All addresses for pods, over and over: one that was just given back is reused last."""
    thirds = range(1, ADDRESSES.start)
    return cycle(f"{network}.{third}.{fourth}" for third in thirds for fourth in range(1, 255))


def _container_status(pod: Object, name: str) -> Object:
    """The ContainerStatus of a container or init container. Raises 400 if the pod is not scheduled yet, or
    has no such container."""
    status = pod["status"]
    for row in [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]:
        if row["name"] == name:
            found: Object = row
            return found
    meta = pod["metadata"]
    known = [c["name"] for c in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]]
    if name in known:
        raise StatusError(
            400, "BadRequest", f'container "{name}" in pod "{meta["name"]}" is waiting to start: Pending'
        )
    raise StatusError(400, "BadRequest", f"container {name} is not valid for pod {meta['name']}")


def _log_missing_error(pod: Object, status: Object, previous: bool) -> StatusError:
    """400 for a run without a log. `status`: of the container."""
    container, name = status["name"], pod["metadata"]["name"]
    if previous:
        text = f'previous terminated container "{container}" in pod "{name}" not found'
        return StatusError(400, "BadRequest", text)
    state = status["state"].get("waiting") or {}
    why = state.get("message") or state.get("reason") or "ContainerCreating"
    text = f'container "{container}" in pod "{name}" is waiting to start: {why}'
    return StatusError(400, "BadRequest", text)
