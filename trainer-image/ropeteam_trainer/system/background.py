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


def background(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_done)
    return task


def _done(task: asyncio.Task[Any]) -> None:
    _tasks.discard(task)
    if not task.cancelled() and (error := task.exception()):
        task.get_loop().call_exception_handler({"message": f"{task.get_name()} failed", "exception": error})


def end_loudly(log: Callable[[str], None], end: Callable[[BaseException], None]) -> None:
    """Handle exceptions of callbacks and tasks of the running loop: an OSError of a file or a peer is a line
    in the log, and the exception of a connection has ended that connection. Any other one is a bug of ours,
    and ends the whole process instead of a part of it.
    """

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        log(f"{context.get('message')}: {type(error).__name__}: {error}" if error else context["message"])
        if error is not None and not isinstance(error, OSError) and "transport" not in context:
            end(error)

    asyncio.get_running_loop().set_exception_handler(handle)
