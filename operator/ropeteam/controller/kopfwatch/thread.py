"""Run kopf in a thread of its own, with its own event loop.

At its end kopf cancels every task of its event loop that is younger than itself, and in the main thread it
installs signal handlers. Here neither reaches the operator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from threading import Thread
from typing import Any

import kopf

from ropeteam.controller.client.access import Access
from ropeteam.controller.kopfwatch.handlers import Change, registry
from ropeteam.controller.kopfwatch.settings import settings

_RESTART_SECONDS = 1.0
_STOP_SECONDS = 2.0
"""How long the operator's end waits for kopf's. The thread ends with the process in any case."""
_IDENTITY = "ropeteam"
"""Without it kopf looks up the user's name; in a container our UID may have none."""
_LEVELS = {
    "kopf": logging.WARNING,
    "kopf.objects": logging.WARNING,
    "kopf._core.reactor.running": logging.ERROR,  # it warns that signals are not for it, which is intended
}

log = logging.getLogger(__name__)


async def run(
    load: Callable[[], Awaitable[Access]], changed: Callable[[Change], None], namespaces: tuple[str, ...]
) -> None:
    """Run kopf until cancelled; then wait up to `_STOP_SECONDS` for its end. `load` (server and credentials)
    is called in kopf's thread, `changed` (with each event) in the caller's event loop. No `namespaces`: all.
    """
    own_loop, kopf_loop, stop = asyncio.get_running_loop(), asyncio.new_event_loop(), asyncio.Event()

    def report(change: Change) -> None:
        with suppress(RuntimeError):  # our loop is closed: the process ends
            own_loop.call_soon_threadsafe(changed, change)

    def run_kopf() -> None:
        with asyncio.Runner(loop_factory=lambda: kopf_loop) as runner:
            runner.run(_run_until_stopped(load, report, namespaces, stop))

    thread = Thread(target=run_kopf, name="kopf", daemon=True)
    thread.start()
    try:
        await own_loop.create_future()  # never done: only a cancellation ends this
    finally:
        kopf_loop.call_soon_threadsafe(stop.set)
        await asyncio.to_thread(thread.join, _STOP_SECONDS)


async def _run_until_stopped(
    load: Callable[[], Awaitable[Access]],
    report: Callable[[Change], None],
    namespaces: tuple[str, ...],
    stop: asyncio.Event,
) -> None:
    """Run kopf in this event loop until `stop` is set. Whatever else stops it is logged, and it is started
    again with new handlers and sessions. Sets the levels of kopf's loggers, for the whole process."""
    for name, level in _LEVELS.items():
        logging.getLogger(name).setLevel(level)
    scope: dict[str, Any] = {"namespaces": namespaces} if namespaces else {"clusterwide": True}
    options: dict[str, Any] = {"standalone": True, "stop_flag": stop, "identity": _IDENTITY} | scope
    while not stop.is_set():
        async with AsyncExitStack() as sessions:
            try:
                await kopf.operator(registry=registry(load, report, sessions), settings=settings(), **options)
            except Exception as error:  # kopf gives up for many reasons; none of them is one for us
                log.warning(
                    "kopf stopped (%s: %s), starting it again; reconciling continues without it",
                    type(error).__name__,
                    error,
                )
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), _RESTART_SECONDS)
