"""The ranks that a job's command starts, by the table of ropeteam_trainer.launchers. Pure.

The operator counts ranks by it; `ropeteam validate` reports what the agent would refuse, before there is a
pod. Limit: a command with `$(VARIABLES)` is known in its pod only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ropeteam.api.rule import trainer
from ropeteam_trainer.contract import config
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.launchers import JobSize, Launch, analyse, requested_processes

if TYPE_CHECKING:
    from ropeteam.api.job import TrainingJobSpec

MAX_PROCESSES, MAX_RANKS = 128, 8192
"""Of a worker; of a job."""


def command_of(spec: TrainingJobSpec) -> tuple[str, ...]:
    """Command and arguments of the container `trainer`."""
    given = trainer({"template": spec.template or {}})
    command, args = spec.command or given.get("command"), spec.args or given.get("args")
    return (*(command or ()), *(args or ()))


def processes(spec: TrainingJobSpec) -> int:
    """Ranks per worker."""
    declared = spec.processes_per_worker or spec.gpus_per_worker
    return declared or _of_command(spec) or 1


def _of_command(spec: TrainingJobSpec) -> int | None:
    """None: it does not say, or says more than a job may have."""
    count = requested_processes(command_of(spec), config.Launcher(spec.launcher.value), spec.workers)
    fits = count and count <= MAX_PROCESSES and count * spec.workers + spec.servers <= MAX_RANKS
    return count if fits else None


def problem(spec: TrainingJobSpec, set_workers: str = JobSize.set_workers) -> str:
    """Why the command cannot be started as the job specifies. Empty: it can. `set_workers`: how the user sets
    the number of workers."""
    found = _analysed(spec, set_workers)
    return found.message if isinstance(found, Problem) else ""


def notes(spec: TrainingJobSpec) -> Iterator[str]:
    """Settings that may be mistakes."""
    found, ranks = _analysed(spec), spec.workers * spec.processes
    if found is None or isinstance(found, Problem) or not found.per_pod or ranks == 1:
        return
    if spec.launcher.value == config.Launcher.AUTO.value and not found.joining:
        yield (
            "spec.command: starts once per pod, as it is, and starts the ranks of its pod by itself;"
            " set spec.launcher to PerRank to start it once per rank, or to PerPod if that is intended"
        )
    if found.text.startswith("PerPod (accelerate") and spec.processes > 1 and not spec.gpus_per_worker:
        yield (
            "spec.command: accelerate starts one process per pod where it sees no GPU;"
            f" for {spec.processes} per worker on CPUs start the script with torchrun"
        )


def _analysed(spec: TrainingJobSpec, set_workers: str = JobSize.set_workers) -> Launch | Problem | None:
    """None: nobody knows here."""
    command = command_of(spec)
    if not command or any("$(" in argument for argument in command):
        return None
    gpus = spec.gpus_per_worker and not spec.processes_per_worker
    field = "spec.gpusPerWorker" if gpus else "spec.processesPerWorker"
    job = JobSize(spec.workers, spec.processes, spec.worlds.value == "PerPod", field, set_workers)
    return analyse(command, config.Launcher(spec.launcher.value), job)
