"""Output of a script reaches the person: while `run` runs, in files, and with `logs` when all is over."""

from __future__ import annotations

import asyncio
import os
import venv
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from lab.waiting import wait_until
from tests.cli import test_commands
from tests.cli.test_commands import PATIENCE, manifest, ropeteam, trained

from ropeteam.cli import errors
from ropeteam.cli.connect import connected
from ropeteam.cli.main import cli
from ropeteam.cli.manifest.apply import apply_manifest
from ropeteam.cli.manifest.read import Manifest, read_arguments, read_manifest
from ropeteam.cli.show import logs
from ropeteam.cli.show.follow import JobPoller
from ropeteam.controller.client.apiclient import ObjectRef

home, up = test_commands.home, test_commands.up
GREETS = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
FAILS = f"""{GREETS}
import time
if os.environ['RANK'] == '0':
    open('begun', 'w').close()
    time.sleep(1000)
while not os.path.exists('begun'):
    time.sleep(0.05)
raise ValueError('no learning rate')
"""


def shown(read: Manifest, home: Path, ranks: str) -> list[str]:
    ending, text = trained(read, home, ranks)
    assert ending.exit_code == 0
    return text.splitlines()


def test_run_prints_what_rank_0_prints_and_keeps_the_logs_of_all(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = shown(read_manifest(manifest(tmp_path, GREETS)), home, "0")
    assert "rank 0 of 2" in output
    assert not [line for line in output if "rank 1 of 2" in line]
    folder = home / "logs" / "default" / "job"
    assert f"  logs of all ranks: {folder}" in output
    assert "[rank 1] rank 1 of 2" in (folder / "job-1-1.log").read_text().splitlines()


def test_a_command_runs_without_a_manifest(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "My train_1.py").write_text(GREETS)
    read = read_arguments(("torchrun", "--nproc-per-node", "1", "My train_1.py"), 2)
    assert read.name == "my-train-1"
    output = shown(read, home, "all")
    assert {"[rank 0] rank 0 of 2", "[rank 1] rank 1 of 2"} <= set(output)


def test_a_script_runs_in_the_environment_that_is_activated(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    theirs = tmp_path / "theirs"
    venv.create(theirs)
    monkeypatch.setenv("VIRTUAL_ENV", str(theirs))
    monkeypatch.setenv("PATH", f"{theirs}/bin:{os.environ['PATH']}")
    file = manifest(tmp_path, "import sys; print('prefix', sys.prefix)")
    assert f"prefix {theirs}" in shown(read_manifest(file), home, "0")


@pytest.mark.parametrize(
    ("arguments", "workers", "expected"),
    [
        (("train.yaml",), None, "train.yaml: no such file. To run a command: ropeteam run -n 2 -- "),
        (("job.yaml", "x.py"), 2, "job.yaml is a manifest, which has its own command; leave out: x.py"),
        (("torchrun", "--nproc-per-nodes", "1", "t.py"), 2, "torchrun flag --nproc-per-nodes is unknown"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_way_to_go_on(
    arguments: tuple[str, ...], workers: int | None, expected: str
) -> None:
    with pytest.raises(errors.InvalidInput) as error:
        read_arguments(arguments, workers)
    assert expected in error.value.message


def test_lines_of_one_rank_are_shown_as_the_script_printed_them() -> None:
    lines = ["agent: a word", "[rank 1] one", "[rank 10] ten", "[rank 1] [rank 10] said so"]
    assert logs.lines_of_ranks(lines, "1") == ["one", "[rank 10] said so"]
    assert logs.lines_of_ranks(lines, "all") == lines[1:]
    assert logs.lines_of_ranks(lines, "none") == []
    with pytest.raises(errors.InvalidInput, match="'zero' is not a rank"):
        logs.parse_ranks("zero")


class Scripted:
    """Client and follower of a job with one pod, whose log has lines with pauses between, and no end."""

    namespace = "default"

    async def fetch_pods(self) -> list[Any]:
        status = {"containerStatuses": [{"name": "trainer", "state": {"running": {}}}]}
        return [{"metadata": {"name": "job-0-1", "uid": "u"}, "status": status}]

    @asynccontextmanager
    async def open(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(content=self)

    async def iter_any(self) -> AsyncIterator[bytes]:
        for number in range(6):
            await asyncio.sleep(0.03)
            yield b"[rank 0] line %d\n" % number
        await asyncio.Event().wait()


async def test_the_log_of_an_ended_job_is_shown_while_it_comes_and_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "LAST_SECONDS", 0.1)
    shown, scripted = list[str](), Scripted()
    await logs.JobLogs(scripted, scripted, "0", shown.append).finish()  # type: ignore[arg-type]
    assert shown[:-1] == [f"line {number}" for number in range(6)]
    assert shown[-1] == (
        "ropeteam: the log of pod job-0-1 has not ended, but has had no output for 0.1 s; the rest is not "
        "shown: kubectl logs -n default POD -c trainer"
    )


def create(folder: Path, home: Path, **spec: Any) -> None:
    async def work() -> None:
        async with connected(home / "kubeconfig") as client:
            await apply_manifest(client, read_manifest(manifest(folder, FAILS, **spec)), folder)

    asyncio.run(work())


def command(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--kubeconfig", str(home / "kubeconfig")])


async def _workers(home: Path) -> list[Any]:
    async with connected(home / "kubeconfig") as client:
        return await JobPoller(client, "default", "job").fetch_pods()


@pytest.mark.usefixtures("up")
def test_logs_of_a_job_that_has_failed(tmp_path: Path, home: Path) -> None:
    assert "there is no TrainingJob job in namespace default" in command(home, "logs", "job").output
    create(tmp_path, home, recovery={"maxFailures": 0})
    followed = command(home, "logs", "job", "-f", "--rank", "1")
    assert followed.exit_code == 0, followed.output
    assert "rank 1 of 2" in followed.output.splitlines()
    printed = command(home, "logs", "job")
    assert {"[rank 0] rank 0 of 2", "[rank 1] ValueError: no learning rate"} <= set(
        printed.output.splitlines()
    )
    assert command(home, "logs", "job", "--rank", "0").output == "rank 0 of 2\n"
    later = command(home, "logs", "job", "--attempt", "7")
    assert later.exit_code == 2
    assert "job has had no attempt 7; its newest is 1" in later.output


@pytest.mark.usefixtures("up")
def test_logs_of_pods_that_are_gone_are_what_status_keeps(tmp_path: Path, home: Path) -> None:
    create(tmp_path, home, recovery={"maxFailures": 0}, cleanPodPolicy="All")
    assert command(home, "watch", "job").exit_code == 1
    wait_until("the pods are gone", lambda: not asyncio.run(_workers(home)))
    printed = command(home, "logs", "job")
    assert printed.exit_code == 0, printed.output
    assert "spec.cleanPodPolicy is All" in printed.output
    assert "ValueError: no learning rate" in printed.output


@pytest.mark.usefixtures("up")
def test_watch_reports_that_a_job_was_deleted(tmp_path: Path, home: Path) -> None:
    endless = manifest(tmp_path, "import time; time.sleep(1000)")

    async def apply_and_delete() -> None:
        async with connected(home / "kubeconfig") as client:
            read = read_manifest(endless)
            await apply_manifest(client, read, tmp_path)
            made = await client.get(ObjectRef.of(read.job))
            watch = ropeteam("watch", "job", "--kubeconfig", str(home / "kubeconfig"), cwd=tmp_path)
            assert watch.stdout is not None
            await asyncio.to_thread(watch.stdout.readline)
            await client.delete(ObjectRef.of(read.job), uid=made["metadata"]["uid"])
            output, _ = await asyncio.to_thread(watch.communicate, None, PATIENCE)
            assert watch.returncode == 1
            assert "error: the TrainingJob job in namespace default was deleted" in output

    asyncio.run(apply_and_delete())
