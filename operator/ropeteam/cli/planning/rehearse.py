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


def rehearse(spec: TrainingJobSpec, folder: Path, timeout_seconds: float) -> DryRunResult | str:
    """Run the script for its answer, or the reason why there is none. folder: where relative paths start."""
    try:
        script = podspec.process_spec(
            {}, _container(spec), podspec.ExecutionContext({}, os.environ, folder), lambda *_: None
        )
    except podspec.ContainerError as error:
        return f"the script was not run: {error}"
    with tempfile.TemporaryDirectory(prefix="ropeteam-plan-") as scratch:
        answer, output_file = Path(scratch, "answer"), Path(scratch, "output")
        environment = {**script.environment, **_as_first_rank(spec), config.DRY_RUN_FILE: str(answer)}
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
            code = _wait(process, timeout_seconds)
        if answer.exists():
            return codec.decode(DryRunResult, answer.read_bytes())
        if code is None:
            return f"the script did not reach job.wrap() within {timeout_seconds:g} s (--timeout-seconds)"
        if code == 0:
            return DryRunResult(without_wrap="ends")
        return f"the script failed before job.wrap(): {_last_line(output_file)}"


def _container(spec: TrainingJobSpec) -> dict[str, Any]:
    """Fields that define the process of the container `trainer`, except values that exist in a cluster
    only."""
    merged = trainercontainer.merged(spec)
    fields = ("name", "command", "args", "workingDir")
    container: dict[str, Any] = {name: merged[name] for name in fields if name in merged}
    return container | {"env": [row for row in merged["env"] if "value" in row]}


def _as_first_rank(spec: TrainingJobSpec) -> dict[str, str]:
    """Variables of torchrun without an address: there are no other ranks."""
    numbers = {
        "RANK": 0,
        "WORLD_SIZE": spec.workers * spec.processes,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": spec.processes,
        "GROUP_RANK": 0,
        "GROUP_WORLD_SIZE": spec.workers,
    }
    strategy = contract_strategy(spec.strategy) if spec.strategy else None
    plan = RankPlan("", (), False, None, Resume.LATEST, None, "", "", strategy)
    ours = {config.DRY_RUN: "1", config.RANK_PLAN: codec.encode(plan).decode(), "OMP_NUM_THREADS": "1"}
    return {name: str(number) for name, number in numbers.items()} | ours


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Wait for the exit code; None: it had to be killed."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        shim.kill_tree(process.pid)
        process.wait()
        return None


@contextmanager
def _kill_descendants() -> Iterator[None]:
    """Kill at the end all processes started inside, of any session: orphans become our children."""
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
    lines = file.read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("[rank0]: ") if lines else "no output"
