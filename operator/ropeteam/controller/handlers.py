"""All that we ask of kopf: to watch TrainingJobs and ring the bell.

No kopf state is kept on objects, nothing is retried by kopf, and no trouble of its connection ends the
process: the waits between its tries never run out, refused credentials are loaded anew, and what still makes
it stop is started again.
Limits: the bell says only "look at this job"; what is true comes from our own informer.
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

_WAITS = (0.5, 1.0, 2.0, 5.0)
_LONGEST_WAIT = 10.0
_RESTART_SECONDS = 1.0
_ME = "ropeteam"
"""kopf would ask the system for the user's name; in a container there may be none for our number."""

log = logging.getLogger(__name__)


class Forever(Collection[float]):
    """Waits between tries that never run out."""

    def __iter__(self) -> Iterator[float]:
        yield from _WAITS
        while True:
            yield _LONGEST_WAIT

    def __len__(self) -> int:
        return len(_WAITS) + 1

    def __contains__(self, value: object) -> bool:
        return value in (*_WAITS, _LONGEST_WAIT)


class NullDiffBase(kopf.DiffBaseStorage):
    """kopf need not remember what it saw last: no handler of ours asks for differences."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        return None


class NullProgress(kopf.ProgressStorage):
    """kopf need not remember how far a handler came: ours only ring a bell."""

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
    """The reasons stand in docs/architecture.md."""
    chosen = kopf.OperatorSettings()
    chosen.persistence.diffbase_storage = NullDiffBase()
    chosen.persistence.progress_storage = NullProgress()
    chosen.networking.error_backoffs = Forever()
    chosen.networking.request_timeout, chosen.networking.connect_timeout = 15, 5
    chosen.watching.server_timeout, chosen.watching.connect_timeout = 290, 5
    chosen.watching.chunk_size = 1  # kopf is shown none (kopfevents.py)
    chosen.queueing.idle_timeout = 0.5
    chosen.scanning.disabled = True
    chosen.posting.enabled = False
    return chosen


async def run(
    load: Callable[[], Awaitable[Access]],
    ring: Callable[[Key], None],
    namespaces: tuple[str, ...],
    ended: asyncio.Event,
) -> None:
    """kopf until a signal sets `ended`, or somebody else does. Returns then; whatever else stops kopf is
    logged, and kopf starts anew.
    """
    for name in ("kopf", "kopf.objects"):
        logging.getLogger(name).setLevel(logging.WARNING)
    where: dict[str, Any] = {"namespaces": namespaces} if namespaces else {"clusterwide": True}
    how: dict[str, Any] = {
        "settings": settings(),
        "standalone": True,
        "stop_flag": ended,
        "identity": _ME,
    } | where
    while True:
        async with AsyncExitStack() as sessions:
            handlers, started = _registry(load, ring, sessions), asyncio.Event()
            signals = asyncio.create_task(_take_signals_back(started, ended))
            try:
                await kopf.operator(registry=handlers, ready_flag=started, **how)
                ended.set()
                return
            except Exception as error:  # kopf has many ways to give up; none is a reason for us to do so
                log.warning("kopf stopped (%s: %s), starting it again", type(error).__name__, error)
            finally:
                signals.cancel()
        await asyncio.sleep(_RESTART_SECONDS)


async def _take_signals_back(started: asyncio.Event, ended: asyncio.Event) -> None:
    """kopf takes them, tells nobody, and waits 5 s for every task of the loop that is younger than itself."""
    await started.wait()
    end_by_signal(ended)


def end_by_signal(ended: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)


def _registry(
    load: Callable[[], Awaitable[Access]], ring: Callable[[Key], None], sessions: AsyncExitStack
) -> kopf.OperatorRegistry:
    """Our two handlers: how to log in, and whom to call when a TrainingJob has changed."""
    handlers = kopf.OperatorRegistry()
    logins = itertools.count()

    @kopf.on.login(registry=handlers)
    async def log_in(**_: Any) -> kopf.AiohttpSession:
        """A new session each time: kopf gives up when it is given refused credentials again."""
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
    async def ring_the_bell(name: str, namespace: str | None, **_: Any) -> None:
        ring(Key(namespace or "", name))

    return handlers
