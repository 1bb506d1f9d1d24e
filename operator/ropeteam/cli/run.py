"""`ropeteam run`: a cluster, an operator and one job, from start to end, in one command."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from rich.console import Console

from ropeteam.cli.connect import connected
from ropeteam.cli.errors import CommandFailed
from ropeteam.cli.localstack import LocalStack, PrintLine
from ropeteam.cli.manifest import localvolumes
from ropeteam.cli.manifest.apply import apply_manifest, create_namespace
from ropeteam.cli.manifest.read import Manifest
from ropeteam.cli.show.follow import JobPoller
from ropeteam.cli.show.jobview import JobView
from ropeteam.cli.show.logs import JobLogs
from ropeteam.cli.show.screen import Screen, screen_for
from ropeteam.cli.show.summary import summary_lines
from ropeteam.controller.client.apiclient import ApiClient, ApiError, Object, ObjectRef

_LAST_REQUEST_SECONDS = 10.0
"""Limit of requests that only add to a message: the command is about to end."""

Alongside = Callable[[ApiClient, JobPoller], Awaitable[None]]
"""Coroutine that runs while the job trains."""


@dataclass(frozen=True)
class JobResult:
    """Final state of a job."""

    view: JobView
    job: Object
    first_slot_log: str
    """Last lines of the newest pod of slot 0."""

    @property
    def exit_code(self) -> int:
        """Exit code of `ropeteam run`: 0 Complete, 2 the spec was not accepted, 1 anything else."""
        if self.view.complete:
            return 0
        return 2 if self.view.refused else 1


async def run_job(
    manifest: Manifest,
    local: LocalStack,
    console: Console,
    keep: bool,
    alongside: Alongside | None = None,
    ranks: str = "none",
) -> JobResult:
    """Run a job to its end: start the cluster, create all objects, show progress, print the summary.

    `local` is entered, and not yet started. `ranks`: whose output is shown (logs.parse_ranks). `keep`: when
    the job has ended, wait until the cluster exits or the command is interrupted. Raises InvalidInput when
    the server refuses an object, CommandFailed when the cluster ends or the job is deleted, CancelledError
    when interrupted, after the job's state is printed.
    """
    with screen_for(console) as shown:
        await _start_cluster(local, shown.print_line, manifest)
        async with connected(local.kubeconfig) as client:
            await create_namespace(client, manifest.namespace)
            await apply_manifest(client, localvolumes.with_missing_claims(manifest), Path.cwd())
            for line in localvolumes.claim_lines(manifest, local.home):
                shown.print_line(line)
            poller = JobPoller(client, manifest.namespace, manifest.name)
            folder = _create_log_folder(
                local.home / "logs" / manifest.namespace / manifest.name, shown.print_line
            )
            logs = JobLogs(client, poller, ranks, shown.print_output, folder)
            try:
                result = await _wait_for_result(local, poller, client, shown, logs, alongside)
            except asyncio.CancelledError:
                await _print_interrupted(poller, local.home, shown, folder)
                raise
            failure = await _failure_lines(result, poller)
            hints = localvolumes.path_hints(result.job, failure, local.home)
            for line in [*summary_lines(result.job, local.home), *failure, *(f"  {hint}" for hint in hints)]:
                shown.print_line(line)
            shown.print_line(f"  logs of all ranks: {folder}")
            if keep:
                shown.print_line(f"export KUBECONFIG={local.kubeconfig}\nthe cluster runs until Ctrl-C")
                shown.print_line((await local.wait_for_cluster_exit()).message)
            return result


async def _start_cluster(local: LocalStack, print_line: PrintLine, manifest: Manifest) -> None:
    """Start the cluster. Raises CommandFailed; if that is because another cluster runs in this home, and has
    a job of the same name, the message shows that job's state."""
    try:
        await local.start(print_line)
    except CommandFailed as error:
        with suppress(ApiError, aiohttp.ClientError, OSError, TimeoutError):
            async with asyncio.timeout(_LAST_REQUEST_SECONDS), connected(local.kubeconfig) as client:
                existing = await client.get(ObjectRef.of(manifest.job))
                state = (existing.get("status") or {}).get("state") or "present"
                raise CommandFailed(
                    f"{error}\n  a job {manifest.name} is {state} in it: ropeteam watch {manifest.name} "
                    f"-n {manifest.namespace} --home {local.home}"
                ) from None
        raise


async def _print_interrupted(poller: JobPoller, home: Path, shown: Screen, logs: Path) -> None:
    """Print the state of an interrupted job: its files stay, and a later run resumes from them."""
    with suppress(ApiError, aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(_LAST_REQUEST_SECONDS):
            if job := await poller.fetch_job():
                for line in summary_lines(job, home):
                    shown.print_line(line)
    shown.print_line(f"  interrupted; logs of all ranks: {logs}")


def _create_log_folder(folder: Path, print_line: PrintLine) -> Path:
    """Create this folder, empty, and return it. One of a previous run is renamed to `<name>.previous`; what
    had that name is deleted."""
    if folder.exists():
        previous = folder.with_name(f"{folder.name}.previous")  # no job has a dot in its name
        shutil.rmtree(previous, ignore_errors=True)
        folder.rename(previous)
        print_line(f"logs of the previous run: {previous}")
    folder.mkdir(parents=True)
    return folder


async def _wait_for_result(
    local: LocalStack,
    poller: JobPoller,
    client: ApiClient,
    shown: Screen,
    logs: JobLogs,
    alongside: Alongside | None,
) -> JobResult:
    """Show the job and its logs until it has ended; at the end all tasks are cancelled.

    Raises CommandFailed when the cluster exits first, and what any task raises. `alongside` may return
    earlier.
    """
    watching = asyncio.create_task(_show_until_ended(poller, shown, logs))
    cluster_exit = asyncio.create_task(local.wait_for_cluster_exit())
    tasks: list[asyncio.Task[object]] = [watching, cluster_exit, asyncio.create_task(logs.follow())]
    if alongside is not None:
        tasks.append(asyncio.ensure_future(alongside(client, poller)))
    try:
        pending: set[asyncio.Task[object]] = set(tasks)
        while not watching.done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if cluster_exit in done:
                raise cluster_exit.result()
            for task in done:
                task.result()  # raises its error
        return watching.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _show_until_ended(poller: JobPoller, shown: Screen, logs: JobLogs) -> JobResult:
    """Show each view of the job, then the rest of its logs. Raises CommandFailed: the job was deleted."""
    last: JobView | None = None
    async for last in poller.views():
        shown.show(last)
    await logs.finish()
    job = await poller.fetch_job()
    if last is None or job is None or not (last.finished or last.refused):
        raise CommandFailed(
            f"the job {poller.name} in namespace {poller.namespace} was deleted while it ran, by kubectl or "
            "another client of this cluster"
        )
    return JobResult(last, job, await poller.fetch_last_lines(0))


async def _failure_lines(result: JobResult, poller: JobPoller) -> list[str]:
    """Reason of the failure, and the last lines of the script: those that the last incident has, or else
    those of its pod. Empty for a job that is Complete."""
    view = result.view
    if view.complete:
        return []
    lines = [f"  {view.reason}: {view.why}"]
    if view.incidents and "\n" in view.incidents[-1].message:
        return [*lines, *(f"    {line}" for line in view.incidents[-1].message.split("\n")[1:])]
    slot = view.incidents[-1].slot if view.incidents else 0
    return [*lines, *(f"    {line}" for line in (await poller.fetch_last_lines(slot)).split("\n") if line)]
