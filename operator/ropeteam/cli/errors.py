"""What goes wrong for a user is one sentence with the next step, never a traceback.

Exit codes: 2 for input that cannot work, 1 for a job that did not complete or a cluster that does not answer.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import aiohttp
import click

from ropeteam.controller.cluster import ApiError

T = TypeVar("T")

INTERRUPTED = 130


class BadInput(click.ClickException):
    """The user's input cannot work."""

    exit_code = 2

    def show(self, _: Any = None) -> None:
        click.echo(f"error: {self.message}", err=True)


class Trouble(BadInput):
    """The input is good, and still it did not work."""

    exit_code = 1


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run until done; Ctrl-C and SIGTERM end it in order, with exit code 130."""
    try:
        return asyncio.run(_interruptible(work))
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise SystemExit(INTERRUPTED) from None
    except (ApiError, aiohttp.ClientError, OSError) as error:
        raise Trouble(str(error) or type(error).__name__) from None


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await work
