"""Output of ranks: from the logs of their pods, as they are written, to the screen and into files.

An agent forwards each line of a rank as `[rank N] line`. For one rank the prefix is left out: the output is
shown as the script printed it. A file has all output of a container.
Limits: a command that runs once per pod (`accelerate launch`, a shell) has one output, that of the pod's
lowest rank. A pod that starts and is deleted within half a second is not seen; a log stream that breaks
off is not resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import aiohttp

from ropeteam.api.status import JobStatus
from ropeteam.cli.errors import InvalidInput
from ropeteam.cli.show.follow import POLL_SECONDS, JobPoller
from ropeteam.controller.cache import parsing
from ropeteam.controller.client.apiclient import ApiClient, ApiError, Object, ObjectRef
from ropeteam.core.seen import names

Show = Callable[[str], None]
"""One or more lines, without the last line's end."""
_FOLLOWED = {"container": "trainer", "follow": "true"}
LAST_SECONDS = 10.0
"""Silence after which the logs of pods of an ended job are waited for no longer."""


def ranks(text: str) -> str:
    """A rank's number, `all` or `none`. Raises InvalidInput."""
    if text not in ("all", "none") and not text.isdecimal():
        raise InvalidInput(f"{text!r} is not a rank; use its number, or all")
    return text


def lines_of_ranks(lines: list[str], ranks: str) -> list[str]:
    """Lines that these ranks have printed."""
    if ranks == "all":
        return [line for line in lines if line.startswith("[rank ")]
    prefix = f"[rank {ranks}] "
    return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]


class Logs:
    """Logs of one job: a stream for each of its pods, as they appear."""

    def __init__(
        self, client: ApiClient, poller: JobPoller, ranks: str, show: Show, keep: Path | None = None
    ) -> None:
        self._client, self._poller = client, poller
        self._ranks, self._show, self._keep = ranks, show, keep
        self._streams: dict[str, asyncio.Task[None]] = {}
        """Streams by the pod's UID."""
        self._received = 0
        """Bytes of all streams."""

    async def follow(self) -> None:
        """Start streams of new pods, until cancelled."""
        try:
            while True:
                with suppress(ApiError, aiohttp.ClientError, TimeoutError):
                    self._start_streams(await self._poller.pods())
                await asyncio.sleep(POLL_SECONDS)
        finally:
            for stream in self._streams.values():
                stream.cancel()

    async def end(self) -> None:
        """Finish after the end of the job: the output of its pods until now is shown, too."""
        with suppress(ApiError, aiohttp.ClientError, TimeoutError):
            self._start_streams(await self._poller.pods())
        pending = set(self._streams.values())
        while pending:
            before = self._received
            _, pending = await asyncio.wait(pending, timeout=LAST_SECONDS)
            if pending and self._received == before:
                names = ", ".join(sorted(each.get_name() for each in pending))
                self._show(f"ropeteam: the log of pod {names} has not ended; the rest is not shown")
                return

    def _start_streams(self, pods: list[Object]) -> None:
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if uid not in self._streams and has_begun(pod):
                self._streams[uid] = asyncio.create_task(self._stream(pod), name=pod["metadata"]["name"])

    async def _stream(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        try:
            async for lines in self._read(name):
                if found := lines_of_ranks(lines, self._ranks):
                    self._show("\n".join(found))
        except ApiError:
            return  # the pod is gone
        except (aiohttp.ClientError, OSError) as error:
            self._show(f"ropeteam: the log of pod {name} was interrupted: {error or type(error).__name__}")

    async def _read(self, name: str) -> AsyncIterator[list[str]]:
        """Fetch lines of a pod, in batches; all of its output goes into its file."""
        path = ObjectRef("Pod", self._poller.namespace, name, "log").path
        file = (self._keep / f"{name}.log").open("wb") if self._keep else None
        partial_line = b""
        try:
            async with self._client.open(path, _FOLLOWED, endless=True) as answer:
                async for chunk in answer.content.iter_any():
                    self._received += len(chunk)
                    if file:
                        file.write(chunk)
                        file.flush()
                    *lines, partial_line = (partial_line + chunk).split(b"\n")
                    yield [line.decode(errors="replace") for line in lines]
                if partial_line:
                    yield [partial_line.decode(errors="replace")]
        finally:
            if file:
                file.close()


def has_begun(pod: Object) -> bool:
    """Whether its trainer container has started, and so may have written."""
    rows = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(row["name"] == "trainer" and "waiting" not in (row.get("state") or {}) for row in rows)


async def follow_logs(client: ApiClient, poller: JobPoller, ranks: str, show: Show) -> None:
    """Show logs until the job has ended. Raises InvalidInput if there is none."""
    await _job(poller)
    logs = Logs(client, poller, ranks, show)
    following = asyncio.create_task(logs.follow())
    try:
        async for _ in poller.views():
            if following.done():
                following.result()
        await logs.end()
    finally:
        following.cancel()


async def print_logs(poller: JobPoller, ranks: str, attempt: int | None, show: Show) -> None:
    """Show the output of an attempt's pods until now (the newest, if none is named); for pods that are gone,
    the incidents that status keeps. Raises InvalidInput if there is nothing."""
    job = await _job(poller)
    status = JobStatus.model_validate(job.get("status") or {})
    wanted = status.attempt if attempt is None else attempt
    if wanted > status.attempt:
        raise InvalidInput(f"{poller.name} has had no attempt {wanted}; its newest is {status.attempt}")
    found = [pod for pod in _by_slot(await poller.pods()) if _attempt(pod, status.attempt) == wanted]
    for pod in found:
        text = await poller.log(pod["metadata"]["name"])
        if lines := lines_of_ranks(text.split("\n"), ranks):
            show("\n".join(lines))
    if not found:
        for line in _recorded_incidents(job, status, wanted):
            show(line)


async def _job(poller: JobPoller) -> Object:
    job = await poller.job()
    if job is None:
        raise InvalidInput(f"there is no TrainingJob {poller.name} in namespace {poller.namespace}")
    return job


def _by_slot(pods: list[Object]) -> list[Object]:
    """Pods in the order of slots; of several in one slot the older first."""
    return sorted(
        pods,
        key=lambda pod: (int(parsing.label(pod, names.SLOT)), int(parsing.label(pod, names.INCARNATION))),
    )


def _attempt(pod: Object, newest: int) -> int:
    """Attempt of a pod. Pods of an earlier release have no such label."""
    text = parsing.label(pod, names.ATTEMPT)
    return int(text) if text.isdecimal() else newest


def _recorded_incidents(job: Object, status: JobStatus, attempt: int) -> Iterator[str]:
    """Incidents that status keeps of an attempt. Raises InvalidInput if there are none."""
    policy = (job.get("spec") or {}).get("cleanPodPolicy", "Running")
    recorded = [each for each in status.incidents if each.attempt == attempt]
    gone = (
        f"the pods of attempt {attempt} are deleted, and their logs with them "
        f"(spec.cleanPodPolicy is {policy})"
    )
    if not recorded:
        raise InvalidInput(gone if attempt else f"{job['metadata']['name']} has not started yet")
    yield f"{gone}; status.incidents contains:"
    for each in recorded:
        yield from (f"  {line}" for line in f"{each.id}: {each.cause}: {each.message}".splitlines())
