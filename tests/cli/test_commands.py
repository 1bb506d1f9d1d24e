"""The commands with real processes: a job from start to end, one that fails, a cluster that is cleaned up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

PATIENCE = 90.0


def ropeteam(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ropeteam.cli", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def manifest(folder: Path, script: str, **spec: Any) -> Path:
    (folder / "script.py").write_text(script)
    job = {
        "apiVersion": "ropeteam.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "job"},
        "spec": {
            "workers": 2,
            "image": "local",
            "command": ["python", "script.py"],
            "env": [{"name": "ROPETEAM_STORE", "value": "none"}],
            **spec,
        },
    }
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    return file


def until(what: str, probe: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (answer := probe()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return answer


def processes(home: Path) -> Iterator[int]:
    """All that belong to the cluster in `home`."""
    for entry in Path("/proc").iterdir():
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(home).encode() in text and int(entry.name) != os.getpid():
            yield int(entry.name)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    left = list(processes(tmp_path / "home"))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == [], "processes were left behind"


def test_run_trains_a_job_to_its_end_in_the_folder_it_was_started_in(tmp_path: Path, home: Path) -> None:
    script = "import os; open(f'rank-{os.environ[\"RANK\"]}', 'w').close()"
    file = manifest(tmp_path, script)
    process = ropeteam("run", str(file), "--home", str(home), cwd=tmp_path)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert "job: Complete" in said
    assert "no incidents" in said
    assert (tmp_path / "rank-0").exists()
    assert (tmp_path / "rank-1").exists()


def test_run_of_a_job_that_fails_tells_the_reason_and_the_last_lines(tmp_path: Path, home: Path) -> None:
    rules = {"recovery": {"exitCodes": [{"codes": [42], "action": "Fail"}]}}
    file = manifest(tmp_path, "import sys; print('the last words'); sys.exit(42)", **rules)
    process = ropeteam("run", str(file), "--home", str(home), cwd=tmp_path)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, said
    assert "ExitCodeRule" in said
    assert "the last words" in said
    assert "Traceback" not in said


def test_up_keeps_its_operator_alive_and_cleans_up_after_ctrl_c(tmp_path: Path, home: Path) -> None:
    process = ropeteam("up", "--home", str(home), cwd=tmp_path)
    address = home / "operator.address"
    until("the operator starts", address.exists)

    def operators() -> set[int]:
        pids = processes(home)
        return {pid for pid in pids if b"ropeteam.controller" in Path(f"/proc/{pid}/cmdline").read_bytes()}

    (first,) = operators()
    os.kill(first, signal.SIGKILL)
    until("another operator", lambda: operators() - {first})
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert f"export KUBECONFIG={home}/kubeconfig" in said
    assert "signal 9" in said


def test_a_second_cluster_in_the_same_home_is_refused_in_one_sentence(tmp_path: Path, home: Path) -> None:
    first = ropeteam("up", "--home", str(home), cwd=tmp_path)
    until("the cluster starts", (home / "kubeconfig").exists)
    second = ropeteam("up", "--home", str(home), cwd=tmp_path)
    said, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 1
    assert f"another cluster runs in {home}" in said
    assert "Traceback" not in said
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=PATIENCE)
    assert first.returncode == 0
