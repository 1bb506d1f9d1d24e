"""JobSet (kubernetes-sigs/jobset) as a peer: its controller beside the control plane of a lab.

    with JobSet(lab.control.kubeconfig, lab.kubectl, lab.folder, site.shared) as peer:
        peer.create("peer", ["python", "/shared/scripts/train_ddp.py", "/shared/peer"], workers=6)

Strategy Recreate: one failed pod fails its Job, and all pods are created again. InPlaceRestart (alpha,
KEP-467; as its example has it, with the agent as a sidecar): the containers of all pods restart, the pods
stay. Controller and agent are built from the Go module proxy into ~/.cache/ropeteam/peers; nothing of
JobSet's is in this repository. Limits: no admission webhooks (see `manifest`), no leader election; one on a
machine and cluster at a time.
"""

from __future__ import annotations

import json
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from lab.kube import images
from lab.kube.daemons import Daemons
from lab.kube.pki import Pki
from lab.kube.programs import Source, build
from lab.processes import environments
from lab.waiting import wait_until

from benchmarks.scale.realcluster import free_ports

VERSION = "v0.12.0"
SOURCE = Source(
    "sigs.k8s.io/jobset",
    VERSION,
    {
        "jobset": "sigs.k8s.io/jobset",
        "in-place-restart-agent": "sigs.k8s.io/jobset/cmd/in-place-restart-agent",
    },
    ldflags=f"-X sigs.k8s.io/jobset/pkg/version.GitVersion={VERSION}",
)
CONTROLLER, DEFINITION = "jobset-controller", "jobset.x-k8s.io_jobsets.yaml"
IN_PLACE, AGENT = "InPlaceRestart", "in-place-restart-agent"
REPLICATED, INDEX = "w", "batch.kubernetes.io/job-completion-index"
HOST, PORT = "127.0.0.1", 29500
PATIENCE = 120.0
Object = dict[str, Any]


class JobSet:
    """`kubectl(*arguments, text=None)` gives its output, as KubeCluster's; `folder`: where logs and pids go;
    `shared`: what every pod sees as /shared.
    """

    def __init__(self, kubeconfig: Path, kubectl: Callable[..., str], folder: Path, shared: Path) -> None:
        self._kubeconfig, self._kubectl, self._shared = kubeconfig, kubectl, shared
        self._state = folder / "jobset"
        self._daemons = Daemons(folder)  # the lab's own: what it takes down ends the controller too

    def __enter__(self) -> JobSet:
        programs = found()
        definition = str(programs / DEFINITION)
        # An annotation of client-side apply could not hold it: 0.8 MB.
        self._kubectl("apply", "--server-side", "-f", definition)
        # `kubectl wait` fails on a definition that has no conditions yet.
        known = ("api-resources", "--api-group=jobset.x-k8s.io", "--output=name")
        wait_until("JobSet is served", lambda: "jobsets" in self._kubectl(*known), PATIENCE)
        try:
            self._start(programs / "jobset")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The definition goes first, and all JobSets with it."""
        try:
            self._kubectl("delete", "-f", str(found() / DEFINITION), "--ignore-not-found", "--wait")
        finally:
            self._daemons.stop(CONTROLLER)
            shutil.rmtree(self._state, ignore_errors=True)

    def _start(self, program: Path) -> None:
        # It serves its webhooks whether they are called or not, and ends without a certificate.
        pki = Pki(self._state, f"https://{HOST}")
        pki.create()
        pki.issue("tls", "/CN=jobset", f"IP:{HOST}")
        webhooks, health = free_ports(2)
        config = self._state / "config.json"
        config.write_text(json.dumps(settings(self._state, webhooks, health)))
        self._daemons.start(
            CONTROLLER,
            (program, f"--config={config}", "--zap-log-level=2"),  # as its own manifests say
            environment={"KUBECONFIG": str(self._kubeconfig)},
        )
        try:
            wait_until("JobSet's controller is ready", lambda: _is_ready(health), PATIENCE)
        except TimeoutError as error:
            log = self._daemons.log(CONTROLLER).read_text()
            raise TimeoutError(f"{error}\n{log[-3000:]}") from None

    # ---- jobs

    def create(self, name: str, command: list[str], workers: int, strategy: str = "Recreate") -> None:
        """With its own folder /shared/NAME, empty. `strategy`: of restarts, Recreate or InPlaceRestart."""
        folder = self._shared / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        folder.chmod(0o777)
        obj = manifest(name, command, workers, self._shared)
        if strategy == IN_PLACE:
            shutil.copy2(found() / AGENT, self._shared / AGENT)
            for each in permissions():
                self._kubectl("apply", "-f", "-", text=json.dumps(each))
            in_place(obj)
        self._kubectl("create", "-f", "-", text=json.dumps(obj))

    def delete(self, name: str) -> None:
        """Returns when its pods are gone. That takes half a minute while the definition is so new that the
        cluster's garbage collector does not know it yet.
        """
        self._kubectl("delete", "jobset", name, "--ignore-not-found", "--wait")
        wait_until(f"pods of {name} are gone", lambda: not self.pods(name), PATIENCE)

    def pods(self, name: str) -> list[Object]:
        labels = f"jobset.sigs.k8s.io/jobset-name={name}"
        return list(json.loads(self._kubectl("get", "pods", "-l", labels, "-o", "json"))["items"])

    def restarts(self, name: str) -> int:
        """How often all pods were created, or all their containers started, again."""
        status = json.loads(self._kubectl("get", "jobset", name, "-o", "json")).get("status", {})
        return int(status.get("restarts", 0)) + int(status.get("currentInPlaceRestartAttempt", 0))

    def rank(self, name: str, number: int) -> int:
        """The first Python process of this rank's pod, as the machine sees it."""
        host = f"{name}-{REPLICATED}-0-{number}"

        def process() -> int | None:
            for pid, environment in environments():
                ours = (environment.get("RANK"), environment.get("HOSTNAME")) == (str(number), host)
                if ours and _name(pid).startswith("python"):
                    return pid
            return None

        return wait_until(f"rank {number} of {name}", process)


def found() -> Path:
    """The folder with controller and definition; builds them where they are missing. Raises CannotBuild."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "ropeteam" / "peers" / f"jobset-{VERSION}-{SOURCE.key}"
    if not place.exists():
        build(SOURCE, place, f"config/components/crd/bases/{DEFINITION}")
    return place


def settings(certificates: Path, webhooks: int, health: int) -> Object:
    return {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "featureGates": {IN_PLACE: True},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": HOST, "port": webhooks, "certDir": str(certificates)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"{HOST}:{health}"},
    }


def manifest(name: str, command: list[str], workers: int, shared: Path) -> Object:
    """With all that JobSet's webhook would fill in: it is not registered, so nobody calls it. That saves
    JobSet two calls for each pod; both would let ours pass as they are.
    """
    job = {
        "completionMode": "Indexed",
        "parallelism": workers,
        "completions": workers,
        "backoffLimit": 0,
        "template": {"spec": _pod(name, command, workers, shared)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "failurePolicy": {"maxRestarts": 100, "restartStrategy": "Recreate"},
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All"},
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
            "replicatedJobs": [{"name": REPLICATED, "replicas": 1, "template": {"spec": job}}],
        },
    }


def in_place(obj: Object) -> None:
    """Make `obj`, of `manifest`, restart in place: https://github.com/kubernetes-sigs/jobset, example
    jobset-sidecar-container-mode.yaml of v0.12.0.
    """
    obj["spec"]["failurePolicy"]["restartStrategy"] = IN_PLACE
    job = obj["spec"]["replicatedJobs"][0]["template"]["spec"]
    job |= {"backoffLimit": 2**31 - 1, "podReplacementPolicy": "Failed"}
    pod = job["template"]["spec"]
    # The agent's program lies in the shared folder: its project publishes no image.
    trainer = pod["containers"][0]
    own = {key: trainer[key] for key in ("image", "imagePullPolicy", "volumeMounts")}
    fields = {
        "JOBSET_NAME": "metadata.annotations['jobset.sigs.k8s.io/jobset-name']",
        "POD_NAME": "metadata.name",
    }
    env = [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()]
    failed = {"operator": "NotIn", "values": [0]}
    rules = {"restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": failed}]}
    barrier = {
        "httpGet": {"path": "/barrier-is-down", "port": 8081},
        "periodSeconds": 1,
        "failureThreshold": 600,
    }
    agent = {
        "name": "agent",
        "command": [f"/shared/{AGENT}"],
        "restartPolicy": "Always",
        "startupProbe": barrier,
    }
    pod["initContainers"] = [own | agent | rules | {"env": env}]
    pod["containers"] = [trainer | rules | {"restartPolicy": "Never"}]
    pod["serviceAccountName"] = AGENT


def permissions() -> list[Object]:
    """Service account, role and binding of the agents of InPlaceRestart."""
    named = {"metadata": {"name": AGENT, "namespace": "default"}}
    group = "rbac.authorization.k8s.io"
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]},
        {"apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"], "verbs": ["get", "list", "watch"]},
    ]
    subject = {"kind": "ServiceAccount", "name": AGENT, "namespace": "default"}
    binding = {"subjects": [subject], "roleRef": {"apiGroup": group, "kind": "Role", "name": AGENT}}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", **named},
        {"apiVersion": f"{group}/v1", "kind": "Role", **named, "rules": rules},
        {"apiVersion": f"{group}/v1", "kind": "RoleBinding", **named, **binding},
    ]


def _pod(name: str, command: list[str], workers: int, shared: Path) -> Object:
    fixed = {
        "WORLD_SIZE": str(workers),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": f"{name}-{REPLICATED}-0-0.{name}",
        "MASTER_PORT": str(PORT),
        "OMP_NUM_THREADS": "1",  # as our agent sets it
    }
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
    rank: Object = {"name": "RANK", "valueFrom": index}
    container = {
        "name": "trainer",
        "image": images.TRAINER,
        "imagePullPolicy": "Never",
        "command": command,
        "env": [rank, *({"name": key, "value": value} for key, value in fixed.items())],
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "shared", "hostPath": {"path": str(shared)}}],
    }


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _name(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.NoSuchProcess:
        return ""
