"""Run the coroutine of a command until it ends, or until a signal interrupts it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from ropeteam.cli.errors import CommandFailed
from ropeteam.errors import RequestError

T = TypeVar("T")

INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM: 128 + SIGINT, as shells report it."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in a new event loop, and return its result.

    SIGINT or SIGTERM cancels `work`, so that it can clean up; unless it catches the CancelledError,
    SystemExit(INTERRUPTED) is raised. Errors of the API server, the network and files are raised as
    CommandFailed, all others as they are.
    """
    try:
        return asyncio.run(_run_until_signal(work))
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        import aiohttp  # here, not above: `ropeteam run` starts its processes before these slow imports

        if not isinstance(error, (RequestError, aiohttp.ClientError, OSError)):
            raise
        why = str(error) or type(error).__name__
        if isinstance(error, (aiohttp.ClientError, TimeoutError)):
            why = f"the API server does not answer: {why}; to examine the cluster: ropeteam doctor"
        raise CommandFailed(why) from None


async def _run_until_signal(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` and return its result. The first signal cancels it; later ones are ignored, so that it can
    finish its cleanup. That takes bounded time: LocalStack kills processes that do not end."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)

    def interrupt() -> None:
        task.cancel()
        for signum in _SIGNALS:
            loop.add_signal_handler(signum, lambda: None)

    for signum in _SIGNALS:
        loop.add_signal_handler(signum, interrupt)
    return await task
