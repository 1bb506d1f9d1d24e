"""The one node: a worker for each pod, events about pods, and their logs."""

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
        if event.resource in (r.SECRETS, r.CONFIG_MAPS, r.CLAIMS):
            for worker, _ in self._workers.values():
                worker.wake()
        elif event.resource == r.PODS:
            uid = event.object["metadata"]["uid"]
            if event.type == "ADDED":
                worker = PodWorker(self, event.object)
                self._workers[uid] = worker, asyncio.create_task(self._run(worker))
            elif uid in self._workers:
                self._workers[uid][0].wake()

    async def _run(self, worker: PodWorker) -> None:
        try:
            await worker.run()
        finally:
            del self._workers[worker.uid]
            for folder in (worker.folder, worker.temporary):
                shutil.rmtree(folder, ignore_errors=True)
        if self.pod(worker.uid):
            self.verbs.release(r.PODS, key_of(worker.pod))

    def pod(self, uid: str) -> Object | None:
        found = self.store.by_uid.get(uid)
        return self.store.find(*found) if found else None

    def lookup(self, namespace: str) -> Lookup:
        return lambda resource, name: self.store.find(resource, (namespace, name))

    def folder_of(self, pod: Object) -> Path:
        owners = [self.pod(owner["uid"]) for owner in pod["metadata"].get("ownerReferences", ())]
        for value in (pod, *owners):
            if value and (folder := (value["metadata"].get("annotations") or {}).get(names.WORKDIR)):
                return Path(folder)
        return Path.cwd()

    def new_address(self) -> str:
        used = {pod["status"].get("podIP") for pod in self.store.list(r.PODS)}
        return next(address for address in self._addresses if address not in used)

    def publish(self, pod: Object, status: Object, spec: Object | None = None) -> None:
        if self.pod(pod["metadata"]["uid"]):
            self.verbs.write_status(r.PODS, key_of(pod), status, spec)

    def record(self, pod: Object, kind: str, reason: str, message: str) -> None:
        """Create an Event about a pod."""
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

    async def log(
        self, pod: Object, container: str, *, previous: bool, follow: bool, tail: int | None
    ) -> AsyncIterator[bytes]:
        """The container's output, or its last lines; with `follow` until its run ends."""
        uid = pod["metadata"]["uid"]
        status = _container_status(pod, container)
        run = status["restartCount"] - (1 if previous else 0)
        path = self.home / "pods" / uid / "logs" / container / f"{run}.log"
        if not path.exists():
            raise _no_log_yet(pod, container)
        with path.open("rb") as file:
            if tail is not None:
                yield b"".join(file.read().splitlines(keepends=True)[-tail:] if tail else [])
            while True:
                now = self.pod(uid)
                status = _container_status(now, container) if now else {"state": {}, "restartCount": run}
                live = follow and status["restartCount"] == run and "running" in status["state"]
                while part := file.read(65536):
                    yield part
                if not live:
                    return
                await asyncio.sleep(_POLL_SECONDS)


def base_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in place of the image's: that of this process, without variables that are ours or set
    per rank. Our own programs are found first, except with an environment that the user has activated."""
    environment = {
        name: value
        for name, value in environ.items()
        if not name.startswith("ROPETEAM_") and name not in RESERVED_ENV and name != "KUBECONFIG"
    }
    ours, path = str(Path(sys.prefix, "bin")), environ.get("PATH", os.defpath)
    active = environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX")
    return environment | {"PATH": os.pathsep.join([path, ours] if active else [ours, path])}


def _pod_addresses(network: str) -> Iterator[str]:
    thirds = range(1, ADDRESSES.start)
    return cycle(f"{network}.{third}.{fourth}" for third in thirds for fourth in range(1, 255))


def _container_status(pod: Object, name: str) -> Object:
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


def _no_log_yet(pod: Object, container: str) -> StatusError:
    text = f'container "{container}" in pod "{pod["metadata"]["name"]}" is waiting to start'
    return StatusError(400, "BadRequest", text)
