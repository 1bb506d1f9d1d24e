"""Everything that kopf is used for: watch TrainingJobs and enqueue those that changed.

No kopf state is kept on objects, kopf retries nothing, and no connection error of kopf ends the process: the
waits between its attempts never run out, refused credentials are loaded again, and if kopf stops all the
same, it is started again.
Limits: an event of kopf means only "reconcile this job"; the state of the job comes from our own informer.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import kopf

from ropeteam.api.job import GROUP, PLURAL, VERSION
from ropeteam.controller.cache import kopfevents
from ropeteam.controller.cache.informer import Key
from ropeteam.controller.client.access import Access

_BACKOFFS = (0.5, 1.0, 2.0, 5.0)
_MAX_BACKOFF = 10.0
_RESTART_SECONDS = 1.0
_IDENTITY = "ropeteam"
"""Without it kopf looks up the user's name; in a container our UID may have none."""

log = logging.getLogger(__name__)


class Forever(Collection[float]):
    """Waits between attempts that never run out."""

    def __iter__(self) -> Iterator[float]:
        yield from _BACKOFFS
        while True:
            yield _MAX_BACKOFF

    def __len__(self) -> int:
        return len(_BACKOFFS) + 1

    def __contains__(self, value: object) -> bool:
        return value in (*_BACKOFFS, _MAX_BACKOFF)


class NullDiffBase(kopf.DiffBaseStorage):
    """No storage of the last seen object: no handler of ours needs differences."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        return None


class NullProgress(kopf.ProgressStorage):
    """No storage of the progress of handlers: ours only enqueue a key."""

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: Any) -> Any:
        return essence


def settings() -> kopf.OperatorSettings:
    """Settings of kopf; docs/architecture.md gives the reasons."""
    chosen = kopf.OperatorSettings()
    chosen.persistence.diffbase_storage = NullDiffBase()
    chosen.persistence.progress_storage = NullProgress()
    chosen.networking.error_backoffs = Forever()
    chosen.networking.request_timeout, chosen.networking.connect_timeout = 15, 5
    chosen.watching.server_timeout, chosen.watching.connect_timeout = 290, 5
    chosen.watching.chunk_size = 1  # kopf gets no list entries (kopfevents.py)
    chosen.queueing.idle_timeout = 0.5
    chosen.scanning.disabled = True
    chosen.posting.enabled = False
    chosen.process.ultimate_exiting_timeout = None  # else SIGKILL, 10 minutes after kopf gave up for once
    return chosen


async def run(
    load: Callable[[], Awaitable[Access]],
    enqueue: Callable[[Key], None],
    namespaces: tuple[str, ...],
    ended: asyncio.Event,
) -> None:
    """Run kopf until `ended` is set, by a signal or by the caller. Whatever else stops kopf is logged, and
    kopf is started again.
    """
    for name in ("kopf", "kopf.objects"):
        logging.getLogger(name).setLevel(logging.WARNING)
    scope: dict[str, Any] = {"namespaces": namespaces} if namespaces else {"clusterwide": True}
    options: dict[str, Any] = {
        "settings": settings(),
        "standalone": True,
        "stop_flag": ended,
        "identity": _IDENTITY,
    } | scope
    while True:
        async with AsyncExitStack() as sessions:
            handlers, started = _registry(load, enqueue, sessions), asyncio.Event()
            signals = asyncio.create_task(_restore_signal_handlers(started, ended))
            try:
                await kopf.operator(registry=handlers, ready_flag=started, **options)
                ended.set()
                return
            except Exception as error:  # kopf gives up for many reasons; none of them is one for us
                log.warning("kopf stopped (%s: %s), starting it again", type(error).__name__, error)
            finally:
                signals.cancel()
        await asyncio.sleep(_RESTART_SECONDS)


async def _restore_signal_handlers(started: asyncio.Event, ended: asyncio.Event) -> None:
    """Install our signal handlers again: those of kopf do not set `ended`, and kopf then waits 5 s for every
    task of the loop that is younger than itself.
    """
    await started.wait()
    end_by_signal(ended)


def end_by_signal(ended: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)


def _registry(
    load: Callable[[], Awaitable[Access]], enqueue: Callable[[Key], None], sessions: AsyncExitStack
) -> kopf.OperatorRegistry:
    """Our two handlers: the login, and the enqueueing of a TrainingJob that has changed."""
    handlers = kopf.OperatorRegistry()
    logins = itertools.count()

    @kopf.on.login(registry=handlers)
    async def log_in(**_: Any) -> kopf.AiohttpSession:
        """A new session each time: kopf gives up when a login returns refused credentials again."""
        if next(logins):
            await asyncio.sleep(_RESTART_SECONDS)
        access = await load()
        connector = aiohttp.TCPConnector(limit=0, ssl=access.tls or True)
        session = aiohttp.ClientSession(
            connector=connector, headers=await access.headers(), response_class=kopfevents.Response
        )
        sessions.push_async_callback(session.close)
        return kopf.AiohttpSession(server=access.server, aiohttp_session=session)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)
    async def enqueue_job(name: str, namespace: str | None, **_: Any) -> None:
        enqueue(Key(namespace or "", name))

    return handlers
