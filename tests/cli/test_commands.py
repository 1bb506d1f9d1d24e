"""The commands with real processes: a job from start to end, one that fails, a cluster that is cleaned up."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from lab.waiting import wait_until
from rich.console import Console

from ropeteam.cli.asyncrun import run_interruptible
from ropeteam.cli.connect import connected
from ropeteam.cli.localstack import LocalStack
from ropeteam.cli.main import cli
from ropeteam.cli.manifest.apply import apply_manifest
from ropeteam.cli.manifest.read import Manifest, read_manifest
from ropeteam.cli.run import JobResult, run_job

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


def processes(home: Path) -> Iterator[int]:
    """Processes of the cluster in `home`."""
    for entry in Path("/proc").iterdir():
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(home).encode() in text and int(entry.name) != os.getpid():
            yield int(entry.name)


def arguments(pid: int) -> bytes:
    """Empty: it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    left = list(processes(tmp_path / "home"))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == [], "processes were left behind"


def run(file: Path, home: Path) -> tuple[JobResult, str]:
    return trained(read_manifest(file), home)


def trained(read: Manifest, home: Path, ranks: str = "none") -> tuple[JobResult, str]:
    """`ropeteam run`, in this process; the cluster and the operator are processes anyway."""
    console = Console(record=True, width=200, file=io.StringIO())

    async def to_the_end() -> JobResult:
        async with LocalStack(home) as local:
            return await run_job(read, local, console, keep=False, ranks=ranks)

    return run_interruptible(to_the_end()), console.export_text()


def test_run_trains_a_job_to_its_end_in_the_folder_it_was_started_in(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = "import os; open(f'rank-{os.environ[\"RANK\"]}', 'w').close()"
    result, output = run(manifest(tmp_path, script), home)
    assert result.exit_code == 0, output
    assert "job: Complete" in output
    assert "no incidents" in output
    assert (tmp_path / "rank-0").exists()
    assert (tmp_path / "rank-1").exists()


def test_run_of_a_job_that_fails_shows_the_reason_and_the_last_lines(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rules = {"recovery": {"exitCodes": [{"codes": [42], "action": "Fail"}]}}
    result, output = run(
        manifest(tmp_path, "import sys; print('the last words'); sys.exit(42)", **rules), home
    )
    assert result.exit_code == 1, output
    assert "ExitCodeRule" in output
    assert "the last words" in output


def test_run_makes_the_namespace_that_a_manifest_names(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = manifest(tmp_path, "pass")
    file.write_text(file.read_text().replace("name: job", "name: job\n  namespace: team-a"))
    result, output = run(file, home)
    assert result.exit_code == 0, output


def test_ctrl_c_ends_a_run_and_leaves_nothing(tmp_path: Path, home: Path) -> None:
    file = manifest(tmp_path, "import time; open('started', 'w').close(); time.sleep(3600)")
    process = ropeteam("run", str(file), "--home", str(home), cwd=tmp_path)
    wait_until("the script starts", (tmp_path / "started").exists)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "job: " in output
    assert f"interrupted; logs of all ranks: {home}/logs/default/job" in output


@pytest.fixture
def up(tmp_path: Path, home: Path) -> Iterator[subprocess.Popen[str]]:
    process = ropeteam("up", "--home", str(home), cwd=tmp_path)
    wait_until("the operator starts", (home / "operator.address").exists)
    yield process
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)


def test_up_keeps_its_operator_alive_and_cleans_up_after_ctrl_c(
    up: subprocess.Popen[str], home: Path
) -> None:
    def operators() -> set[int]:
        return {pid for pid in processes(home) if b"ropeteam.controller" in arguments(pid)}

    (first,) = operators()
    os.kill(first, signal.SIGKILL)
    wait_until("another operator", lambda: operators() - {first})
    up.send_signal(signal.SIGINT)
    output, _ = up.communicate(timeout=PATIENCE)
    assert up.returncode == 0, output
    assert f"export KUBECONFIG={home}/kubeconfig" in output
    assert "signal 9" in output


@pytest.mark.usefixtures("up")
def test_watch_snapshot_and_explain_of_a_job_on_a_cluster(tmp_path: Path, home: Path) -> None:
    script = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)"
    folder = tmp_path / "another folder than that of the cluster"
    folder.mkdir()
    file = manifest(folder, script)

    async def create() -> None:
        async with connected(home / "kubeconfig") as client:
            await apply_manifest(client, read_manifest(file), folder)

    def command(*arguments: str) -> Result:
        return CliRunner().invoke(cli, [*arguments, "--kubeconfig", str(home / "kubeconfig")])

    def snapshot() -> str:
        taken = command("snapshot", "job")
        assert taken.exit_code == 0, taken.output
        return taken.output

    asyncio.run(create())
    taken_at_last = wait_until(
        "the coordinator reports its world", lambda: [t for t in [snapshot()] if '"world_size": 2' in t]
    )
    (tmp_path / "snapshot.json").write_text(taken_at_last[0])
    assert CliRunner().invoke(cli, ["explain", str(tmp_path / "snapshot.json")]).exit_code == 0
    assert command("explain", "job").output.startswith("job: "), "as it is now"
    (folder / "go").touch()
    watched = command("watch", "job")
    assert watched.exit_code == 0, watched.output
    assert "job: Complete" in watched.output


async def test_the_last_line_of_a_log_is_not_that_of_an_earlier_run(tmp_path: Path) -> None:
    (tmp_path / "cluster.log").write_text("error: another cluster runs\n")
    local = LocalStack(tmp_path)
    await (await local._spawn("cluster", "compileall", "-q", str(tmp_path))).wait()
    assert local._log_hint("cluster").endswith("whose last line is: no output")
    await local._stop()


@pytest.mark.usefixtures("up")
def test_a_second_cluster_in_the_same_home_is_refused_in_one_sentence(tmp_path: Path, home: Path) -> None:
    second = ropeteam("up", "--home", str(home), cwd=tmp_path)
    output, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 1
    assert f"another cluster runs in {home}" in output
    assert "Traceback" not in output
