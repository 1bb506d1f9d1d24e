"""Run a job's script on this machine up to job.wrap(), and read the model that it would train."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ropeteam.api.job import TrainingJobSpec
from ropeteam.api.strategy import contract_strategy
from ropeteam.core.objects import trainercontainer
from ropeteam.local.node import podspec, shim
from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import RankPlan, Resume
from ropeteam_trainer.partition.answer import DryRunResult


def dry_run(spec: TrainingJobSpec, folder: Path, timeout_seconds: float) -> DryRunResult | str:
    """Run the command as rank 0 until the script has written its result, and return that, or a sentence with
    the reason why there is none. folder: where relative paths start. All processes that it started are
    killed.

    First match wins: the result (a command that is not analysed writes the reason); the time limit; exit code
    0, a script that never trains; else the last line of its output.
    """
    context = podspec.ExecutionContext(mounts={}, environment=os.environ, folder=folder)
    try:
        script = podspec.process_spec({}, _local_container(spec), context, lookup=lambda *_: None)
    except podspec.ContainerError as error:
        return f"the script was not run: {error}"
    with tempfile.TemporaryDirectory(prefix="ropeteam-plan-") as scratch:
        result_file, output_file = Path(scratch, "answer"), Path(scratch, "output")
        environment = {**script.environment, **_rank_0_environment(spec)}
        environment[config.DRY_RUN_FILE] = str(result_file)
        launcher_args = [spec.launcher.value, str(spec.workers), str(spec.processes)]
        ours = [sys.executable, "-m", "ropeteam_trainer.planning", *launcher_args]
        with output_file.open("wb") as output, _kill_descendants():
            process = subprocess.Popen(
                [*ours, *script.command],
                cwd=script.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            code = _wait_or_kill(process, timeout_seconds)
        if result_file.exists():
            result = codec.decode(DryRunResult, result_file.read_bytes())
            return result.not_run or result
        if code is None:
            return (
                f"the script did not reach job.wrap() within {timeout_seconds:g} s (--timeout-seconds); the "
                f"last line of its output: {_last_line(output_file)}"
            )
        if code == 0:
            return DryRunResult(without_wrap="ends")
        return f"the script failed before job.wrap(): {_last_line(output_file)}"


def _local_container(spec: TrainingJobSpec) -> dict[str, Any]:
    """Container `trainer`, reduced to the fields that define its process. Variables with valueFrom are left
    out: Secrets and ConfigMaps are in a cluster."""
    merged = trainercontainer.merged(spec)
    fields = ("name", "command", "args", "workingDir")
    container: dict[str, Any] = {name: merged[name] for name in fields if name in merged}
    return container | {"env": [row for row in merged["env"] if "value" in row]}


def _rank_0_environment(spec: TrainingJobSpec) -> dict[str, str]:
    """Variables of torchrun for rank 0, and those of our library for a dry run. Without MASTER_ADDR and
    MASTER_PORT: there are no other ranks to connect to."""
    numbers = {
        "RANK": 0,
        "WORLD_SIZE": spec.workers * spec.processes,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": spec.processes,
        "GROUP_RANK": 0,
        "GROUP_WORLD_SIZE": spec.workers,
    }
    strategy = contract_strategy(spec.strategy) if spec.strategy else None
    plan = RankPlan(
        world_id="",
        restore=(),
        lineage_known=False,
        checkpoint=None,
        resume=Resume.LATEST,
        resume_step=None,
        job="",
        job_uid="",
        strategy=strategy,
    )
    ours = {config.DRY_RUN: "1", config.RANK_PLAN: codec.encode(plan).decode(), "OMP_NUM_THREADS": "1"}
    return {name: str(number) for name, number in numbers.items()} | ours


def _wait_or_kill(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Wait for the exit code. None: after so many seconds the process and its descendants were killed."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        shim.kill_tree(process.pid)
        process.wait()
        return None


@contextmanager
def _kill_descendants() -> Iterator[None]:
    """At the end of the `with`, kill and reap all processes that were started in it, in whatever session.

    Orphans become children of this process, as it is their subreaper then. A killed process can leave further
    orphans, hence the loop. Limit: a process that another thread starts meanwhile is killed, too.
    """
    libc, ours = ctypes.CDLL(None), set(shim.children(os.getpid()))
    libc.prctl(shim.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        while remaining := set(shim.children(os.getpid())) - ours:
            for pid in remaining:
                shim.kill_tree(pid)
                os.waitpid(pid, 0)
        libc.prctl(shim.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _last_line(file: Path) -> str:
    """Last line of a script's output, without torch's prefix of a traceback."""
    lines = file.read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("[rank0]: ") if lines else "no output"
