"""The real kubectl against `ropeteam up`: what a person types, with a real job behind it.

KUBECTL names the binary; else the one on PATH. Without one these tests fail: they are the promise.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import yaml
from lab.local.cluster import Cluster
from lab.local.jobs import ticking
from lab.local.steps import order, wait_steps
from lab.waiting import wait_until


def kubectl(cluster: Cluster, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [_binary(), "--kubeconfig", str(cluster.kubeconfig), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "HOME": str(cluster.home)},
    )
    assert done.returncode == 0, f"kubectl {arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def _binary() -> str:
    found = os.environ.get("KUBECTL") or shutil.which("kubectl")
    assert found, "kubectl is needed: install it, or say in KUBECTL where it is"
    return found


def follow(cluster: Cluster, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [_binary(), "--kubeconfig", str(cluster.kubeconfig), *arguments]
    with log.open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)


def test_apply_get_wait_describe_and_logs(cluster: Cluster, name: str, tmp_path: Path):
    manifest = yaml.safe_dump(ticking(name, tmp_path / "steps", recovery={"startSeconds": 20}))
    assert "created" in kubectl(cluster, "apply", "-f", "-", stdin=manifest)
    assert "unchanged" in kubectl(cluster, "apply", "-f", "-", stdin=manifest)
    kubectl(cluster, "wait", "--for=condition=Running", f"tj/{name}", "--timeout=170s")
    table = kubectl(cluster, "get", "tj", name)
    assert table.split()[:3] == ["NAME", "STATE", "READY"]
    assert "2/2" in table
    assert name in kubectl(cluster, "get", "ropeteam")
    for rank in (0, 1):
        order(tmp_path / "steps", rank, "end")
    kubectl(cluster, "wait", "--for=condition=Finished", f"tj/{name}", "--timeout=170s")
    kubectl(cluster, "wait", "--for=condition=Complete", f"tj/{name}", "--timeout=10s")
    seen = yaml.safe_load(kubectl(cluster, "get", "tj", name, "-o", "yaml"))
    assert seen["status"]["state"] == "Complete"
    described = kubectl(cluster, "describe", "tj", name)
    assert "Complete" in described
    assert "Events:" in described
    assert "rank 0 is done" in kubectl(cluster, "logs", f"{name}-0-1")


def test_watch_and_follow_see_it_as_it_happens(cluster: Cluster, name: str, tmp_path: Path):
    watched, followed = tmp_path / "watched", tmp_path / "followed"
    watch = follow(cluster, watched, "get", "tj", "-w")
    kubectl(cluster, "apply", "-f", "-", stdin=json.dumps(ticking(name, tmp_path / "steps", "200")))
    wait_steps(tmp_path / "steps")
    logs = follow(cluster, followed, "logs", "-f", f"{name}-1-1")
    try:
        wait_until("the end in the followed log", lambda: "rank 1 is done" in followed.read_text())
        assert logs.wait(60) == 0, "the stream ends with the container"
        wait_until(
            "Complete in the watch", lambda: f"{name} " in (t := watched.read_text()) and "Complete" in t
        )
    finally:
        watch.kill()
        logs.kill()
        watch.wait()
        logs.wait()


def test_delete_waits_until_the_job_is_gone(cluster: Cluster, name: str, tmp_path: Path):
    kubectl(cluster, "apply", "-f", "-", stdin=json.dumps(ticking(name, tmp_path / "steps")))
    wait_steps(tmp_path / "steps")
    assert "deleted" in kubectl(cluster, "delete", "tj", name)
    assert cluster.job(name) is None
    kubectl(cluster, "wait", "--for=delete", "pod", "-l", f"ropeteam.dev/job={name}", "--timeout=170s")
    assert cluster.pods(name, None) == []
