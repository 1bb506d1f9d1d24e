"""A container's output as a pipe whose reader can stop reading."""

from __future__ import annotations

import fcntl
import os
import select
from collections.abc import Callable

from lab.waiting import wait_until_async

SMALL = 4096


class Pipe:
    """`w` is for the writer. It is small, so it is full soon."""

    def __init__(self) -> None:
        self.r, self.w = os.pipe()
        fcntl.fcntl(self.w, fcntl.F_SETPIPE_SZ, SMALL)
        os.set_blocking(self.r, False)
        self.text = ""

    def fill(self) -> None:
        """To the brim, without waiting."""
        poll = select.poll()
        poll.register(self.w, select.POLLOUT)
        while poll.poll(0):
            os.write(self.w, b"-" * (SMALL - 1) + b"\n")

    @property
    def is_full(self) -> bool:
        poll = select.poll()
        poll.register(self.w, select.POLLOUT)
        return not poll.poll(0)

    def read(self) -> str:
        """The bytes read so far, with what is there now."""
        try:
            while data := os.read(self.r, 1 << 16):
                self.text += data.decode()
        except BlockingIOError:
            pass
        return self.text

    async def writes(self, text: str, why: Callable[[], str] = str) -> None:
        await wait_until_async(
            lambda: f"{text!r} is not in:\n{self.text[-4000:]}{why()}", lambda: text in self.read()
        )

    def close(self) -> None:
        """End reading. `w` stays open: a thread of Lines may still write there, and its number must
        not become that of another test's pipe."""
        os.close(self.r)
