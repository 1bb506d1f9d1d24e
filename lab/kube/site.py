"""A lab with our chart in it, and jobs on it: what the end-to-end tests speak.

Jobs see one folder of this machine, /shared, on every node. Every wait polls, and says what it saw instead.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from lab.kube import falsecoordinator, images
from lab.kube.cluster import KubeCluster
from lab.processes import environments
from lab.waiting import NotYet, wait_until
from ropeteam.api.job import Metadata
from ropeteam.core.seen import names
from ropeteam.core.seen.observation import Role

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "ropeteam"
CONFIG = "ROPETEAM_CONFIG"
SYSTEM, RELEASE = "ropeteam-system", "ropeteam"
PATIENCE = 120.0
Object = dict[str, Any]


def false_coordinator(job: Object, how: str) -> Object:
    """A pod with the labels of the job's own: the job's Service leads to it as well, and it answers the
    operator so (falsecoordinator.py)."""
    owner = Metadata.model_validate(job["metadata"])
    container = {
        "name": "coordinator",
        "image": images.TRAINER,
        "imagePullPolicy": "Never",
        "command": ["python", "-S", "-c", Path(falsecoordinator.__file__).read_text(), how],
    }
    labels = names.labels(owner, Role.COORDINATOR, term=1, attempt=1)
    meta = {"name": f"{owner.name}-false", "namespace": owner.namespace, "labels": labels}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


class Site:
    """`lab` is up; `install` puts the chart into it."""

    def __init__(self, lab: KubeCluster) -> None:
        self.lab = lab
        self.shared = lab.folder / "shared"
        self.shared.mkdir(exist_ok=True)
        self.shared.chmod(0o777)
        shutil.copytree(ROOT / "lab" / "scripts", self.shared / "scripts", dirs_exist_ok=True)

    @classmethod
    def ready(cls, lab: KubeCluster) -> Site:
        """On a lab that may have to be started, with the chart in it."""
        if not lab.is_up():
            lab.up()
        site = cls(lab)
        if site.get("deployment", RELEASE, SYSTEM) is None:
            site.install()
        return site

    # ---- the chart

    def helm(self, *argv: str) -> str:
        environment = os.environ | {"KUBECONFIG": str(self.lab.control.kubeconfig)}
        done = subprocess.run(
            [self.lab.tools / "helm", *argv], env=environment, text=True, capture_output=True
        )
        assert done.returncode == 0, f"helm {' '.join(argv)}: {done.stderr}"
        return done.stdout

    def install(self, *sets: str, verb: str = "install", chart: Path = CHART) -> None:
        flags = [flag for each in ("image.pullPolicy=Never", *sets) for flag in ("--set", each)]
        self.helm(
            verb, RELEASE, str(chart), "--namespace", SYSTEM, "--create-namespace", *flags, "--wait",
            "--timeout", "2m",
        )  # fmt: skip

    def operators(self) -> list[Object]:
        return self.items("pods", SYSTEM, "app.kubernetes.io/component=operator")

    def leader(self) -> str:
        """Name of the pod that acts."""
        lease = self.get("lease", RELEASE, SYSTEM) or {}
        return str(lease.get("spec", {}).get("holderIdentity", "")).rpartition("_")[0]

    # ---- objects

    def get(self, kind: str, name: str, namespace: str = "default") -> Object | None:
        text = self.lab.kubectl("-n", namespace, "get", kind, name, "-o", "json", "--ignore-not-found")
        return dict(json.loads(text)) if text else None

    def items(self, kind: str, namespace: str = "default", labels: str = "") -> list[Object]:
        command = ("-n", namespace, "get", kind, "-o", "json", *(("-l", labels) if labels else ()))
        return list(json.loads(self.lab.kubectl(*command))["items"])

    def apply(self, obj: Object) -> None:
        self.lab.kubectl("apply", "-f", "-", text=json.dumps(obj))

    # ---- jobs

    def job(self, name: str, command: list[str], *, workers: int = 2, **spec: Any) -> Object:
        """A TrainingJob of our trainer's image that sees /shared, and its own folder /shared/NAME."""
        folder = self.shared / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        folder.chmod(0o777)
        return self.shape(name, command, workers, **spec)

    def shape(self, name: str, command: list[str], workers: int, **spec: Any) -> Object:
        """The job itself, without its folder."""
        mount = {"name": "shared", "mountPath": "/shared"}
        trainer = {"name": "trainer", "volumeMounts": [mount], "imagePullPolicy": "Never"}
        volume = {"name": "shared", "hostPath": {"path": str(self.shared)}}
        template = {"spec": {"containers": [trainer], "volumes": [volume]}}
        shape = {"workers": workers, "image": images.TRAINER, "command": command, "template": template}
        return {
            "apiVersion": "ropeteam.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {**shape, **spec},
        }

    def checkpoints(self, name: str, every_steps: int = 10) -> Object:
        """spec.checkpoint in the job's own folder."""
        return {"volume": {"hostPath": {"path": str(self.shared / name)}}, "everySteps": every_steps}

    def has_just_saved(self, name: str) -> bool:
        """train_ddp.py, in its folder."""
        file = self.shared / name / "checkpoint.pt"
        return file.exists() and time.time() - file.stat().st_mtime < 1

    def status(self, name: str) -> Object:
        return (self.get("trainingjob", name) or {}).get("status") or {}

    def progress(self, name: str) -> int:
        """The last step in status; at most 30 s old."""
        return int((self.status(name).get("progress") or {}).get("step") or 0)

    def condition(self, name: str, kind: str) -> Object:
        return next((each for each in self.status(name).get("conditions", ()) if each["type"] == kind), {})

    def wait(self, name: str, kind: str, patience: float = PATIENCE) -> Object:
        """Until the condition is True."""

        def holds() -> Object | None:
            seen = self.condition(name, kind)
            return seen if seen.get("status") == "True" else None

        try:
            return wait_until(f"{name} {kind}", holds, patience)
        except NotYet as error:
            raise NotYet(f"{error}\n{self.explain(name)}") from None

    def explain(self, name: str) -> str:
        """Pods, events and logs, as a person would look at them."""
        kubectl = self.lab.kubectl
        pods = kubectl("get", "pods", "-o", "wide", check=False)
        events = kubectl("get", "events", "--sort-by=.lastTimestamp", check=False)[-3000:]
        logs = kubectl("-n", SYSTEM, "logs", "-l", "app.kubernetes.io/component=operator", check=False)
        return f"{json.dumps(self.status(name), indent=1)}\n{pods}\n{events}\n{logs[-3000:]}"

    def pods(self, name: str, role: str = "worker") -> list[Object]:
        return self.items("pods", labels=f"ropeteam.dev/job={name},ropeteam.dev/role={role}")

    def runs_anything(self, name: str) -> bool:
        pods = self.pods(name)
        return any(
            "running" in each["state"] for pod in pods for each in pod["status"].get("containerStatuses", ())
        )

    def uids(self, name: str) -> dict[str, str]:
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods(name)}

    def node_of(self, name: str, slot: int) -> int:
        """Number of the node of this slot's newest pod. 0: none yet."""
        pods = [pod for pod in self.pods(name) if pod["metadata"]["labels"]["ropeteam.dev/slot"] == str(slot)]
        newest = max(pods, key=lambda pod: int(pod["metadata"]["labels"]["ropeteam.dev/incarnation"]))
        return int(newest["spec"].get("nodeName", "-0").rpartition("-")[2])

    def is_elsewhere(self, name: str, slot: int, node: int) -> bool:
        """This slot's newest pod has a node, and it is another."""
        return self.node_of(name, slot) not in (0, node)

    def delete(self, name: str) -> None:
        self.lab.kubectl("delete", "trainingjob", name, "--ignore-not-found", "--wait")
        wait_until(
            f"pods of {name} are gone",
            lambda: not self.items("pods", labels=f"ropeteam.dev/job={name}"),
            120,  # a kubelet that lost the API server looks for it every half minute
        )

    def audit(self) -> Iterator[Object]:
        """Requests to the API server, oldest first."""
        with open(self.lab.control.audit_log) as lines:
            yield from map(json.loads, lines)

    def writes_of(self, pod: str, since: datetime) -> list[str]:
        """Changes that this pod has made in the API server."""
        return [
            f"{event['requestReceivedTimestamp']} {event['verb']} {event['requestURI']}"
            for event in self.audit()
            if event["user"].get("extra", {}).get("authentication.kubernetes.io/pod-name") == [pod]
            and event["verb"] not in ("get", "list", "watch")
            and event["responseStatus"]["code"] < 400
            and datetime.fromisoformat(event["requestReceivedTimestamp"]) > since
        ]

    # ---- faults

    def rank(self, job: str, number: int) -> int:
        """The process of this rank, as the machine sees it."""
        uid = (self.get("trainingjob", job) or {})["metadata"]["uid"]

        def found() -> int | None:
            for pid, environment in environments():
                # A forked rank shows the environment of the zygote.
                ours = environment.get("TORCHELASTIC_RUN_ID") == uid or uid in environment.get(CONFIG, "")
                if ours and _names(pid) == (f"rank {number}", True):
                    return pid
            return None

        return wait_until(f"rank {number} of {job}", found)

    def agent(self, job: str, slot: int) -> int:
        """The first process of a worker's container."""
        return self._first_process(f"{job}-{slot}-", "ropeteam-agent", "agent.pyz")

    def coordinator(self, job: str) -> int:
        return self._first_process(f"{job}-coordinator-", "coordinator", "ropeteam_trainer.coordinator")

    def operator(self, pod: str) -> int:
        return self._first_process(pod, "operator", "ropeteam.controller")

    def _first_process(self, host: str, what: str, suffix: str) -> int:
        """By the name of its pod, which is its host name, and a word of its command."""
        for pid, environment in environments():
            if environment.get("HOSTNAME", "").startswith(host):
                arguments = _arguments(pid)
                if any(each.endswith(suffix) for each in arguments) and "zygote" not in str(arguments):
                    return pid
        raise AssertionError(f"no {what} process in a pod {host}")

    def kill_process(self, job: str, slot: int) -> None:
        """The pid of a rank, without a request to the API server."""
        for pid, environment in environments():
            if environment.get("HOSTNAME", "").startswith(f"{job}-{slot}-") and _names(pid)[0].startswith(
                "rank "
            ):
                os.kill(pid, signal.SIGKILL)
                return
        raise AssertionError(f"no rank in a pod of slot {slot}")

    def ended_worlds(self, job: str) -> int:
        """How many worlds have ended."""
        return len(self.status(job).get("incidents") or [])

    def restarts(self, job: str, role: str) -> int:
        statuses = self.pods(job, role)[0]["status"].get("containerStatuses") or [{}]
        return int(statuses[0].get("restartCount", 0))

    def raw(self, verb: str, path: str, body: Object) -> None:
        self.lab.kubectl(verb, "--raw", path, "-f", "-", text=json.dumps(body))

    def kill_rank(self, job: str, number: int) -> None:
        os.kill(self.rank(job, number), signal.SIGKILL)


def _arguments(pid: int) -> list[str]:
    """Of a process that may have ended meanwhile: none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _names(pid: int) -> tuple[str, bool]:
    """A process's name, and whether its parent has another: what a rank starts is called like it."""
    try:
        process = psutil.Process(pid)
        parent = process.parent()
        return process.name(), parent is None or parent.name() != process.name()
    except psutil.NoSuchProcess:
        return "", False
