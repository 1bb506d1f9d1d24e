"""Prefetch of the items of an iterator, in one thread.

Promise: the same items in the same order, and the same error at the same place, with the traceback of the
thread. The thread ends with the generator: at its end, its close(), or an error.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

_PATIENCE_SECONDS = 5.0
"""Time for which close() waits for an item that is being made."""


def prefetched(source: Iterator[T], count: int) -> Generator[T]:
    """Items of `source`, with at most `count` items ready and one more being made. The thread starts with the
    first next(). Raises what `source` raises, after the items before."""
    filler = _Filler(source, count)
    filler.start()
    try:
        while True:
            item, error = filler.ready.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        filler.end()


_END: Any = object()


class _Filler(threading.Thread):
    """Thread that puts items into `ready`: (item, None), and at last (_END, None) or (None, error)."""

    def __init__(self, source: Iterator[Any], count: int) -> None:
        super().__init__(daemon=True, name="ropeteam-prefetch")
        self.ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(count)
        self._source, self._stopped = source, threading.Event()

    def run(self) -> None:
        try:
            for item in self._source:
                self.ready.put((item, None))
                if self._stopped.is_set():
                    return
            self.ready.put((_END, None))
        except BaseException as error:  # also a SystemExit of the data set: it is the script's
            self.ready.put((None, error))

    def end(self) -> None:
        """Stop the thread, and wait for it up to _PATIENCE_SECONDS. After `_stopped` is set it puts one item
        at most; the queue is emptied, so that put() never blocks."""
        self._stopped.set()
        while not self.ready.empty():
            self.ready.get_nowait()
        self.join(_PATIENCE_SECONDS)
