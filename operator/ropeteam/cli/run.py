"""`ropeteam run`: a cluster, an operator and one job, from start to end, in one command."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from rich.console import Console

from ropeteam.cli.connect import connected
from ropeteam.cli.errors import CommandFailed
from ropeteam.cli.localstack import LocalStack, PrintLine
from ropeteam.cli.manifest import localvolumes
from ropeteam.cli.manifest.apply import apply, make_namespace
from ropeteam.cli.manifest.read import Manifest
from ropeteam.cli.show.follow import JobPoller
from ropeteam.cli.show.jobview import JobView
from ropeteam.cli.show.logs import Logs
from ropeteam.cli.show.report import report
from ropeteam.cli.show.screen import Screen, screen
from ropeteam.controller.client.apiclient import ApiClient, ApiError, Object, ObjectRef

_FINAL_READ_SECONDS = 10.0

Alongside = Callable[[ApiClient, JobPoller], Awaitable[None]]
"""Coroutine that runs while the job trains."""


@dataclass(frozen=True)
class JobResult:
    """Final state of a job."""

    view: JobView
    job: Object
    first_slot_log: str

    @property
    def exit_code(self) -> int:
        if self.view.complete:
            return 0
        return 2 if self.view.refused else 1


async def train(
    manifest: Manifest,
    local: LocalStack,
    console: Console,
    keep: bool,
    alongside: Alongside | None = None,
    ranks: str = "none",
) -> JobResult:
    """Run a job to its end. `ranks`: the ranks whose output is shown (logs.ranks). Raises CommandFailed when
    the cluster does not start, or the job is deleted meanwhile."""
    with screen(console) as shown:
        async with AsyncExitStack() as stack:
            await _start(local, shown.print_line, manifest)
            client = await stack.enter_async_context(connected(local.kubeconfig))
            await make_namespace(client, manifest.namespace)
            await apply(client, localvolumes.with_claims(manifest), Path.cwd())
            for line in localvolumes.claim_lines(manifest, local.home):
                shown.print_line(line)
            poller = JobPoller(client, manifest.namespace, manifest.name)
            folder = _create_log_folder(
                local.home / "logs" / manifest.namespace / manifest.name, shown.print_line
            )
            logs = Logs(client, poller, ranks, shown.print_output, folder)
            try:
                result = await _run_to_the_end(local, poller, client, shown, logs, alongside)
            except asyncio.CancelledError:
                await _report_interrupted(poller, local.home, shown, folder)
                raise
            failure = await _failure_lines(result, poller)
            hints = localvolumes.hints(result.job, failure, local.home)
            for line in [*report(result.job, local.home), *failure, *(f"  {hint}" for hint in hints)]:
                shown.print_line(line)
            shown.print_line(f"  logs of all ranks: {folder}")
            if keep:
                shown.print_line(f"export KUBECONFIG={local.kubeconfig}\nthe cluster runs until Ctrl-C")
                await local.cluster_ended()
            return result


async def _start(local: LocalStack, print_line: PrintLine, manifest: Manifest) -> None:
    """Start the cluster. Raises CommandFailed; if another cluster runs there and has a job of this name: with
    it."""
    try:
        await local.begin(print_line)
    except CommandFailed as error:
        with suppress(ApiError, aiohttp.ClientError, OSError, TimeoutError):
            async with asyncio.timeout(_FINAL_READ_SECONDS), connected(local.kubeconfig) as client:
                existing = await client.get(ObjectRef.of(manifest.job))
                state = (existing.get("status") or {}).get("state") or "present"
                raise CommandFailed(
                    f"{error}\n  a job {manifest.name} is {state} in it: ropeteam watch {manifest.name} "
                    f"-n {manifest.namespace} --home {local.home}"
                ) from None
        raise


async def _report_interrupted(poller: JobPoller, home: Path, shown: Screen, logs: Path) -> None:
    """Report the state of an interrupted job: its files stay, and a later run resumes from them."""
    with suppress(ApiError, aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(_FINAL_READ_SECONDS):
            if job := await poller.job():
                for line in report(job, home):
                    shown.print_line(line)
    shown.print_line(f"  interrupted; logs of all ranks: {logs}")


def _create_log_folder(folder: Path, print_line: PrintLine) -> Path:
    """Create an empty folder. Logs of the previous run of that name are moved beside it, over older ones."""
    if folder.exists():
        previous = folder.with_name(f"{folder.name}.previous")  # no job has a dot in its name
        shutil.rmtree(previous, ignore_errors=True)
        folder.rename(previous)
        print_line(f"logs of the previous run: {previous}")
    folder.mkdir(parents=True)
    return folder


async def _run_to_the_end(
    local: LocalStack,
    poller: JobPoller,
    client: ApiClient,
    shown: Screen,
    logs: Logs,
    alongside: Alongside | None,
) -> JobResult:
    """Wait for the job's end. Raises CommandFailed if anything else ends first."""
    watching = asyncio.create_task(_watch(poller, shown, logs))
    ended = asyncio.create_task(local.cluster_ended())
    tasks: list[asyncio.Task[object]] = [watching, ended, asyncio.create_task(logs.follow())]
    if alongside is not None:
        tasks.append(asyncio.ensure_future(alongside(client, poller)))
    try:
        pending: set[asyncio.Task[object]] = set(tasks)
        while not watching.done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if ended in done:
                raise CommandFailed(f"the local cluster ended: {local.log_tail('cluster')}")
            for task in done:
                task.result()
        return watching.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(poller: JobPoller, shown: Screen, logs: Logs) -> JobResult:
    last: JobView | None = None
    async for last in poller.views():
        shown.show(last)
    await logs.end()
    job = await poller.job()
    if last is None or job is None or not (last.finished or last.refused):
        raise CommandFailed(f"the job {poller.name} was deleted while it ran")
    return JobResult(last, job, await poller.last_lines(0))


async def _failure_lines(result: JobResult, poller: JobPoller) -> list[str]:
    """Reason of the failure, and the last lines of the script."""
    seen = result.view
    if seen.complete:
        return []
    lines = [f"  {seen.reason}: {seen.why}"]
    if seen.incidents and "\n" in seen.incidents[-1].message:
        return [*lines, *(f"    {line}" for line in seen.incidents[-1].message.split("\n")[1:])]
    slot = seen.incidents[-1].slot if seen.incidents else 0
    return [*lines, *(f"    {line}" for line in (await poller.last_lines(slot)).split("\n") if line)]
