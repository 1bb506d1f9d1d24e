"""A real Kubernetes on this machine: one control plane and N nodes. Made, used, broken and taken down.

    with KubeCluster(nodes=2) as lab:
        lab.node(1).power_off()
Needs root. Limits: one lab per machine at a time, held by a lock file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType

from lab.kube import images, network, programs
from lab.kube.controlplane import ControlPlane
from lab.kube.daemons import START_SECONDS, Daemons
from lab.kube.node import CNI_PLUGINS, Node
from lab.waiting import wait_until

NEEDED = {
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "nft": "nftables",
    "conntrack": "conntrack",
    "openssl": "openssl",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "gcc": "gcc",
}
"""Program -> the Debian package that has it."""


class CannotRun(Exception):
    """Something is missing on this machine; the message has how to get it."""


def home() -> Path:
    return Path(os.environ.get("ROPETEAM_CLUSTER_STATE", "/var/tmp/ropeteam-lab"))


def missing_packages() -> set[str]:
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    packages = {package for name, package in NEEDED.items() if not shutil.which(name, path=path)}
    if not (CNI_PLUGINS / "ptp").exists():
        packages.add("containernetworking-plugins")
    return packages


def check() -> None:
    """Raises CannotRun with everything that is missing, at once."""
    problems = []
    if sys.platform != "linux" or os.geteuid() != 0:
        problems.append("root on Linux is needed (network namespaces, mounts, cgroups)")
    if packages := missing_packages():
        problems.append(f"Debian packages are missing: apt-get install {' '.join(sorted(packages))}")
    if problems:
        raise CannotRun("a real cluster cannot run here:\n  " + "\n  ".join(problems))


class KubeCluster:
    def __init__(self, nodes: int = 2, wanted: tuple[images.Image, ...] = ()) -> None:
        self.folder, self._wanted = home(), wanted
        self.tools = programs.folder()
        self._daemons = Daemons(self.folder)
        self.control = ControlPlane(self.tools, self.folder, self._daemons)
        self.nodes = [self._node(number) for number in range(1, nodes + 1)]

    def _node(self, number: int) -> Node:
        return Node(number, self.tools, self.folder, self._daemons, self.control.pki)

    def node(self, number: int) -> Node:
        return self.nodes[number - 1]

    def __enter__(self) -> KubeCluster:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self) -> None:
        """Returns when all nodes are Ready. What an earlier lab left goes first. Raises CannotRun,
        CannotBuild.
        """
        check()
        programs.ensure()
        root = images.loaded(self._wanted, self.tools)
        self.down()
        self.folder.mkdir(parents=True)
        self.control.create()
        for node in self.nodes:
            node.create(root)
        network.create()
        self.control.start()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.power_on(len(self.nodes)), self.nodes))
        for node in self.nodes:
            wait_until(f"{node.name} is Ready", partial(self.is_ready, node), START_SECONDS)

    def down(self) -> None:
        """Nothing is left: no process, mount, link or file. Safe to call twice, and after a crash."""
        for name in sorted(self._daemons.names(), reverse=True):
            self._daemons.stop(name, signal.SIGKILL)
        network.delete()
        _unmount_below(self.folder)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder)

    def is_ready(self, node: Node) -> bool:
        path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        return self.kubectl("get", "node", node.name, "-o", path, check=False) == "True"

    def is_up(self) -> bool:
        return self.control.kubeconfig.exists() and all(self.is_ready(node) for node in self.nodes)

    def kubectl(self, *argv: str, check: bool = True, text: str | None = None) -> str:
        """Output of kubectl. `text`: its input."""
        done = self._kubectl(*argv, text=text)
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(argv)}: {done.stderr}")
        return done.stdout.strip()

    def kubectl_output(self, *argv: str, text: str | None = None) -> str:
        """Output and errors, also when it fails."""
        done = self._kubectl(*argv, text=text)
        return done.stdout + done.stderr

    def _kubectl(self, *argv: str, text: str | None) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"KUBECONFIG": str(self.control.kubeconfig)}
        command = [str(self.tools / "kubectl"), *argv]
        return subprocess.run(command, env=environment, input=text, text=True, capture_output=True)


def _unmount_below(folder: Path) -> None:
    """Mounts of nodes live in their own namespaces and end with them; these are what a crash left in ours."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    for place in reversed([line.split()[1] for line in lines if line.split()[1].startswith(f"{folder}/")]):
        subprocess.run(["umount", "--lazy", place], check=False)
