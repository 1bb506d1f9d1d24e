"""The ranks that a job's command starts, by the table of ropeteam_trainer.launchers. Pure.

The operator counts ranks by it; `ropeteam validate` reports what the agent would refuse, before there is a
pod. Limit: a command with `$(VARIABLES)` is known in its pod only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ropeteam.api.rule import trainer_container
from ropeteam_trainer.contract import config
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.launchers import JobSize, Launch, analyse, requested_processes

if TYPE_CHECKING:
    from ropeteam.api.job import TrainingJobSpec

MAX_PROCESSES, MAX_RANKS = 128, 8192
"""Limits of ranks: per worker, and per job."""


def command_of(spec: TrainingJobSpec) -> tuple[str, ...]:
    """Command and arguments of the container `trainer`; empty if there are none. What spec sets wins over
    what the template sets (a valid spec sets the same in both)."""
    given = trainer_container({"template": spec.template or {}})
    command, args = spec.command or given.get("command"), spec.args or given.get("args")
    return (*(command or ()), *(args or ()))


def processes_per_worker(spec: TrainingJobSpec) -> int:
    """Ranks per worker. First match wins: processesPerWorker, gpusPerWorker, the number in the command, 1."""
    declared = spec.processes_per_worker or spec.gpus_per_worker
    return declared or _processes_of_command(spec) or 1


def _processes_of_command(spec: TrainingJobSpec) -> int | None:
    """Ranks per worker that the command itself sets, as `torchrun --nproc-per-node` does. None: it sets none,
    or more than MAX_PROCESSES or MAX_RANKS allow."""
    count = requested_processes(command_of(spec), config.Launcher(spec.launcher.value), spec.workers)
    fits = count and count <= MAX_PROCESSES and count * spec.workers + spec.servers <= MAX_RANKS
    return count if fits else None


def problem(spec: TrainingJobSpec, set_workers: str = JobSize.set_workers) -> str:
    """Message why the command contradicts the rest of the spec. Empty: it does not, or only its pod can find
    out (`_analysis`). `set_workers`: advice in the message on how to set the number of workers."""
    found = _analysis(spec, set_workers)
    return found.message if isinstance(found, Problem) else ""


def notes(spec: TrainingJobSpec) -> Iterator[str]:
    """Warnings about a valid spec: settings of the command that may be mistakes. None for a command that has
    a `problem`, or for a job of one rank."""
    found, ranks = _analysis(spec), spec.workers * spec.processes
    if found is None or isinstance(found, Problem) or not found.per_pod or ranks == 1:
        return
    if spec.launcher.value == config.Launcher.AUTO.value and not found.joining:
        yield (
            "spec.command: is started once per pod, as it is, and has to start the ranks of its pod itself;"
            " set spec.launcher to PerRank to have it started once per rank, or to PerPod if that is intended"
        )
    if found.text.startswith("PerPod (accelerate") and spec.processes > 1 and not spec.gpus_per_worker:
        yield (
            "spec.command: accelerate starts one process per pod where it sees no GPU;"
            f" for {spec.processes} per worker on CPUs start the script with torchrun"
        )


def _analysis(spec: TrainingJobSpec, set_workers: str = JobSize.set_workers) -> Launch | Problem | None:
    """How the launcher table starts the command, or its Problem. None: the command is empty, or has
    `$(VARIABLES)`, whose values are known in its pod only."""
    command = command_of(spec)
    if not command or any("$(" in argument for argument in command):
        return None
    gpus = spec.gpus_per_worker and not spec.processes_per_worker
    field = "spec.gpusPerWorker" if gpus else "spec.processesPerWorker"
    job = JobSize(spec.workers, spec.processes, spec.worlds.value == "PerPod", field, set_workers)
    return analyse(command, config.Launcher(spec.launcher.value), job)
