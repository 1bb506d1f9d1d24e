"""A node: a process, network and mount namespace of its own with containerd, kubelet and kube-proxy in it.

Everything of a node descends from one process, the init of its process namespace. Power off = SIGKILL of
that process: the kernel ends all others with it, containers too, whatever they were doing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import yaml

from lab.kube import network
from lab.kube.daemons import START_SECONDS, Daemons
from lab.kube.pki import Pki
from lab.waiting import wait_until

CNI_PLUGINS = Path("/usr/lib/cni")
PAUSE = "localhost/pause:lab"
SERVICES = ("containerd", "kubelet", "kube-proxy")


class Node:
    """Node `number` of a lab. `images`: a containerd root that is cloned when the node is made."""

    def __init__(self, number: int, tools: Path, folder: Path, daemons: Daemons, pki: Pki) -> None:
        self.number, self.name = number, f"node-{number}"
        self._tools, self._pki, self._daemons = tools, pki, daemons
        self.folder = folder / self.name
        self.socket = self.folder / "run" / "containerd.sock"
        self.registries = self.folder / "certs.d"
        """How containerd reaches each registry: read at every pull."""

    def create(self, images: Path) -> None:
        for part in ("root", "run", "cni", "certs"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        clone(images, self.folder / "containerd")
        address = network.node_address(self.number)
        self._pki.kubeconfig(
            self.name, f"/O=system:nodes/CN=system:node:{self.name}", f"DNS:{self.name}", f"IP:{address}"
        )
        (self.folder / "containerd.toml").write_text(self._containerd())
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet()))
        (self.folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        (self.folder / "cni" / "10-lab.conflist").write_text(json.dumps(self._cni()))

    # ---- power

    def power_on(self, numbers: int) -> None:
        """Returns when its services run. `numbers`: how many nodes there are."""
        self._forget_pods_of_the_last_boot()
        # Kubelets have sockets for device plugins there, whatever --root-dir says, and delete each other's.
        own = "mkdir -p /var/lib/kubelet && mount -t tmpfs none /var/lib/kubelet"
        init = f"{own} && mount --make-rshared / && trap '' CHLD && exec sleep infinity"
        unshare = ("unshare", "--net", "--pid", "--mount", "--uts", "--fork", "--kill-child", "--mount-proc")
        self._daemons.start(self.name, (*unshare, "sh", "-c", init))
        wait_until(f"{self.name} boots", self._has_booted, START_SECONDS)
        network.connect(self.number, self.init, numbers)
        self._inside("hostname", self.name)
        self._inside("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for service in SERVICES:
            self.start(service)

    def power_off(self) -> None:
        """The cable first, so that no peer sees a connection close."""
        network.disconnect(self.number)
        os.kill(self.init, signal.SIGKILL)
        for service in (*SERVICES, ""):
            self._daemons.stop(f"{self.name}-{service}".rstrip("-"), signal.SIGKILL)

    @property
    def is_on(self) -> bool:
        return self._child() is not None

    def _has_booted(self) -> bool:
        """The node's init has mounted everything, and sleeps."""
        child = self._child()
        return child is not None and psutil.Process(child).name() == "sleep"

    @property
    def init(self) -> int:
        child = self._child()
        assert child is not None, f"{self.name} is off"
        return child

    def _child(self) -> int | None:
        process = self._daemons.find(self.name)
        children = process.children() if process else []
        return children[0].pid if children else None

    # ---- services and faults

    def start(self, service: str) -> None:
        tools, pki = self._tools, self._pki.folder
        arguments: dict[str, tuple[str, ...]] = {
            "containerd": ("-c", f"{self.folder}/containerd.toml"),
            "kubelet": (
                f"--config={self.folder}/kubelet.yaml", f"--kubeconfig={pki}/{self.name}.kubeconfig",
                f"--hostname-override={self.name}", f"--node-ip={network.node_address(self.number)}",
                f"--root-dir={self.folder}/root", f"--cert-dir={self.folder}/certs",
            ),
            "kube-proxy": (
                f"--kubeconfig={pki}/proxy.kubeconfig", f"--hostname-override={self.name}",
                "--proxy-mode=nftables", f"--cluster-cidr={network.PODS}", "--conntrack-max-per-core=0",
                "--nodeport-addresses=primary",
            ),
        }  # fmt: skip
        if service == "containerd":
            self.socket.unlink(missing_ok=True)
        path = f"{tools}:{os.environ['PATH']}:/usr/sbin:/sbin"
        command = (*self._enter(), str(tools / service), *arguments[service])
        boots = self._boots_of_containerd()
        self._daemons.start(f"{self.name}-{service}", command, environment={"PATH": path})
        if service == "containerd":  # it listens before it answers a kubelet, which then ends for good
            what = f"containerd of {self.name} has booted"
            wait_until(what, lambda: self._boots_of_containerd() > boots, START_SECONDS)

    def _boots_of_containerd(self) -> int:
        log = self._daemons.log(f"{self.name}-containerd")
        return log.read_text().count("containerd successfully booted") if log.exists() else 0

    def stop(self, service: str) -> None:
        self._daemons.stop(f"{self.name}-{service}", signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP of all that runs here: a machine that does nothing for a while."""
        self._daemons.send(self.name, signal.SIGSTOP)

    def thaw(self) -> None:
        self._daemons.send(self.name, signal.SIGCONT)

    def disconnect(self) -> None:
        network.disconnect(self.number)

    def heal(self) -> None:
        network.heal(self.number)

    def ctr(self, *argv: str) -> None:
        """containerd's own client, in the namespace that kubelet uses."""
        self._inside(str(self._tools / "ctr"), "-a", str(self.socket), "-n", "k8s.io", *argv)

    def _enter(self) -> tuple[str, ...]:
        return ("nsenter", f"--target={self.init}", "--net", "--pid", "--mount", "--uts")

    def _inside(self, *argv: str) -> None:
        network.run(*self._enter(), *argv)

    def _forget_pods_of_the_last_boot(self) -> None:
        """Memory (/run) is empty after a power cut."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        (self.folder / "run").mkdir()

    # ---- settings

    def _containerd(self) -> str:
        # restrict_oom_score_adj: for machines that do not let root raise its own score.
        # nri: its socket has one path for all nodes of a machine.
        return f"""\
version = 3
root = "{self.folder}/containerd"
state = "{self.folder}/run/state"
[grpc]
  address = "{self.socket}"
[plugins.'io.containerd.nri.v1.nri']
  disable = true
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{PAUSE}"
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = "{self.registries}"
[plugins.'io.containerd.cri.v1.runtime']
  disable_hugetlb_controller = true
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{CNI_PLUGINS}"]
    conf_dir = "{self.folder}/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
      BinaryName = "{self._tools}/runc"
"""

    def _kubelet(self) -> dict[str, object]:
        pki = self._pki.folder
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{pki}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{pki}/{self.name}.crt",
            "tlsPrivateKeyFile": f"{pki}/{self.name}.key",
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "clusterDNS": [network.CONTROL_PLANE],
            "clusterDomain": "cluster.local",
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
            },
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 10,
            "volumePluginDir": f"{self.folder}/plugins",
            # One folder for all nodes of a machine, and each deletes the logs of the others' pods.
            "podLogsDir": f"{self.folder}/podlogs",
            "resolvConf": f"{self.folder}/resolv.conf",
        }

    def _cni(self) -> dict[str, object]:
        ranges = [[{"subnet": network.pod_range(self.number)}]]
        addresses = {
            "type": "host-local",
            "ranges": ranges,
            "dataDir": f"{self.folder}/run/ipam",
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        return {"cniVersion": "1.0.0", "name": "lab", "plugins": [{"type": "ptp", "ipam": addresses}]}


def clone(images: Path, root: Path) -> None:
    """A containerd root like `images`, in seconds and no space: all files but the databases are links."""
    subprocess.run(["cp", "--archive", "--link", str(images), str(root)], check=True)
    for database in root.glob("*/*.db"):
        copy = database.with_suffix(".copy")
        shutil.copy2(database, copy)
        copy.replace(database)
