"""Table of launchers: their names, their flags that must agree with the job, and how each is started.

Once per rank: torchrun in all spellings, deepspeed. Their flags are parsed and they never run. Once per pod:
accelerate, fabric, composer, tune. They run, with flags that make one world of all pods.
Limits: a launcher's configuration file is not read; flags of the command, and ours, override it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ropeteam_trainer.launchers.launch import JobSize
from ropeteam_trainer.launchers.options import OPTIONS, Options
from ropeteam_trainer.launchers.parsing import LaunchError, Parsed

Arguments = tuple[str, ...]


@dataclass(frozen=True)
class KnownLauncher:
    name: str
    options: Options
    count: str
    """Option for the number of ranks per worker."""
    nodes: str
    """Option for the number of workers."""
    own: Arguments = ()
    """Options in which each pod has a value of its own, or that of pod 0."""
    join: Callable[[Parsed, JobSize], Arguments] | None = None
    """Flags that make one world of all pods. None: the launcher starts once per rank."""
    check: Callable[[Parsed, JobSize], None] | None = None
    """Further checks. Raises LaunchError for contradictions to the job."""
    local_rank: str = ""
    """Flag that passes the local rank to a script."""
    unless: str = ""
    """Option that turns this off."""
    counts: Callable[[KnownLauncher, Parsed, int], int | None] | None = None
    """Ranks per worker, for a number of workers, where it is not simply the value of `count`."""

    def processes(self, parsed: Parsed, workers: int) -> int | None:
        """Ranks per worker that the command requests. None: not given, or as many as there are devices.
        Raises LaunchError."""
        if self.counts:
            return self.counts(self, parsed, workers)
        value = parsed.given.get(self.count)
        return None if value in _ALL_DEVICES else parsed.number(self.count)

    def check_against(self, parsed: Parsed, job: JobSize) -> None:
        """Raise LaunchError for a command that contradicts the job. Order: ranks per worker, workers, the
        launcher's own check, options that are set in each pod."""
        count = self.processes(parsed, job.workers)
        if count is not None and count != job.processes:
            flag = f"--{self.count} {parsed.given[self.count]}"
            raise LaunchError(
                f"{flag} requests {_count(count, 'process')} per worker, the job has {job.processes}"
                f" ({job.field}); set that to {count}, or leave the flag out"
            )
        self._check_nodes(parsed, job)
        if self.check:
            self.check(parsed, job)
        for option in self.own:
            if self.join and job.workers > 1 and option in parsed.given:
                raise LaunchError(f"--{option} is set in each pod by Ropeteam; leave it out")

    def _check_nodes(self, parsed: Parsed, job: JobSize) -> None:
        """Check the number of workers, or a range LOW:HIGH of them. -1: not given."""
        nodes = parsed.given.get(self.nodes, "-1")
        low, _, high = nodes.partition(":")
        if not (low.isdecimal() and (high or low).isdecimal()):
            if nodes == "-1":
                return
            raise LaunchError(f"--{self.nodes} {nodes} is not a number; write one, or leave the flag out")
        if self.join and high and low != high:
            raise LaunchError(
                f"--{self.nodes} {nodes} is a range; write {job.workers}, or leave the flag out"
            )
        if not int(low) <= job.workers <= int(high or low):
            raise LaunchError(
                f"--{self.nodes} {nodes}, but the job has {_count(job.workers, 'worker')};"
                f" {job.set_workers} {high or low}, or leave the flag out"
            )


_ALL_DEVICES = (None, "gpu", "cpu", "auto", "xpu", "-1")
"""Values of a count that mean all devices of the pod: as many as the job has."""


def _count(number: int, what: str) -> str:
    """`2 workers`, `1 process`."""
    return f"{number} {what}{'es' if what.endswith('s') else 's'}" if number != 1 else f"1 {what}"


# Checks raise LaunchError. Join flags are templates of Rendezvous's fields, filled in by Launch.pod_argv().

# ---- torch


def _check_torchrun(parsed: Parsed, job: JobSize) -> None:
    if "standalone" in parsed.given and job.workers > 1:
        raise LaunchError(
            f"--standalone makes each worker a separate world, but the job has {job.workers} workers;"
            " leave it out"
        )
    if "virtual-local-rank" in parsed.given and job.processes > 1:
        raise LaunchError("--virtual-local-rank is not supported: each rank has its LOCAL_RANK; leave it out")
    if {"module", "no-python"} <= parsed.given.keys() and "run-path" not in parsed.given:
        raise LaunchError("--module and --no-python exclude each other; leave one out")


def _check_torch_launch(parsed: Parsed, job: JobSize) -> None:
    _check_torchrun(parsed, job)
    if "no-python" in parsed.given and "use-env" not in parsed.given:
        raise LaunchError("--no-python needs --use-env; add it")


TORCHRUN = KnownLauncher("torchrun", OPTIONS["torchrun"], "nproc-per-node", "nnodes", check=_check_torchrun)
TORCH_LAUNCH = replace(
    TORCHRUN,
    name="torch.distributed.launch",
    options=replace(OPTIONS["torchrun"], switches=f"{OPTIONS['torchrun'].switches} --use-env|--use_env"),
    check=_check_torch_launch,
    local_rank="--local-rank",
    unless="use-env",
)


# ---- deepspeed


def _check_deepspeed(parsed: Parsed, job: JobSize) -> None:
    if "autotuning" in parsed.given:
        raise LaunchError(
            "--autotuning starts many training runs, one after the other; run it outside of the job, once"
        )
    if "exclude" in parsed.given:
        raise LaunchError(
            "--exclude is not supported; set spec.gpusPerWorker or spec.processesPerWorker instead"
        )
    if {"module", "no-python"} <= parsed.given.keys():
        raise LaunchError("--module and --no_python exclude each other; leave one out")
    host, _, slots = parsed.given.get("include", "localhost").partition(":")
    if host != "localhost" or (slots and len(slots.split(",")) != job.processes):
        raise LaunchError(
            "--include names other ranks than those of the job; leave it out, and set spec.workers and"
            " spec.processesPerWorker"
        )


DEEPSPEED = KnownLauncher(
    "deepspeed",
    OPTIONS["deepspeed"],
    "num-gpus",
    "num-nodes",
    check=_check_deepspeed,
    local_rank="--local_rank",
    unless="no-local-rank",
)


# ---- accelerate


def _accelerate_processes(launcher: KnownLauncher, parsed: Parsed, workers: int) -> int | None:
    """Ranks per worker: accelerate counts those of all workers."""
    total = parsed.number(launcher.count)
    if total is None or total % workers == 0:
        return None if total is None else total // workers
    raise LaunchError(
        f"--num-processes {total} counts all ranks, and is not a multiple of the {workers} workers; write a "
        "multiple, or leave the flag out"
    )


def _check_accelerate(parsed: Parsed, job: JobSize) -> None:
    if "mpirun-hostfile" in parsed.given:
        raise LaunchError(
            "--mpirun-hostfile starts processes in other pods, which is not allowed; leave it out"
        )
    if "cpu" in parsed.given and job.processes > 1:
        raise LaunchError(
            f"--cpu starts one process per pod, the job has {job.processes} per worker; set"
            " spec.processesPerWorker to 1, or start the script with torchrun"
        )
    if parsed.given.get("deepspeed-multinode-launcher", "standard") != "standard":
        raise LaunchError("--deepspeed-multinode-launcher starts processes in other pods; set it to standard")


def _accelerate_join_flags(parsed: Parsed, job: JobSize) -> Arguments:
    return (
        *(
            "--num_machines",
            str(job.workers),
            "--num_processes",
            str(job.ranks),
            "--machine_rank",
            "{node_rank}",
        ),
        *("--main_process_ip", "{address}", "--main_process_port", "{port}"),
        *("--deepspeed_multinode_launcher", "standard") * ("use-deepspeed" in parsed.given),
    )


ACCELERATE = KnownLauncher(
    "accelerate",
    OPTIONS["accelerate"],
    "num-processes",
    "num-machines",
    own=("machine-rank", "main-process-ip", "main-process-port", "rdzv-backend"),
    join=_accelerate_join_flags,
    check=_check_accelerate,
    counts=_accelerate_processes,
)


# ---- fabric, composer, tune


def _fabric_processes(launcher: KnownLauncher, parsed: Parsed, _: int) -> int | None:
    """Ranks per worker: fabric takes a number of devices, or a list of their indices."""
    value = parsed.given.get(launcher.count)
    if value and "," in value:
        return len([number for number in value.split(",") if number])
    return None if value in _ALL_DEVICES else parsed.number(launcher.count)


def _fabric_join_flags(_: Parsed, job: JobSize) -> Arguments:
    return (
        *("--devices", str(job.processes), "--num-nodes", str(job.workers), "--node-rank", "{node_rank}"),
        *("--main-address", "{address}", "--main-port", "{port}"),
    )


def _check_composer(parsed: Parsed, job: JobSize) -> None:
    total = parsed.number("world-size")
    if total not in (None, job.ranks):
        raise LaunchError(f"--world_size {total}, but the job has {job.ranks} ranks; leave it out")


def _composer_join_flags(_: Parsed, job: JobSize) -> Arguments:
    return (
        *("--nproc", str(job.processes), "--world_size", str(job.ranks), "--node_rank", "{node_rank}"),
        *("--master_addr", "{address}", "--master_port", "{port}"),
    )


def _tune_join_flags(parsed: Parsed, job: JobSize) -> Arguments:
    if parsed.rest[0].endswith("_single_device"):  # a recipe that starts no ranks
        return ()
    return (
        *("--nnodes", str(job.workers), "--nproc-per-node", str(job.processes), "--node-rank", "{node_rank}"),
        *("--rdzv-backend", "static", "--rdzv-endpoint", "{address}:{port}"),  # without: standalone
    )


FABRIC = KnownLauncher(
    "fabric",
    OPTIONS["fabric"],
    "devices",
    "num-nodes",
    own=("node-rank", "main-address", "main-port"),
    join=_fabric_join_flags,
    counts=_fabric_processes,
)
COMPOSER = KnownLauncher(
    "composer",
    OPTIONS["composer"],
    "nproc",
    "",
    own=("base-rank", "node-rank", "master-addr", "master-port"),
    join=_composer_join_flags,
    check=_check_composer,
)
TUNE = replace(
    TORCHRUN,
    name="tune",
    own=("node-rank", "master-addr", "master-port", "rdzv-backend", "rdzv-endpoint"),
    join=_tune_join_flags,
)

PROGRAMS: Mapping[Arguments, KnownLauncher] = {
    ("torchrun",): TORCHRUN,
    ("deepspeed",): DEEPSPEED,
    ("deepspeed.pt",): DEEPSPEED,
    ("accelerate", "launch"): ACCELERATE,
    ("accelerate-launch",): ACCELERATE,
    ("fabric", "run"): FABRIC,
    ("lightning", "run"): FABRIC,
    ("composer",): COMPOSER,
    ("tune", "run"): TUNE,
}
MODULES: Mapping[Arguments, KnownLauncher] = {
    ("torch.distributed.run",): TORCHRUN,
    ("torch.distributed.launch",): TORCH_LAUNCH,
    ("deepspeed.launcher.runner",): DEEPSPEED,
    ("accelerate.commands.launch",): ACCELERATE,
    ("accelerate.commands.accelerate_cli", "launch"): ACCELERATE,
    ("lightning.fabric.cli",): FABRIC,
    ("lightning_fabric.cli",): FABRIC,
    ("composer",): COMPOSER,
    ("composer.cli",): COMPOSER,
    ("composer.cli.launcher",): COMPOSER,
    ("torchtune._cli.tune", "run"): TUNE,
}
OF_OTHER_HOSTS = ("mpirun", "mpiexec", "mpiexec.hydra", "srun", "horovodrun")
"""Launchers that start processes in other pods, which no pod may."""
