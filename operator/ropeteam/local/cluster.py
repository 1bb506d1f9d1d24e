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
from ropeteam.local.api.trainingjobs import crd, rule_errors
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
    """`async with LocalCluster(home) as cluster`: the API is at `cluster.url`, for the bearer token
    `cluster.token`. It can be started again after a stop."""

    kubelet: type[Kubelet] = Kubelet
    services: type[Services] = Services
    """Replaced by subclasses in tests and benchmarks."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.kubeconfig = home / "kubeconfig"
        self.url = ""
        self.token = secrets.token_urlsafe(32)
        self._locks = ExitStack()
        self._running: list[Any] = []

    async def start(self) -> None:
        """Start everything; on an error all that was started is stopped. Raises LocalClusterError if `home`
        is in use, or no addresses are free."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        """Order: the lock, before another cluster's folders could be removed; the addresses; namespaces and
        CRD; the parts, which `stop` ends in reverse; last the kubeconfig, by which clients see that the API
        answers."""
        self.home.mkdir(0o700, parents=True, exist_ok=True)  # logs and checkpoints are private
        if not _try_lock(self._locks, self.home / "lock"):
            raise LocalClusterError(
                f"another cluster runs in {self.home}: use it (kubectl --kubeconfig {self.kubeconfig}), "
                "end it (Ctrl-C where `ropeteam run` or `ropeteam up` runs), or choose another --home"
            )
        network = _reserve_network(self._locks)
        _remove_pod_folders(self.home)
        self.store = Store()
        verbs = Verbs(self.store, Catalog(), {r.from_crd(crd()).name: rule_errors})
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
        """Kill every pod and remove all files but the lock and those of claims. Idempotent. If it is
        cancelled, files may remain."""
        for part in self._running:
            await part.stop()
        self._running = []
        if self.url:
            self.url = ""
            self.kubeconfig.unlink(missing_ok=True)
            _remove_pod_folders(self.home)
        self._locks.close()

    async def __aenter__(self) -> LocalCluster:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def default_home() -> Path:
    """The state folder of a cluster for which none is given: $ROPETEAM_HOME, or a folder of the user."""
    return Path(os.environ.get("ROPETEAM_HOME") or Path.home() / ".local" / "state" / "ropeteam")


def kubeconfig(url: str, token: str) -> Object:
    """A kubeconfig with one context. The token is in the server's path, too: kubectl sends no bearer token
    over plain HTTP."""
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
    """Reserve a network 127.N.0.0/16 that no other cluster on this machine uses, of any user. Returns its
    first two numbers, as "127.64". A port in it stays bound until `locks` is closed, or the process ends in
    any way; nothing listens there. Raises LocalClusterError if none is free."""
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
        f"{first + 119}, by 100 clusters (`pgrep -af ropeteam`) or by one process that listens on all "
        "addresses (`ss -ltnp`); end one"
    )


def _try_lock(locks: ExitStack, path: Path) -> bool:
    """Lock the file `path`, created if need be, until `locks` is closed or the process ends in any way.
    Returns False if another process has locked it. Raises OSError, also for a symbolic link."""
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


async def run_until_cancelled(home: Path) -> None:
    """Run a cluster and print how to use it. Returns never: cancel the task to stop the cluster. Raises
    LocalClusterError if it cannot start."""
    async with LocalCluster(home) as cluster:
        print(f"local cluster: {cluster.url}\nexport KUBECONFIG={cluster.kubeconfig}", flush=True)
        await asyncio.Event().wait()


def _remove_pod_folders(home: Path) -> None:
    """Remove all that pods left: their volumes and logs, and their TMPDIRs."""
    for folder in ("pods", "t"):
        shutil.rmtree(home / folder, ignore_errors=True)
