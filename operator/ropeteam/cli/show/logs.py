"""What ranks print: from the logs of their pods, as they are written, to the screen and into files.

An agent forwards each line of a rank as `[rank N] line`. Of one rank, the prefix is left out: what is shown
is what the script printed. A file has all that a container wrote.
Limits: a command that runs once per pod (`accelerate launch`, a shell) has one output, that of the pod's
lowest rank. A pod that begins and is deleted within half a second is not seen; a log that breaks off is not
taken up again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import aiohttp

from ropeteam.api.status import JobStatus
from ropeteam.cli.errors import BadInput
from ropeteam.cli.show.follow import LOOK_SECONDS, Follower
from ropeteam.controller.cache import parsing
from ropeteam.controller.client.apiclient import ApiClient, ApiError, Object, ObjectRef

Show = Callable[[str], None]
"""One or more lines, without the last line's end."""
_FOLLOWED = {"container": "trainer", "follow": "true"}
LAST_SECONDS = 5.0
"""For the logs of pods to end when their job has."""


def ranks(text: str) -> str:
    """A rank's number, `all` or `none`. Raises BadInput."""
    if text not in ("all", "none") and not text.isdecimal():
        raise BadInput(f"{text!r} is no rank: write its number, or all")
    return text


def chosen(lines: list[str], ranks: str) -> list[str]:
    """Those that these ranks have printed."""
    if ranks == "all":
        return [line for line in lines if line.startswith("[rank ")]
    prefix = f"[rank {ranks}] "
    return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]


class Logs:
    """Of one job: a stream for each of its pods, as they appear."""

    def __init__(
        self, client: ApiClient, follower: Follower, ranks: str, show: Show, keep: Path | None = None
    ) -> None:
        self._client, self._follower = client, follower
        self._ranks, self._show, self._keep = ranks, show, keep
        self._streams: dict[str, asyncio.Task[None]] = {}
        """By the pod's UID."""

    async def follow(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                with suppress(ApiError, aiohttp.ClientError, TimeoutError):
                    self._begin(await self._follower.pods())
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for stream in self._streams.values():
                stream.cancel()

    async def end(self) -> None:
        """The job has ended: what its pods have written until now is shown, too."""
        with suppress(ApiError, aiohttp.ClientError, TimeoutError):
            self._begin(await self._follower.pods())
        if self._streams:
            await asyncio.wait(self._streams.values(), timeout=LAST_SECONDS)

    def _begin(self, pods: list[Object]) -> None:
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if uid not in self._streams and has_begun(pod):
                self._streams[uid] = asyncio.create_task(self._stream(pod))

    async def _stream(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        try:
            async for lines in self._read(name):
                if found := chosen(lines, self._ranks):
                    self._show("\n".join(found))
        except ApiError:
            return  # it is gone
        except (aiohttp.ClientError, OSError) as error:
            self._show(f"ropeteam: the log of pod {name} broke off: {error or type(error).__name__}")

    async def _read(self, name: str) -> AsyncIterator[list[str]]:
        """Lines of a pod, in batches; all that it writes goes into its file."""
        path = ObjectRef("Pod", self._follower.namespace, name, "log").path
        file = (self._keep / f"{name}.log").open("wb") if self._keep else None
        rest = b""
        try:
            async with self._client.open(path, _FOLLOWED, endless=True) as answer:
                async for part in answer.content.iter_any():
                    if file:
                        file.write(part)
                        file.flush()
                    *lines, rest = (rest + part).split(b"\n")
                    yield [line.decode(errors="replace") for line in lines]
                if rest:
                    yield [rest.decode(errors="replace")]
        finally:
            if file:
                file.close()


def has_begun(pod: Object) -> bool:
    """Its trainer container has written, or could have."""
    rows = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(row["name"] == "trainer" and "waiting" not in (row.get("state") or {}) for row in rows)


async def followed(client: ApiClient, follower: Follower, ranks: str, show: Show) -> None:
    """Until the job has ended. Raises BadInput if there is none."""
    await _job(follower)
    logs = Logs(client, follower, ranks, show)
    following = asyncio.create_task(logs.follow())
    try:
        async for _ in follower.pictures():
            if following.done():
                following.result()
        await logs.end()
    finally:
        following.cancel()


async def printed(follower: Follower, ranks: str, attempt: int | None, show: Show) -> None:
    """What the pods of an attempt (the newest, if none is named) have written until now; of one whose pods
    are gone, what status keeps. Raises BadInput if there is nothing."""
    job = await _job(follower)
    status = JobStatus.model_validate(job.get("status") or {})
    wanted = status.attempt if attempt is None else attempt
    if wanted > status.attempt:
        raise BadInput(f"{follower.name} has not made attempt {wanted}; its newest is {status.attempt}")
    found = [pod for pod in _in_order(await follower.pods()) if _attempt(pod, status.attempt) == wanted]
    for pod in found:
        text = await follower.log(pod["metadata"]["name"])
        if lines := chosen(text.split("\n"), ranks):
            show("\n".join(lines))
    if not found:
        for line in _remembered(job, status, wanted):
            show(line)


async def _job(follower: Follower) -> Object:
    job = await follower.job()
    if job is None:
        raise BadInput(f"there is no TrainingJob {follower.name} in namespace {follower.namespace}")
    return job


def _in_order(pods: list[Object]) -> list[Object]:
    """Of slots; of several in one slot the older first."""
    return sorted(
        pods, key=lambda pod: (int(parsing.label(pod, "slot")), int(parsing.label(pod, "incarnation")))
    )


def _attempt(pod: Object, newest: int) -> int:
    """Pods of an earlier release do not say."""
    text = parsing.label(pod, "attempt")
    return int(text) if text.isdecimal() else newest


def _remembered(job: Object, status: JobStatus, attempt: int) -> Iterator[str]:
    """Raises BadInput if status keeps nothing of it either."""
    policy = (job.get("spec") or {}).get("cleanPodPolicy", "Running")
    kept = [each for each in status.incidents if each.attempt == attempt]
    gone = f"the pods of attempt {attempt} are gone, and their logs with them (cleanPodPolicy is {policy})"
    if not kept:
        raise BadInput(gone if attempt else f"{job['metadata']['name']} has not started yet")
    yield f"{gone}; status.incidents keeps:"
    for each in kept:
        yield from (f"  {line}" for line in f"{each.id}: {each.cause}: {each.message}".splitlines())
