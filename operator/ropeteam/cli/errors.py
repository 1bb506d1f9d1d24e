"""Errors for a user: one sentence with the next step, never a traceback.

Exit codes: 2 for input that cannot work, 1 for a job that did not complete or a cluster that does not answer.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

from ropeteam.errors import RequestError
from ropeteam_trainer.contract.errors import RopeteamError

T = TypeVar("T")

INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class CommandError(RopeteamError, click.ClickException):
    """A command ends with this sentence and its exit code."""

    def show(self, _: Any = None) -> None:
        click.echo(f"error: {self.message}", err=True)


class InvalidInput(CommandError):
    """Input of the user that cannot work."""

    exit_code = 2


class CommandFailed(CommandError):
    """Failure with valid input."""

    exit_code = 1


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run until done; Ctrl-C and SIGTERM stop it gracefully, with exit code 130."""
    try:
        return asyncio.run(_interruptible(work))
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        import aiohttp  # here: no command waits for these imports before its first act

        if not isinstance(error, (RequestError, aiohttp.ClientError, OSError)):
            raise
        raise CommandFailed(str(error) or type(error).__name__) from None


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run until done. The first signal stops the work gracefully, in bounded time; more signals are
    ignored."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)

    def interrupt() -> None:
        task.cancel()
        for number in _SIGNALS:
            loop.add_signal_handler(number, lambda: None)

    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupt)
    return await task
