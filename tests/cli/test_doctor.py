"""`ropeteam doctor` on real clusters of this machine: one that is well, ones that refuse or are not there."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from lab.waiting import wait_until
from tests.cli import test_commands
from tests.cli.test_commands import manifest

from ropeteam.cli import doctor
from ropeteam.local.apiserver import ApiServer
from ropeteam.local.cluster import LocalCluster, kubeconfig
from ropeteam.local.resources import StatusError

home, up = test_commands.home, test_commands.up


@pytest.fixture
def nowhere() -> Iterator[str]:
    """The URL of a port where nobody listens, as long as the test lasts."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def examined(*arguments: str, home: Path) -> tuple[int, list[str]]:
    """Exit status and lines, of the command as a person starts it who has no cluster."""
    environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    environment |= {"HOME": str(home)}
    command = [sys.executable, "-m", "ropeteam.cli", "doctor", "--home", str(home), *arguments]
    done = subprocess.run(command, env=environment, text=True, capture_output=True)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


@pytest.mark.usefixtures("up")
def test_a_local_cluster_and_a_job_of_it_are_examined(tmp_path: Path, home: Path) -> None:
    kubectl = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if not kubectl:
        pytest.fail("no kubectl: install one, or say where it is in KUBECTL")
    volume = {"persistentVolumeClaim": {"claimName": "data"}}
    template = {"spec": {"imagePullSecrets": [{"name": "registry"}]}}
    file = manifest(tmp_path, "pass", suspend=True, checkpoint={"volume": volume}, template=template)
    command = [kubectl, "--kubeconfig", str(home / "kubeconfig"), "apply", "-f", str(file)]
    subprocess.run(command, check=True, capture_output=True)

    def lines() -> list[str]:
        _, findings = examined("job", home=home)
        ready = {
            "ok   operator: of the local cluster, ready",
            "ok   job job: Suspended; ropeteam explain job",
        }
        return findings if ready <= set(findings) else []

    findings = wait_until("the operator is ready, and has looked at the job", lines)
    assert f"ok   cluster: of {home}/kubeconfig: answers, Kubernetes v1.32.0+ropeteam" in findings
    assert "ok   definition: TrainingJob v1alpha1, the same as in this client" in findings
    assert findings[-2:] == [
        "FAIL claim data: does not exist, and pods that mount it wait; create the PersistentVolumeClaim in"
        " namespace default",
        "warn pull secret registry: does not exist: images that need it are not pulled; kubectl create secret"
        " docker-registry registry -n default --docker-server=...",
    ]
    assert examined("job", home=home)[0] == 1
    wait_until("without the job all is well", lambda: examined(home=home)[0] == 0)


def test_a_kubectl_that_is_found_shows_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubectl = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if not kubectl:
        pytest.fail("no kubectl: install one, or say where it is in KUBECTL")
    (tmp_path / "kubectl").symlink_to(kubectl)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    line = next(each for each in examined(home=tmp_path)[1] if "kubectl:" in each)
    assert line.startswith("ok   kubectl: v1.")
    assert line.endswith(f", {tmp_path}/kubectl")


def test_no_cluster_is_one_failure(tmp_path: Path) -> None:
    code, findings = examined(home=tmp_path)
    assert code == 1
    assert [line for line in findings if line.startswith("FAIL")] == findings[-1:]
    assert findings[-1].startswith("FAIL cluster: no cluster is configured (no such file: ")
    assert "Start a local cluster with `ropeteam up`" in findings[-1]


def test_a_cluster_that_was_killed_is_reported_and_is_one_failure(tmp_path: Path, nowhere: str) -> None:
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig(nowhere, "token")))
    code, findings = examined(home=tmp_path)
    assert code == 1
    assert f"and was not shut down cleanly: {tmp_path}/kubeconfig remain" in "\n".join(findings)
    assert [line for line in findings if line.startswith("FAIL")] == findings[-1:]
    assert findings[-1].startswith(f"FAIL cluster: of {tmp_path}/kubeconfig: ")


class _Strict(ApiServer):
    """A cluster of somebody else, where we may read nothing, or are nobody."""

    code, reason = 403, "Forbidden"

    async def _route(self, request: web.Request, parts: list[str]) -> web.StreamResponse:
        if parts == ["version"] and self.code == 403:
            return web.json_response({"gitVersion": "v1.36.0"})
        raise StatusError(self.code, self.reason, f"{request.path} is forbidden")


class _Unauthenticated(_Strict):
    code, reason = 401, "Unauthorized"


async def lines_of(cluster: LocalCluster) -> list[str]:
    return [str(found) async for found in doctor.findings(cluster.kubeconfig, cluster.home, "team", "job")]


async def test_what_rbac_forbids_is_not_known_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropeteam.local.cluster.ApiServer", _Strict)
    async with LocalCluster(tmp_path / "home") as cluster:
        findings = await lines_of(cluster)
    assert [line for line in findings if line.startswith("FAIL")] == []
    unknown = [
        line.partition(": not known: you may not read ")[::2] for line in findings if "not known" in line
    ]
    assert unknown == [
        ("warn definition", "CustomResourceDefinitions"),
        ("warn operator", "deployments in all namespaces"),
        ("warn nodes", "nodes"),
        ("warn storage class", "storage classes"),
        ("warn third-party kinds", "API groups"),
        ("warn namespace team", "namespace team"),
        ("warn quotas", "quotas in team"),
        ("warn limit ranges", "limit ranges in team"),
        ("warn network policies", "network policies in team"),
        ("warn job job", "jobs in team"),
    ]


async def test_a_user_that_a_cluster_does_not_know_is_sent_to_log_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropeteam.local.cluster.ApiServer", _Unauthenticated)
    async with LocalCluster(tmp_path / "home") as cluster:
        findings = await lines_of(cluster)
    assert findings[-1] == (
        f"FAIL cluster: of {cluster.kubeconfig}: access is refused: Unauthorized; log in again, or set"
        " --kubeconfig"
    )


async def test_a_local_cluster_without_an_operator_is_a_failure(tmp_path: Path, nowhere: str) -> None:
    async with LocalCluster(tmp_path / "home") as cluster:
        none = await lines_of(cluster)
        (cluster.home / "operator.address").write_text(nowhere.removeprefix("http://") + "\n")
        dead = await lines_of(cluster)
    assert f"FAIL operator: no operator of `ropeteam up` has started in {cluster.home}; " in "\n".join(none)
    assert f"FAIL operator: {nowhere}/readyz does not answer: " in "\n".join(dead)
