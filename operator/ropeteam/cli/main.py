"""The commands. What they need is imported when they run, so that `ropeteam --help` is quick."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

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
    help="Which cluster.  [default: $KUBECONFIG, the local cluster, or ~/.kube/config]",
)
_NAMESPACE = click.option("-n", "--namespace", default="default", show_default=True, help="Of the job.")
_MANIFEST = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ropeteam")
def cli() -> None:
    """Train PyTorch models on a team of workers that goes on from where it was when one of them slips."""


@cli.command()
@click.argument("manifest", type=_MANIFEST)
@_HOME
@click.option("--keep", is_flag=True, help="Leave the cluster up when the job has ended, until Ctrl-C.")
def run(manifest: Path, home: Path, keep: bool) -> None:
    """Run a job on this machine, from start to end, and show how it goes.

    Exit status 0: the job is Complete. Its checkpoints stay in the state folder.
    """
    from rich.console import Console

    from ropeteam.cli import documents, errors
    from ropeteam.cli.run import train

    read = documents.read(manifest)
    raise SystemExit(errors.run(train(read, home, Console(), keep)).exit_code)


@cli.command()
@_HOME
def up(home: Path) -> None:
    """Start a local cluster and its operator, for kubectl to play with, until Ctrl-C."""
    import asyncio
    from contextlib import suppress

    from ropeteam.cli import errors
    from ropeteam.cli.up import LocalStack

    async def stay_up() -> None:
        async with LocalStack(home, click.echo) as local:
            click.echo(f"export KUBECONFIG={local.kubeconfig}")
            click.echo("Ctrl-C ends the cluster and everything in it.")
            with suppress(asyncio.CancelledError):
                await local.cluster_ended()
                raise errors.Trouble(f"the local cluster ended: {local.log_tail('cluster')}")

    errors.run(stay_up())


@cli.command()
@click.argument("job")
@_NAMESPACE
@_KUBECONFIG
@_HOME
def watch(job: str, namespace: str, kubeconfig: Path | None, home: Path) -> None:
    """Show how JOB goes, live, until it has ended. Exit status 0: Complete."""
    from rich.console import Console

    from ropeteam.cli import errors
    from ropeteam.cli.connect import connected, kubeconfig_of
    from ropeteam.cli.follow import Follower
    from ropeteam.cli.report import report
    from ropeteam.cli.screen import screen

    async def look() -> bool:
        async with connected(kubeconfig_of(kubeconfig, home)) as client:
            follower, last = Follower(client, namespace, job), None
            with screen(Console()) as shown:
                async for last in follower.pictures():
                    shown.show(last)
                found = await follower.job()
                for line in report(found, None) if found else ():
                    shown.say(line)
        if last is None:
            raise errors.BadInput(f"there is no TrainingJob {job} in namespace {namespace}")
        return last.complete

    raise SystemExit(0 if errors.run(look()) else 1)


@cli.command()
@click.argument("job")
@_NAMESPACE
@_KUBECONFIG
@_HOME
def snapshot(job: str, namespace: str, kubeconfig: Path | None, home: Path) -> None:
    """Print all that the operator knows about JOB now, as JSON for `ropeteam explain`.

    Values of the environment, words after --token and its like, and foreign annotations are masked. What the
    script said when it failed is not.
    """
    from ropeteam.cli import errors, inspect
    from ropeteam.cli.connect import connected, kubeconfig_of

    async def take() -> Any:
        async with connected(kubeconfig_of(kubeconfig, home)) as client:
            return await inspect.snapshot(client, namespace, job)

    click.echo(errors.run(take()).model_dump_json(indent=1))


@cli.command()
@click.argument("snapshot", type=click.File("rb"))
def explain(snapshot: IO[bytes]) -> None:
    """Say what the operator would do about a saved snapshot, and why. Touches nothing."""
    from ropeteam.cli import inspect

    for line in inspect.explain(snapshot.read(), snapshot.name):
        click.echo(line)


@cli.command()
@click.argument("manifest", type=_MANIFEST)
def validate(manifest: Path) -> None:
    """Say what is wrong with a manifest, field by field. Exit status 2: it cannot work."""
    from ropeteam.api import commands
    from ropeteam.api.job import TrainingJobSpec
    from ropeteam.cli import documents

    read = documents.read(manifest)
    click.echo(f"{manifest}: TrainingJob {read.name} is good")
    for note in commands.notes(TrainingJobSpec.model_validate(read.job["spec"])):
        click.echo(f"  {note}")


@cli.command()
@click.argument("manifest", type=_MANIFEST)
@click.option("--workers", type=click.IntRange(min=1), help="Instead of spec.workers.")
@click.option(
    "--timeout-seconds",
    type=click.IntRange(min=1),
    default=120,
    show_default=True,
    help="For the script to come to job.wrap().",
)
def plan(manifest: Path, workers: int | None, timeout_seconds: int) -> None:
    """Say what a job would cost: its ranks, memory, messages, batch and learning rate.

    Runs the script on this machine up to job.wrap(), as one rank that talks to nobody and with a model that
    takes no memory. Exit status 2: the job cannot work.
    """
    from ropeteam.api.job import TrainingJobSpec
    from ropeteam.cli import documents, rehearse
    from ropeteam.cli.plan import plan_of

    read = documents.read(manifest, workers)
    spec = TrainingJobSpec.model_validate(read.job["spec"])
    for line in plan_of(spec, rehearse.rehearse(spec, Path.cwd(), timeout_seconds)):
        click.echo(line)


@cli.command()
def crd() -> None:
    """Print the CustomResourceDefinition: ropeteam crd | kubectl apply -f -"""
    from ropeteam.api.crd import to_yaml

    click.echo(to_yaml(), nl=False)
