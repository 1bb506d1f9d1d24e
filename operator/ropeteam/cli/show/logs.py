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
from ropeteam.cli.show.follow import POLL_SECONDS, JobPoller, missing_job_error
from ropeteam.controller.cache import parsing
from ropeteam.controller.client.apiclient import ApiClient, ApiError, Object, ObjectRef
from ropeteam.core.seen import names

ShowText = Callable[[str], None]
"""Prints one or more lines, given without the newline at the end."""
_FOLLOWED = {"container": "trainer", "follow": "true"}
LAST_SECONDS = 10.0
"""Silence of all streams after which the logs of an ended job are waited for no longer."""


def parse_ranks(text: str) -> str:
    """The option's text, unchanged: a rank's number, `all` or `none`. Raises InvalidInput for another one."""
    if text not in ("all", "none") and not text.isdecimal():
        raise InvalidInput(f"{text!r} is not a rank; use a number from 0, or all")
    return text


def lines_of_ranks(lines: list[str], ranks: str) -> list[str]:
    """Lines that these ranks have printed, for `ranks` as parse_ranks returns it. All ranks: with the prefix
    that tells them apart. Lines of the agent itself are left out."""
    if ranks == "all":
        return [line for line in lines if line.startswith("[rank ")]
    prefix = f"[rank {ranks}] "
    return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]


class JobLogs:
    """Logs of one job: a stream for each of its pods, as they appear. `folder`: for a file of each pod."""

    def __init__(
        self, client: ApiClient, poller: JobPoller, ranks: str, show: ShowText, folder: Path | None = None
    ) -> None:
        self._client, self._poller = client, poller
        self._ranks, self._show, self._folder = ranks, show, folder
        self._streams: dict[str, asyncio.Task[None]] = {}
        """Streams by the pod's UID."""
        self._received = 0
        """Bytes of all streams."""

    async def follow(self) -> None:
        """Start streams of new pods, until cancelled; then all streams end. An API server that does not
        answer is polled again."""
        try:
            while True:
                with suppress(ApiError, aiohttp.ClientError, TimeoutError):
                    self._start_streams(await self._poller.fetch_pods())
                await asyncio.sleep(POLL_SECONDS)
        finally:
            for stream in self._streams.values():
                stream.cancel()

    async def finish(self) -> None:
        """After the end of the job: wait until all streams have ended, with those of pods that follow() has
        not seen. After LAST_SECONDS without a byte, print the names of the pods that are left, and return."""
        with suppress(ApiError, aiohttp.ClientError, TimeoutError):
            self._start_streams(await self._poller.fetch_pods())
        pending = set(self._streams.values())
        while pending:
            before = self._received
            _, pending = await asyncio.wait(pending, timeout=LAST_SECONDS)
            if pending and self._received == before:
                left = ", ".join(sorted(each.get_name() for each in pending))
                self._show(
                    f"ropeteam: the log of pod {left} has not ended, but has had no output for "
                    f"{LAST_SECONDS:g} s; the rest is not shown: kubectl logs -n {self._poller.namespace} "
                    "POD -c trainer"
                )
                return

    def _start_streams(self, pods: list[Object]) -> None:
        """Start a stream for each pod that has none and whose container has started. Until then the API
        server refuses its log."""
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if uid not in self._streams and _has_started(pod):
                self._streams[uid] = asyncio.create_task(self._show_pod(pod), name=pod["metadata"]["name"])

    async def _show_pod(self, pod: Object) -> None:
        """Show the lines of the wanted ranks of one pod until its log ends. A log that breaks off is reported
        as a line; that of a deleted pod ends silently."""
        name = pod["metadata"]["name"]
        try:
            async for lines in self._follow_log(name):
                if found := lines_of_ranks(lines, self._ranks):
                    self._show("\n".join(found))
        except ApiError:
            return  # the pod is gone
        except (aiohttp.ClientError, OSError) as error:
            why = str(error) or type(error).__name__
            self._show(
                f"ropeteam: the log of pod {name} was interrupted ({why}); for the rest: "
                f"kubectl logs -n {self._poller.namespace} {name} -c trainer"
            )

    async def _follow_log(self, name: str) -> AsyncIterator[list[str]]:
        """Follow a pod's log and yield its complete lines, in batches; the last line may be without an end.
        Each chunk is written to the pod's file first, if there is a folder. Raises ApiError, connection
        errors."""
        path = ObjectRef("Pod", self._poller.namespace, name, "log").path
        file = (self._folder / f"{name}.log").open("wb") if self._folder else None
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


def _has_started(pod: Object) -> bool:
    """Whether its trainer container has started, and so may have written."""
    rows = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(row["name"] == "trainer" and "waiting" not in (row.get("state") or {}) for row in rows)


async def follow_logs(client: ApiClient, poller: JobPoller, ranks: str, show: ShowText) -> None:
    """Show logs until the job has ended, was not accepted, or is deleted. Raises InvalidInput if there is no
    such job at first."""
    await _fetch_existing_job(poller)
    logs = JobLogs(client, poller, ranks, show)
    following = asyncio.create_task(logs.follow())
    try:
        async for _ in poller.views():
            if following.done():
                following.result()  # it ends with an error only, which is raised here
        await logs.finish()
    finally:
        following.cancel()


async def print_logs(poller: JobPoller, ranks: str, attempt: int | None, show: ShowText) -> None:
    """Show the output of an attempt's pods until now; if all are deleted, the incidents that status has of
    it.

    attempt: None is the newest. Raises InvalidInput: no such job or attempt, or nothing to show.
    """
    job = await _fetch_existing_job(poller)
    status = JobStatus.model_validate(job.get("status") or {})
    wanted = status.attempt if attempt is None else attempt
    if wanted > status.attempt:
        raise InvalidInput(
            f"the TrainingJob {poller.name} has had no attempt {wanted}; its newest is {status.attempt}"
        )
    pods = _sorted_by_slot(await poller.fetch_pods())
    found = [pod for pod in pods if _attempt_of(pod, status.attempt) == wanted]
    for pod in found:
        text = await poller.fetch_log(pod["metadata"]["name"])
        if lines := lines_of_ranks(text.split("\n"), ranks):
            show("\n".join(lines))
    if not found:
        for line in _recorded_incident_lines(job, status, wanted):
            show(line)


async def _fetch_existing_job(poller: JobPoller) -> Object:
    """Fetch the object. Raises InvalidInput if there is none."""
    job = await poller.fetch_job()
    if job is None:
        raise missing_job_error(poller.namespace, poller.name)
    return job


def _sorted_by_slot(pods: list[Object]) -> list[Object]:
    """Pods in the order of slots; of several in one slot the older first."""
    return sorted(
        pods,
        key=lambda pod: (int(parsing.label(pod, names.SLOT)), int(parsing.label(pod, names.INCARNATION))),
    )


def _attempt_of(pod: Object, newest: int) -> int:
    """Attempt of a pod, by its label. A pod that an earlier release created has none: it is of the newest."""
    text = parsing.label(pod, names.ATTEMPT)
    return int(text) if text.isdecimal() else newest


def _recorded_incident_lines(job: Object, status: JobStatus, attempt: int) -> Iterator[str]:
    """Lines with the incidents that status has of an attempt whose pods are deleted, their last lines
    included. Raises InvalidInput if there are none. attempt: 0 is a job that has not started."""
    policy = (job.get("spec") or {}).get("cleanPodPolicy", "Running")
    recorded = [each for each in status.incidents if each.attempt == attempt]
    gone = (
        f"the pods of attempt {attempt} are deleted, and their logs with them "
        f"(spec.cleanPodPolicy is {policy})"
    )
    if not recorded:
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        if attempt:
            raise InvalidInput(f"{gone}; status.incidents has none of this attempt")
        raise InvalidInput(
            f"the TrainingJob {name} has not started yet; to see why: ropeteam explain {name} -n {namespace}"
        )
    yield f"{gone}; status.incidents contains:"
    for each in recorded:
        yield from (f"  {line}" for line in f"{each.id}: {each.cause}: {each.message}".splitlines())
