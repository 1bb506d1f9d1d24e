"""The one way to start tasks that nobody awaits: each is referenced until it is done, and its exception is
logged.

An event loop holds its tasks weakly, and the exception of a task that nobody awaits is logged when the task
is garbage collected, if ever. Here it goes to the loop's exception handler at once, as that of a callback
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_tasks: set[asyncio.Task[Any]] = set()


def start_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task in the running loop. It is referenced until it is done. An exception of it goes to the
    loop's exception handler; a cancellation does not."""
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_on_done)
    return task


def _on_done(task: asyncio.Task[Any]) -> None:
    """Release the task, and give its exception to the loop's handler."""
    _tasks.discard(task)
    if not task.cancelled() and (error := task.exception()):
        name = getattr(task.get_coro(), "__qualname__", task.get_name())
        task.get_loop().call_exception_handler({"message": f"{name} failed", "exception": error})


def install_exception_handler(log: Callable[[str], None], end: Callable[[BaseException], None]) -> None:
    """Log each exception that no code catches in callbacks and tasks of the running loop, and call `end` for
    bugs: they end the whole process instead of a part of it.

    No bugs are an OSError (of a file or a peer), and what asyncio reports of a transport: it has closed that
    connection.
    """

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        log(f"{context.get('message')}: {type(error).__name__}: {error}" if error else context["message"])
        if error is not None and not isinstance(error, OSError) and "transport" not in context:
            end(error)

    asyncio.get_running_loop().set_exception_handler(handle)
