"""An executor for calls that may block for long: one after the other, in a thread that is not joined at exit.

The pools of concurrent.futures join their threads when Python ends, so a disk that hangs would keep an agent
from exiting. Limits: a call that has begun cannot be cancelled; at exit it is cut off in the middle.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreadExecutor(Executor):
    """An executor with one daemon thread, started with the first call and never stopped. `name`: of the
    thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` after the calls that were submitted before. A future may be cancelled until it begins."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._calls.put((future, lambda: fn(*args, **kwargs)))
        return future

    def _run(self) -> None:
        while True:
            future, call = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
