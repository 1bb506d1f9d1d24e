"""Drive a real local cluster from outside, as a user: `ropeteam up` as a process, and its API over HTTP.

Every wait polls a condition with a generous deadline and, when it fails, says what was seen instead.
Processes of a rank, an agent, a coordinator are found by their environment, as a person with `ps` would
find them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from lab.processes import arguments_of, die_with_parent, environments, name_of, process_of
from lab.waiting import PATIENCE, NotYet, wait_until

JOBS = "/apis/ropeteam.dev/v1alpha1/namespaces/default/trainingjobs"
PODS = "/api/v1/namespaces/default/pods"


def files(folder: Path) -> list[Path]:
    """All below a folder that others prune meanwhile, which ends `rglob` with FileNotFoundError."""
    return [Path(place, name) for place, _, names in os.walk(folder) for name in names]


class Refused(Exception):
    """A refusal of the API server."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


class Cluster:
    """`ropeteam up` in its own home folder, and a small client of its API."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.log = home / "up.log"
        home.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ropeteam.cli", "up", "--home", str(home)],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.kubeconfig = home / "kubeconfig"
        wait_until("API server", self._ready)

    def _ready(self) -> bool:
        assert self.process.poll() is None, f"ropeteam up ended: {self.log.read_text()}"
        if not self.kubeconfig.exists():
            return False
        config = yaml.safe_load(self.kubeconfig.read_text())
        self.server = config["clusters"][0]["cluster"]["server"]
        self.token = config["users"][0]["user"].get("token", "")
        try:
            return bool(self.call("GET", JOBS)["kind"])
        except (OSError, KeyError):
            return False

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"ropeteam up ignored SIGINT: {self.log.read_text()[-2000:]}") from None

    def call(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Any:
        """One API request; the answer as JSON. Raises Refused."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server + path, data=data, method=method)
        request.add_header("Content-Type", content)
        request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise Refused(error.code, error.read().decode(errors="replace")) from None
        return json.loads(text) if text else None

    # ---- jobs and pods

    def create(self, job: dict[str, Any]) -> None:
        self.call("POST", JOBS, job)

    def patch(self, name: str, spec: dict[str, Any]) -> None:
        self.call("PATCH", f"{JOBS}/{name}", {"spec": spec}, "application/merge-patch+json")

    def job(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self.call("GET", f"{JOBS}/{name}")
        except Refused as error:
            if error.code == 404:
                return None
            raise
        return found

    def uid(self, name: str) -> str:
        job = self.job(name)
        assert job is not None, f"no job {name}"
        return str(job["metadata"]["uid"])

    def status(self, name: str) -> dict[str, Any]:
        job = self.job(name)
        return (job or {}).get("status") or {}

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        found = [c for c in self.status(name).get("conditions", []) if c["type"] == kind]
        return found[0] if found else {}

    def wait_condition(self, name: str, kind: str, patience: float = PATIENCE) -> dict[str, Any]:
        def holds() -> dict[str, Any] | None:
            seen = self.condition(name, kind)
            return seen if seen.get("status") == "True" else None

        try:
            return wait_until(f"{name} {kind}", holds, patience)
        except NotYet as error:
            raise NotYet(f"{error}\n{json.dumps(self.status(name), indent=1)}\n{self.tail()}") from None

    def pods(self, name: str, role: str | None = "worker") -> list[dict[str, Any]]:
        labels = f"ropeteam.dev/job={name}" + (f",ropeteam.dev/role={role}" if role else "")
        items: list[dict[str, Any]] = self.call("GET", f"{PODS}?labelSelector={labels}")["items"]
        return items

    def pod_uids(self, name: str) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods(name)}

    def delete_pod(self, pod: str, grace: int | None = None) -> None:
        query = "" if grace is None else f"?gracePeriodSeconds={grace}"
        self.call("DELETE", f"{PODS}/{pod}{query}")

    def delete(self, name: str) -> None:
        self.call("DELETE", f"{JOBS}/{name}")

    def logs(self, pod: str) -> str:
        request = urllib.request.Request(f"{self.server}{PODS}/{pod}/log?container=trainer")
        request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode(errors="replace"))

    def tail(self) -> str:
        return self.log.read_text()[-3000:]

    # ---- processes

    def rank_pid(self, name: str, rank: int) -> int | None:
        """The process that runs the script as this rank. A forked one has the environment of its zygote."""
        uid = self.uid(name)
        for pid, env in environments():
            ours = env.get("TORCHELASTIC_RUN_ID") == uid or uid in env.get("ROPETEAM_CONFIG", "")
            if ours and name_of(pid) == f"rank {rank}":
                return pid
        return None

    def wait_rank(self, name: str, rank: int, not_pid: int = 0) -> int:
        def alive() -> int | None:
            pid = self.rank_pid(name, rank)
            return pid if pid != not_pid else None

        try:
            return wait_until(f"rank {rank} of {name}", alive)
        except NotYet as error:
            status = json.dumps(self.status(name), indent=1)
            raise NotYet(f"{error}\n{status}\n{self.tail()}") from None

    def agent_pid(self, pod_uid: str) -> int:
        """The agent of a pod: the process of that pod which is neither a rank nor one of its helpers."""
        return process_of(pod_uid, "ROPETEAM_POD_UID", b"--")

    def coordinator_pid(self, name: str) -> int:
        return process_of(self.uid(name), "ROPETEAM_CONFIG", b"ropeteam_trainer.coordinator")

    def operator_pid(self) -> int:
        """Of this cluster: others may run beside it."""
        for pid, _ in environments():
            arguments = arguments_of(pid)
            if b"ropeteam.controller" in arguments and str(self.home).encode() in arguments:
                return pid
        raise AssertionError("no operator process")

    def leftovers(self, job_uid: str) -> list[str]:
        """Command lines of processes that belong to this job."""
        found = [
            b" ".join(arguments_of(pid)).decode()
            for pid, env in environments()
            if env.get("TORCHELASTIC_RUN_ID") == job_uid
            or job_uid in env.get("ROPETEAM_CONFIG", "") + env.get("ROPETEAM_RANK_PLAN", "")
        ]
        return [line for line in found if line]  # the others have ended since
