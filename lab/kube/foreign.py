"""A cluster that is there already, named by KUBECONFIG: tests that need no access to its nodes run on it.

    KUBECONFIG=... [ROPETEAM_REGISTRY=registry.example] make e2e
Needs kubectl, helm and a cluster administrator; our images in the registry (ghcr.io), or on the nodes already
(`kind load docker-image`). All pods of a job run on one node and share a folder of it, /tmp/ropeteam-e2e,
which stays there. Refused where Ropeteam is installed: these tests upgrade and uninstall it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lab.kube import images
from lab.kube.cluster import CannotRun, KubeCluster
from lab.kube.site import CHART, ROOT, SYSTEM, Object, Site
from lab.waiting import wait_until

SCRIPTS = "ropeteam-e2e-scripts"
FOLDER = "/tmp/ropeteam-e2e"
REGISTRY = os.environ.get("ROPETEAM_REGISTRY", "ghcr.io")
KILL = (
    'for p in /proc/[0-9]*; do [ "$(cat $p/comm)" = "rank {}" ] && kill -9 ${{p#/proc/}} && k=1; done; [ $k ]'
)


class Foreign(KubeCluster):
    """A cluster whose nodes we may not touch."""

    def __init__(self, kubeconfig: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ropeteam-e2e-"))
        self.tools, self.nodes = self.folder, []
        self.control: Any = SimpleNamespace(kubeconfig=kubeconfig)
        for program in ("kubectl", "helm"):
            if not (found := shutil.which(program)):
                raise CannotRun(f"{program} is needed on PATH for the cluster of {kubeconfig}")
            (self.tools / program).symlink_to(found)

    def up(self) -> None:
        """Raises CannotRun."""
        for kind_and_name in (("crd", "trainingjobs.ropeteam.dev"), ("namespace", SYSTEM)):
            if found := self.kubectl("get", *kind_and_name, "--ignore-not-found"):
                raise CannotRun(f"the cluster of {self.control.kubeconfig} has Ropeteam already: {found}")

    def down(self) -> None:
        for argv in (
            ("delete", "trainingjobs", "--all", "-n", "default", "--timeout=120s"),
            ("delete", "configmap", SCRIPTS, "-n", "default"),
            ("delete", "namespace", SYSTEM, "--timeout=120s"),
            ("delete", "crd", "trainingjobs.ropeteam.dev", "--timeout=120s"),
        ):
            self.kubectl(*argv, "--ignore-not-found", check=False)
        shutil.rmtree(self.folder)


class ForeignSite(Site):
    """Jobs see the folder of one node as /shared, and the scripts in it."""

    def __init__(self, lab: Foreign) -> None:
        self.lab, self.shared = lab, Path(FOLDER)
        self.node = self._a_node()
        self._give_scripts()
        self._make_folder("")

    def install(self, *sets: str, verb: str = "install", chart: Path = CHART) -> None:
        ours = (f"image.registry={REGISTRY}", "image.pullPolicy=IfNotPresent")
        super().install(*ours, *sets, verb=verb, chart=chart)

    def job(self, name: str, command: list[str], *, workers: int = 2, **spec: Any) -> Object:
        self._make_folder(name)
        job = self.shape(name, command, workers, **spec)
        job["spec"]["image"] = self.trainer
        pod = job["spec"]["template"]["spec"]
        pod["nodeSelector"] = {"kubernetes.io/hostname": self.node}
        pod["containers"][0]["imagePullPolicy"] = "IfNotPresent"
        pod["containers"][0]["volumeMounts"].append({"name": "scripts", "mountPath": "/shared/scripts"})
        pod["volumes"].append({"name": "scripts", "configMap": {"name": SCRIPTS}})
        return job

    def has_just_saved(self, name: str) -> bool:
        look = f"import os, time; print(time.time() - os.stat('/shared/{name}/checkpoint.pt').st_mtime < 1)"
        argv = ("exec", self.pods(name)[0]["metadata"]["name"], "-c", "trainer", "--", "python", "-c", look)
        return self.lab.kubectl(*argv, check=False) == "True"

    def kill_rank(self, job: str, number: int) -> None:
        """Raises RuntimeError if it is not there."""
        (pod,) = [each for each in self.uids(job) if each.startswith(f"{job}-{number}-")]
        self.lab.kubectl("exec", pod, "-c", "trainer", "--", "sh", "-c", KILL.format(number))

    @property
    def trainer(self) -> str:
        return images.TRAINER.replace("ghcr.io", REGISTRY)

    def _a_node(self) -> str:
        for node in self.items("nodes"):
            ready = {each["type"]: each["status"] for each in node["status"]["conditions"]}.get("Ready")
            if ready == "True" and not node["spec"].get("unschedulable") and not node["spec"].get("taints"):
                return str(node["metadata"]["labels"]["kubernetes.io/hostname"])
        raise CannotRun("no node of this cluster is ready and takes pods")

    def _give_scripts(self) -> None:
        files = [ROOT / "lab" / "scripts" / name for name in ("tiny.py", "train_ddp.py")]
        data = {file.name: file.read_text() for file in files}
        kind = {"apiVersion": "v1", "kind": "ConfigMap", "data": data}
        self.apply({**kind, "metadata": {"name": SCRIPTS, "namespace": "default"}})

    def _make_folder(self, name: str) -> None:
        """As root on the node; jobs need not be."""
        path = f"/shared/{name}"
        container = {
            "name": "make",
            "image": self.trainer,
            "command": ["sh", "-c", f"rm -rf {path}/*; mkdir -p {path} && chmod 777 {path}"],
            "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
        }
        spec = {
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/hostname": self.node},
            "containers": [container],
            "volumes": [{"name": "shared", "hostPath": {"path": FOLDER, "type": "DirectoryOrCreate"}}],
        }
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "make-folder"}, "spec": spec})
        phase = ("get", "pod", "make-folder", "-o", "jsonpath={.status.phase}")
        wait_until("a folder on the node", lambda: self.lab.kubectl(*phase) == "Succeeded", 120)
        self.lab.kubectl("delete", "pod", "make-folder", "--now")
