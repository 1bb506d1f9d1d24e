"""Start and stop of the whole cluster: API server, kubelet, Services, garbage collection, in one event loop.

    <home>/kubeconfig        0600, for kubectl and the operator
    <home>/pods, <home>/claims
Objects are in memory: a new cluster starts empty, only claims keep their files. One cluster per home.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import shutil
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from ropeteam.local import resources as r
from ropeteam.local.api.gc import GarbageCollector
from ropeteam.local.api.store import Store
from ropeteam.local.api.trainingjobs import crd, rules
from ropeteam.local.api.validation import RequestOptions
from ropeteam.local.api.verbs import Verbs
from ropeteam.local.apiserver import ApiServer
from ropeteam.local.node.kubelet import Kubelet
from ropeteam.local.node.services import Services
from ropeteam.local.resources import Catalog, Object
from ropeteam_trainer.contract.errors import RopeteamError

NETWORK_PORT = 29410
"""Port of 127.N.0.1: the process that has it bound owns the network."""


class LocalClusterError(RopeteamError, RuntimeError):
    """The cluster cannot start. The text names what to change."""


class LocalCluster:
    """`async with LocalCluster(home) as it`: the API is at `it.url`, bearer `it.token`."""

    kubelet: type[Kubelet] = Kubelet
    services: type[Services] = Services

    def __init__(self, home: Path) -> None:
        self.home = home
        self.kubeconfig = home / "kubeconfig"
        self.url = ""
        self.token = secrets.token_urlsafe(32)
        self._locks = ExitStack()
        self._running: list[Any] = []

    async def start(self) -> None:
        """Start everything. Raises LocalClusterError when `home` is in use or no addresses are free."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        self.home.mkdir(0o700, parents=True, exist_ok=True)  # logs and checkpoints are private
        if not _lock(self._locks, self.home / "lock"):
            advice = "use it (kubectl apply), end it (Ctrl-C where `ropeteam run` or `ropeteam up` runs), or "
            advice += "choose another --home"
            raise LocalClusterError(f"another cluster runs in {self.home}: {advice}")
        network = _reserve_network(self._locks)
        _remove_pods(self.home)
        self.store = Store()
        verbs = Verbs(self.store, Catalog(), {r.from_crd(crd()).name: rules})
        for name in ("default", "kube-system"):
            verbs.create(r.NAMESPACES, "", {"metadata": {"name": name}}, RequestOptions())
        verbs.create(r.CRDS, "", crd(), RequestOptions())
        services = self.services(self.store, network)
        verbs.allocate_address = services.allocate_address
        kubelet = self.kubelet(verbs, self.home, network)
        for part in (services, GarbageCollector(verbs), kubelet):
            part.start()
            self._running.insert(0, part)
        self.server = ApiServer(verbs, kubelet, services, self.token)
        self._running.insert(0, self.server)
        self.url = await self.server.start(kubelet.address)
        _write_private(self.kubeconfig, yaml.safe_dump(kubeconfig(self.url, self.token)))

    async def stop(self) -> None:
        """Kill every pod and leave nothing behind but claims. Idempotent."""
        for part in self._running:
            await part.stop()
        self._running = []
        if self.url:
            self.url = ""
            self.kubeconfig.unlink(missing_ok=True)
            _remove_pods(self.home)
        self._locks.close()

    async def __aenter__(self) -> LocalCluster:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def default_home() -> Path:
    return Path(os.environ.get("ROPETEAM_HOME") or Path.home() / ".local" / "state" / "ropeteam")


def kubeconfig(url: str, token: str) -> Object:
    """The kubeconfig, with the token also in the server's path: kubectl sends no bearer over plain HTTP."""
    name = "ropeteam-local"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": f"{url}/{token}"}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
    }


def _reserve_network(locks: ExitStack) -> str:
    """Reserve a 127.N that no other cluster on this machine uses, of any user: a port in it is bound until
    `locks` is closed, or the process ends in any way. Nothing listens there.
    """
    first = os.getuid() % 100
    for number in range(first + 20, first + 120):
        holder = socket.socket()
        try:
            holder.bind((f"127.{number}.0.1", NETWORK_PORT))
        except OSError:
            holder.close()
            continue
        locks.callback(holder.close)
        return f"127.{number}"
    raise LocalClusterError(
        f"no free 127.N.0.0/16: port {NETWORK_PORT} of 127.N.0.1 is in use for each N from {first + 20} to "
        f"{first + 119}, by 100 clusters or by one process that listens on all addresses; end that"
    )


def _lock(locks: ExitStack, path: Path) -> bool:
    """Lock `path` until `locks` is closed, or the process ends in any way. False: it is locked."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return False
    locks.callback(os.close, file)
    return True


def _write_private(path: Path, text: str) -> None:
    """Write atomically, readable by the owner only."""
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text(text)
    new.replace(path)


async def serve(home: Path) -> None:
    """Run a cluster until the task is cancelled."""
    async with LocalCluster(home) as cluster:
        print(f"local cluster: {cluster.url}\nexport KUBECONFIG={cluster.kubeconfig}", flush=True)
        await asyncio.Event().wait()


def _remove_pods(home: Path) -> None:
    for folder in ("pods", "t"):
        shutil.rmtree(home / folder, ignore_errors=True)
