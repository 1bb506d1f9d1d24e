"""`ropeteam run`: what it does of itself on this machine, and what it says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab.waiting import wait_until
from tests.cli import test_commands
from tests.cli.test_commands import manifest, ropeteam, run

from ropeteam.cli.manifest import localvolumes
from ropeteam.cli.manifest.read import read_manifest

home, up = test_commands.home, test_commands.up


def claim(name: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": name}}


WITH_CLAIMS: dict[str, Any] = {
    "checkpoint": {"volume": claim("ckpt")},
    "template": {
        "spec": {
            "containers": [
                {
                    "name": "trainer",
                    "volumeMounts": [
                        {"name": "data", "mountPath": "/datasets/"},
                        {"name": "scratch", "mountPath": "/scratch"},
                    ],
                }
            ],
            "volumes": [{"name": "data", **claim("words")}, {"name": "scratch", "emptyDir": {}}],
        }
    },
}
ONE_CLAIM = """
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: words}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}}
"""


def test_claims_that_nobody_makes_are_created_and_listed_with_their_folders(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = manifest(tmp_path, "open('/datasets/words.txt')", recovery={"maxFailures": 0}, **WITH_CLAIMS)
    file.write_text(file.read_text() + ONE_CLAIM)
    ending, output = run(file, home)
    assert ending.exit_code == 1, output
    assert f"claim words: folder {home}/claims/default/words\n" in output
    assert f"claim ckpt: folder {home}/claims/default/ckpt (created here; on a real cluster " in output
    assert "spec.checkpoint.volume needs a PersistentVolumeClaim)" in output
    assert f"hint: /datasets exists in pods; on this machine it is {home}/claims/default/words." in output


def test_files_are_missed_where_a_mount_of_the_job_is_and_nowhere_else(tmp_path: Path) -> None:
    job = read_manifest(manifest(tmp_path, "", **WITH_CLAIMS)).job
    error = "FileNotFoundError: [Errno 2] No such file or directory: '{}' (train.py:3)"

    def hinted(*paths: str) -> list[str]:
        return list(localvolumes.path_hints(job, [error.format(path) for path in paths], Path("/home")))

    (checkpoint,) = hinted("/checkpoints/own.pt")
    assert "on this machine it is /home/claims/default/ckpt." in checkpoint
    assert "pass /checkpoints/own.pt as an argument" in checkpoint
    (scratch,) = hinted("/scratch", "/scratch")
    assert "it is a folder of each pod." in scratch
    assert hinted("/datasets2/x", "words.txt", "/etc/nothing") == []
    mounts = job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    mounts.append({"name": "scratch", "mountPath": "/datasets/made"})
    (inner,) = hinted("/datasets/made/x")
    assert "hint: /datasets/made exists in pods" in inner


def test_the_logs_of_the_run_before_stay_beside_the_new_ones(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    logs = home / "logs" / "default"
    for number in ("first", "second"):
        (logs / "job").mkdir(parents=True, exist_ok=True)
        (logs / "job" / "marked").write_text(number)
        _, output = run(manifest(tmp_path, "pass", workers=1), home)
        assert f"logs of the previous run: {logs}/job.previous" in output
        assert (logs / "job.previous" / "marked").read_text() == number
    assert not (logs / "job" / "marked").exists()
    assert {each.name for each in logs.iterdir()} == {"job", "job.previous"}


def test_a_job_of_that_name_that_runs_already_is_reported(tmp_path: Path, home: Path) -> None:
    file = manifest(tmp_path, "import time; open('started', 'w').close(); time.sleep(3600)")
    first = ropeteam("run", str(file), "--home", str(home), cwd=tmp_path)
    wait_until("the script starts", (tmp_path / "started").exists)
    second = ropeteam("run", str(file), "--home", str(home), cwd=tmp_path)
    output, _ = second.communicate(timeout=test_commands.PATIENCE)
    first.terminate()
    first.communicate(timeout=test_commands.PATIENCE)
    assert second.returncode == 1, output
    assert f"another cluster runs in {home}: " in output
    assert "  a job job is " in output
    assert f"in it: ropeteam watch job -n default --home {home}" in output


def test_a_manifest_that_is_invalid_begins_no_cluster_and_leaves_no_process(
    tmp_path: Path, home: Path
) -> None:
    file = manifest(tmp_path, "pass", workers=0)
    refused = ropeteam("run", str(file), "--home", str(home), cwd=tmp_path)
    output, _ = refused.communicate(timeout=test_commands.PATIENCE)
    assert refused.returncode == 2, output
    assert "spec.workers: 0 is too small; use 1 or more" in output
    assert {log.name: log.read_text() for log in home.iterdir()} == {"cluster.log": "", "operator.log": ""}
