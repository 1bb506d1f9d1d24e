"""One node on which NetworkPolicies are enforced, by kube-router, with pods that only listen.

    with Enforced(folder) as node:
        pod = node.pod("a", {"labels": {}}, 29401)
        node.reaches(pod, other, 29401, 29402)
API server, etcd and kube-router share the node's network namespace, which leads nowhere else. A pod is an
object with an address, and a network namespace behind a veth as the lab's CNI plugin makes it, in which one
process listens. Needs root, iptables and ipset. Limits: no kubelet, no Services, one node.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from lab.kube import network, programs
from lab.kube.controlplane import ControlPlane
from lab.kube.daemons import START_SECONDS, Daemons
from lab.waiting import wait_until

Object = dict[str, Any]
PROGRAMS = ("etcd", "kube-apiserver", "kubectl", "kube-router")
NAME = "node-1"
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_GATEWAY = "10.88.1.1"
_LISTEN = """
import selectors, socket, sys
waiting = selectors.DefaultSelector()
for port in sys.argv[1:]:
    waiting.register(socket.create_server(("", int(port))), selectors.EVENT_READ)
while True:
    for key, _ in waiting.select():
        key.fileobj.accept()[0].close()
"""
_KNOCK = """
import socket, sys
for port in sys.argv[2:]:
    try:
        socket.create_connection((sys.argv[1], int(port)), 10).close()
        print(port)
    except OSError:
        pass
"""


def why_not() -> str:
    """Empty: it can be tried."""
    missing = [name for name in ("iptables", "ipset") if not shutil.which(name, path=_PATH)]
    return f"NOT ENFORCED: apt-get install {' '.join(missing)}" if missing else ""


class Inside(Daemons):
    """In the network of the process `home`."""

    home = 0

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        enter = ("nsenter", f"--target={self.home}", "--net") if self.home else ()
        return super().start(name, (*enter, *argv), cwd, environment)


@dataclass(frozen=True)
class Pod:
    name: str
    address: str
    process: int


class Enforced:
    def __init__(self, folder: Path) -> None:
        self._tools, self._folder = programs.ensure(PROGRAMS), folder
        self._daemons = Inside(folder)
        self._control = ControlPlane(self._tools, folder, self._daemons)
        self._pods = 0

    def __enter__(self) -> Enforced:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in sorted(self._daemons.names(), reverse=True):
            self._daemons.stop(name, signal.SIGKILL)

    def _start(self) -> None:
        self._daemons.home = self._daemons.start("node", ("unshare", "--net", "sleep", "infinity"))
        self._has_network(self._daemons.home)
        self._inside("ip", "link", "set", "lo", "up")
        self._inside("ip", "addr", "add", f"{network.CONTROL_PLANE}/32", "dev", "lo")
        self._inside("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        self._control.create()
        self._control.start_etcd()
        self._control.start_apiserver()
        wait_until(
            "the API server is ready",
            lambda: self.kubectl("get", "--raw", "/readyz", check=False) == "ok",
            START_SECONDS,
        )
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}}
        address = {"type": "InternalIP", "address": network.CONTROL_PLANE}
        self.create({**node, "spec": {"podCIDR": network.pod_range(1)}}, {"addresses": [address]})
        self._daemons.start(
            "kube-router",
            (
                self._tools / "kube-router", f"--kubeconfig={self._control.kubeconfig}", "--run-router=false",
                "--run-service-proxy=false", "--run-firewall=true", f"--hostname-override={NAME}",
                f"--service-cluster-ip-range={network.SERVICES}", "--health-port=0", "--metrics-port=0",
            ),
            environment={"PATH": _PATH},
        )  # fmt: skip

    def namespace(self, name: str, **labels: str) -> None:
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        account = {"name": "default", "namespace": name}
        self.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})

    def pod(self, name: str, labels: dict[str, str], *ports: int, namespace: str = "default") -> Pod:
        """A pod that listens on these ports, on all addresses."""
        self._pods += 1
        link, address = f"pod{self._pods}", f"10.88.1.{self._pods + 1}"
        command = ("unshare", "--net", "python3", "-c", _LISTEN, *map(str, ports))
        process = self._daemons.start(link, command)
        self._has_network(process)
        self._inside("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(process))
        for argv in (f"addr add {_GATEWAY}/32 dev {link}", f"link set {link} up"):
            self._inside("ip", *argv.split())
        for argv in (
            "link set lo up",
            f"addr add {address}/32 dev eth0",
            "link set eth0 up",
            f"route add {_GATEWAY} dev eth0",
            f"route add default via {_GATEWAY}",
        ):
            _enter(process, "ip", *argv.split())
        self._inside("ip", "route", "add", f"{address}/32", "dev", link)
        meta = {"name": name, "namespace": namespace, "labels": labels}
        spec = {"nodeName": NAME, "containers": [{"name": "c", "image": "x"}]}
        addresses = {"hostIP": network.CONTROL_PLANE, "podIP": address, "podIPs": [{"ip": address}]}
        status = {"phase": "Running", **addresses}
        self.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, status)
        return Pod(name, address, process)

    def create(self, obj: Object, status: Object | None = None) -> None:
        self.kubectl("create", "-f", "-", text=json.dumps(obj))
        if status is not None:
            meta, kind = obj["metadata"], obj["kind"]
            where = ("-n", meta["namespace"]) if "namespace" in meta else ()
            patch = json.dumps({"status": status})
            argv = ("patch", kind.lower(), meta["name"], "--subresource=status", "--type=merge", "-p", patch)
            self.kubectl(*where, *argv)

    def reaches(self, one: Pod, other: Pod, *ports: int) -> set[int]:
        """The ports of `ports` on which `other` takes connections from `one`."""
        output = _enter(one.process, "python3", "-c", _KNOCK, other.address, *map(str, ports))
        return {int(line) for line in output.split()}

    def kubectl(self, *argv: str, check: bool = True, text: str | None = None) -> str:
        command = (str(self._tools / "kubectl"), f"--kubeconfig={self._control.kubeconfig}", *argv)
        return _enter(self._daemons.home, *command, check=check, text=text)

    def _has_network(self, process: int) -> None:
        """Of its own: it begins in this machine's, and a pod passes through its node's."""
        others = {_network("self")}
        if process != self._daemons.home:
            others.add(_network(self._daemons.home))
        wait_until("it has a network of its own", lambda: _network(process) not in others, START_SECONDS)

    def _inside(self, *argv: str) -> None:
        _enter(self._daemons.home, *argv)


def _enter(process: int, *argv: str, check: bool = True, text: str | None = None) -> str:
    """Output of the command, run in the network of that process."""
    command = ("nsenter", f"--target={process}", "--net", *argv)
    done = subprocess.run(
        command, input=text, text=True, capture_output=True, env={**os.environ, "PATH": _PATH}
    )
    if check and done.returncode:
        raise OSError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _network(process: int | str) -> Path:
    return Path(f"/proc/{process}/ns/net").readlink()
