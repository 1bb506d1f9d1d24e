"""Commands. Each imports its modules when it runs, so that `ropeteam --help` is quick.

The docstring of a command is its help.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import click

_HOME = click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    default=lambda: os.environ.get("ROPETEAM_HOME") or Path.home() / ".local" / "state" / "ropeteam",
    help="State folder.  [default: $ROPETEAM_HOME, or ~/.local/state/ropeteam]",
)
_KUBECONFIG = click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Kubeconfig of the cluster.  [default: $KUBECONFIG, the local cluster, or ~/.kube/config]",
)
_NAMESPACE = click.option(
    "-n", "--namespace", default="default", show_default=True, help="Namespace of the job."
)


def _complete_job_name(context: click.Context, _: click.Parameter, prefix: str) -> list[str]:
    from ropeteam.cli import complete

    return complete.job_names(context, prefix)


_JOB = click.argument("job", shell_complete=_complete_job_name)
_MANIFEST = click.Path(path_type=Path, exists=True, dir_okay=False)


class _TakesCommand(click.Command):
    """Command of ours with a command of the user among its arguments, whose options must not be taken for
    ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does. Raises InvalidInput before that where `--` is missing."""
        from ropeteam.cli.manifest import usage

        options = (each for each in self.params if isinstance(each, click.Option))
        takes_value = {name: not each.is_flag for each in options for name in each.opts}
        if problem := usage.dashes_message(args, takes_value, ctx.info_name):
            from ropeteam.cli import errors

            raise errors.InvalidInput(problem)
        return super().parse_args(ctx, args)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ropeteam")
def cli() -> None:
    """Train PyTorch models on a team of workers, and resume where training was when one of them fails."""


@cli.command(cls=_TakesCommand)
@click.argument("arguments", nargs=-1, required=True, metavar="MANIFEST | [-n N] -- COMMAND...")
@click.option(
    "-n", "--workers", type=click.IntRange(min=1), help="Number of workers, instead of spec.workers."
)
@click.option(
    "--logs", "ranks", default="0", show_default=True, metavar="RANK|all|none", help="Ranks to print."
)
@_HOME
@click.option("--keep", is_flag=True, help="Keep the cluster up after the job has ended, until Ctrl-C.")
def run(arguments: tuple[str, ...], workers: int | None, ranks: str, home: Path, keep: bool) -> None:
    """Run a job on this machine, and show its progress until it ends.

    A job is a manifest, or a command: ropeteam run -n 2 -- torchrun train.py. The output of rank 0 is
    printed; the output of all ranks and the checkpoints stay in the state folder. Exit status 0: the job is
    Complete.
    """
    from ropeteam.cli.asyncrun import run_interruptible
    from ropeteam.cli.localstack import LocalStack

    async def run_on_local_cluster() -> int:
        """Returns the exit code."""
        async with LocalStack(home) as local:  # its processes import their modules while we import ours
            from rich.console import Console

            from ropeteam.cli.manifest.read import read_arguments
            from ropeteam.cli.run import run_job
            from ropeteam.cli.show import logs

            shown = logs.parse_ranks(ranks)
            manifest = read_arguments(arguments, workers)
            return (await run_job(manifest, local, Console(), keep, ranks=shown)).exit_code

    raise SystemExit(run_interruptible(run_on_local_cluster()))


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("manifest", type=_MANIFEST)
@_KUBECONFIG
@_HOME
def submit(folder: Path, manifest: Path, kubeconfig: Path | None, home: Path) -> None:
    """Create a job in a cluster, with the FOLDER of its code.

    The folder becomes a ConfigMap of this job, up to 1 MB, and the working directory of its command. Hidden
    files, large files, links and keys are left out, and listed.
    """
    from ropeteam.cli.asyncrun import run_interruptible
    from ropeteam.cli.connect import connected, kubeconfig_file
    from ropeteam.cli.manifest.read import read_manifest
    from ropeteam.cli.submit import submit

    async def create_objects() -> None:
        async with connected(kubeconfig_file(kubeconfig, home)) as client:
            await submit(client, read_manifest(manifest), folder, click.echo)

    run_interruptible(create_objects())


@cli.command("logs")
@_JOB
@click.option("--rank", "ranks", default="all", show_default=True, metavar="RANK|all", help="Ranks to print.")
@click.option("--attempt", type=click.IntRange(min=1), help="Number of the attempt.  [default: the newest]")
@click.option("-f", "--follow", is_flag=True, help="Continue until the job has ended; wait for its pods.")
@_NAMESPACE
@_KUBECONFIG
@_HOME
def show_logs(
    job: str,
    ranks: str,
    attempt: int | None,
    follow: bool,
    namespace: str,
    kubeconfig: Path | None,
    home: Path,
) -> None:
    """Print the output of the ranks of JOB.

    For deleted pods: their last lines, as far as the job's status contains them.
    """
    from ropeteam.cli import errors
    from ropeteam.cli.asyncrun import run_interruptible
    from ropeteam.cli.connect import connected, kubeconfig_file
    from ropeteam.cli.show import logs
    from ropeteam.cli.show.follow import JobPoller

    shown = logs.parse_ranks(ranks)
    if follow and attempt is not None:
        raise errors.InvalidInput("--follow shows the newest attempt; leave out --attempt")

    async def print_logs() -> None:
        """Print until now, or with --follow until the job has ended."""
        async with connected(kubeconfig_file(kubeconfig, home)) as client:
            poller = JobPoller(client, namespace, job)
            if follow:
                await logs.follow_logs(client, poller, shown, click.echo)
            else:
                await logs.print_logs(poller, shown, attempt, click.echo)

    run_interruptible(print_logs())


@cli.command()
@_HOME
def up(home: Path) -> None:
    """Start a local cluster with its operator, for kubectl."""
    import asyncio
    from contextlib import suppress

    from ropeteam.cli.asyncrun import run_interruptible
    from ropeteam.cli.localstack import LocalStack

    async def stay_up() -> None:
        """Keep the cluster up until Ctrl-C. Raises CommandFailed if it exits by itself."""
        async with LocalStack(home) as local:
            await local.start(click.echo)
            click.echo(f"export KUBECONFIG={local.kubeconfig}")
            click.echo("In another terminal, after that line: kubectl apply -f job.yaml; ropeteam watch JOB")
            click.echo("Ctrl-C stops the cluster and everything in it.")
            with suppress(asyncio.CancelledError):  # Ctrl-C is the normal end: exit status 0
                raise await local.wait_for_cluster_exit()

    run_interruptible(stay_up())


@cli.command()
@_JOB
@_NAMESPACE
@_KUBECONFIG
@_HOME
def watch(job: str, namespace: str, kubeconfig: Path | None, home: Path) -> None:
    """Show the progress of JOB, live, until it has ended. Exit status 0: Complete."""
    from rich.console import Console

    from ropeteam.cli import errors
    from ropeteam.cli.asyncrun import run_interruptible
    from ropeteam.cli.connect import connected, kubeconfig_file
    from ropeteam.cli.show.follow import JobPoller, missing_job_error
    from ropeteam.cli.show.screen import screen_for
    from ropeteam.cli.show.summary import summary_lines

    async def follow_job() -> bool:
        """Returns whether the job is Complete; False if it has failed or was not accepted."""
        async with connected(kubeconfig_file(kubeconfig, home)) as client:
            poller, last = JobPoller(client, namespace, job), None
            with screen_for(Console()) as shown:
                async for last in poller.views():
                    shown.show(last)
                found = await poller.fetch_job()
                for line in summary_lines(found, None) if found else ():
                    shown.print_line(line)
        if last is None:
            raise missing_job_error(namespace, job)
        if not (last.finished or last.refused):
            raise errors.CommandFailed(f"the TrainingJob {job} in namespace {namespace} was deleted")
        return last.complete

    raise SystemExit(0 if run_interruptible(follow_job()) else 1)


@cli.command()
@_JOB
@_NAMESPACE
@_KUBECONFIG
@_HOME
def snapshot(job: str, namespace: str, kubeconfig: Path | None, home: Path) -> None:
    """Print the operator's observation of JOB, as JSON for `explain`.

    Values of the environment, arguments after --token and similar flags, and foreign annotations are masked.
    The last lines of a failed script are not.
    """
    click.echo(_snapshot_json(job, namespace, kubeconfig, home))


def _snapshot_json(job: str, namespace: str, kubeconfig: Path | None, home: Path) -> str:
    """Read a snapshot of the job from its cluster; notes on what cannot be read go to stderr."""
    from ropeteam.cli.asyncrun import run_interruptible
    from ropeteam.cli.connect import connected, kubeconfig_file
    from ropeteam.cli.show import inspect

    async def read_snapshot() -> Any:
        async with connected(kubeconfig_file(kubeconfig, home)) as client:
            return await inspect.snapshot(client, namespace, job, partial(click.echo, err=True))

    return str(run_interruptible(read_snapshot()).model_dump_json(indent=1))


@cli.command()
@click.argument("job", metavar="JOB | SNAPSHOT", shell_complete=_complete_job_name)
@_NAMESPACE
@_KUBECONFIG
@_HOME
def explain(job: str, namespace: str, kubeconfig: Path | None, home: Path) -> None:
    """Explain the state of a job, and what the operator would do.

    Changes nothing. Reads a job in a cluster, or a snapshot: a file, or `-`.
    """
    from ropeteam.cli.show import inspect

    if job == "-" or Path(job).is_file():
        with click.open_file(job, "rb") as file:
            text = file.read()
    else:
        text = _snapshot_json(job, namespace, kubeconfig, home).encode()
    for line in inspect.explanation(text, job):
        click.echo(line)


@cli.command()
@click.argument("job", shell_complete=_complete_job_name, required=False)
@_NAMESPACE
@_KUBECONFIG
@_HOME
def doctor(job: str | None, namespace: str, kubeconfig: Path | None, home: Path) -> None:
    """Check this machine, a cluster and JOB for problems.

    Changes nothing. Each line has ok, warn or FAIL, an object, its state, and what to do. Objects that you
    may not read are not known. Exit status 1: there is a FAIL.
    """
    from ropeteam.cli.asyncrun import run_interruptible
    from ropeteam.cli.doctor import findings

    async def print_findings() -> bool:
        """Print each as soon as it is known. Returns whether there is a FAIL."""
        failed = False
        async for found in findings(kubeconfig, home, namespace, job):
            click.echo(str(found))
            failed |= found.level == "FAIL"
        return failed

    raise SystemExit(1 if run_interruptible(print_findings()) else 0)


@cli.command()
@click.argument("manifest", type=_MANIFEST)
def validate(manifest: Path) -> None:
    """Validate a manifest, field by field. Exit status 2: it is invalid."""
    from ropeteam.api import commands
    from ropeteam.api.job import TrainingJobSpec
    from ropeteam.cli import errors
    from ropeteam.cli.manifest.read import has_image, read_manifest

    read = read_manifest(manifest)
    if not has_image(read.job):
        raise errors.InvalidInput(
            f"{manifest}: spec.image is missing, and a cluster refuses pods without one (`ropeteam run` on "
            "this machine does not need it); set it to an image with Python 3.10 and your packages"
        )
    click.echo(f"{manifest}: TrainingJob {read.name} is valid")
    for note in commands.notes(TrainingJobSpec.model_validate(read.job["spec"])):
        click.echo(f"  {note}")


@cli.command(cls=_TakesCommand)
@click.argument("arguments", nargs=-1, required=True, metavar="MANIFEST... | [-n N] -- COMMAND...")
@click.option(
    "-n", "--workers", type=click.IntRange(min=1), help="Number of workers, instead of spec.workers."
)
@click.option(
    "--timeout-seconds",
    type=click.IntRange(min=1),
    default=120,
    show_default=True,
    help="Time for the script to reach job.wrap().",
)
def plan(arguments: tuple[str, ...], workers: int | None, timeout_seconds: int) -> None:
    """Predict the cost of a job, or of several side by side.

    Ranks, memory, messages and batch, but not time. Runs the script on this machine up to job.wrap(), as one
    rank without communication and with a model that takes no memory. Exit status 2: the job is invalid.
    """
    from ropeteam.cli.manifest.read import manifests_of_arguments
    from ropeteam.cli.planning import planned

    planned.print_plans(manifests_of_arguments(arguments, workers), timeout_seconds)


@cli.command()
@click.argument("checkpoint", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def export(checkpoint: Path, file: Path) -> None:
    """Write a CHECKPOINT as one FILE of plain PyTorch.

    In a folder of several checkpoints, the newest. torch.load(FILE) returns the step, and the state of each
    object under its name in restore().
    """
    import subprocess
    import sys

    command = [sys.executable, "-m", "ropeteam_trainer.checkpoint.export", str(checkpoint), str(file)]
    raise SystemExit(subprocess.run(command, check=False).returncode)


@cli.command()
def crd() -> None:
    """Print the CustomResourceDefinition, for `kubectl apply -f -`."""
    from ropeteam.api.crd import to_yaml

    click.echo(to_yaml(), nl=False)


@cli.command()
def schema() -> None:
    """Print the JSON Schema of a manifest, for editors."""
    from ropeteam.api import editor

    click.echo(editor.to_json(), nl=False)


def kubectl_plugin() -> None:
    """`kubectl ropeteam`: kubectl runs the program `kubectl-ropeteam` that it finds on PATH."""
    cli(prog_name="kubectl ropeteam")
