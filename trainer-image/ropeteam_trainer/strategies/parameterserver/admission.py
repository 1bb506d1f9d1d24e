"""The door of a parameter server: who has shown the job's secret gets in, all others stay outside.

One thread greets all of them, so a stranger costs a descriptor and 48 bytes. There are places for so many
(contract/preauth.py), and a whole greeting takes 2 seconds at most. The last descriptors of the process are
no places: if strangers have all others, one leaves for each that comes. Want of descriptors, memory or
threads never closes the door.
"""

from __future__ import annotations

import os
import resource
import secrets
import selectors
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from ropeteam_trainer.contract.preauth import Strangers
from ropeteam_trainer.strategies.parameterserver import wire

GREETING_SECONDS = 2.0
OWN_DESCRIPTORS = 16
"""For the server's files and libraries."""
_PAUSE_SECONDS = 0.1
"""When there is neither a descriptor nor a stranger who has one."""
_SAY_SECONDS = 10.0
"""Who is refused is told of this often, at most."""


class _Stranger:
    """One connection while it is greeted."""

    def __init__(self, connection: socket.socket, address: str, leave: Callable[[_Stranger], None]) -> None:
        self.connection, self.address = connection, address
        self.until = time.monotonic() + GREETING_SECONDS
        self.nonce, self.said = secrets.token_bytes(wire.NONCE), b""
        self._leave = leave

    def leave(self) -> None:
        self._leave(self)


class Door:
    """`let_in` is given connections whose peers belong to the job, from the door's thread."""

    def __init__(
        self, listener: socket.socket, secret: str, places: int, let_in: Callable[[socket.socket], None]
    ) -> None:
        self._listener, self._secret, self._let_in = listener, secret, let_in
        self.strangers = Strangers(places)
        self._greeted: dict[_Stranger, None] = {}
        """In the order in which their time is over."""
        self._selector = selectors.DefaultSelector()
        self._is_open, self._quiet_until = True, 0.0
        self._thread = threading.Thread(target=self._run, daemon=True, name="ropeteam-door")
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_open = False
        with suppress(OSError):  # the thread has woken by itself, and closed it
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()

    def _run(self) -> None:
        try:
            self._greet()
        except Exception:  # a fault of ours: a server that nobody reaches is none
            traceback.print_exc()
            os._exit(1)

    def _greet(self) -> None:
        while self._is_open:
            for key, _ in self._selector.select(self._patience()):
                if key.data is None:
                    self._accept()
                elif key.data in self._greeted:  # or it has just made room
                    self._hear(key.data)
            while self._greeted and self._patience() == 0:
                self._drop(next(iter(self._greeted)))
        for stranger in tuple(self._greeted):
            self._drop(stranger)
        self._selector.close()
        self._listener.close()

    def _patience(self) -> float | None:
        """Seconds until the time of a stranger is over. None: there is none."""
        first = next(iter(self._greeted), None)
        return max(first.until - time.monotonic(), 0) if first else None

    def _accept(self) -> None:
        try:
            connection, (address, *_) = self._listener.accept()
            if _is_one_of_the_last(connection.fileno()) and self.strangers.end_one():
                with connection:
                    connection = connection.dup()  # has the lowest number that is free
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # no descriptor or memory is left
            if not self.strangers.end_one():
                time.sleep(_PAUSE_SECONDS)
            return
        stranger = _Stranger(connection, address, self._drop)
        try:
            connection.setblocking(False)
            connection.send(stranger.nonce)
            self._selector.register(connection, selectors.EVENT_READ, stranger)
        except OSError:  # it has gone, or the kernel watches no more of them
            connection.close()
            return
        self._greeted[stranger] = None
        self.strangers.take(address, stranger.leave)

    def _hear(self, stranger: _Stranger) -> None:
        connection = stranger.connection
        try:
            more = connection.recv(wire.ANSWER - len(stranger.said))
            stranger.said += more
            if more and len(stranger.said) < wire.ANSWER:
                return
            connection.send(wire.counter_proof(self._secret, stranger.nonce, stranger.said))
            wire.settle(connection)
        except wire.WrongSecret as error:
            self._drop(stranger)
            if time.monotonic() >= self._quiet_until:
                self._quiet_until = time.monotonic() + _SAY_SECONDS
                say(f"{error}: {stranger.address}")
        except BlockingIOError:  # there was nothing to read after all
            return
        except OSError:
            self._drop(stranger)
        else:
            self._forget(stranger)
            self._let_in(connection)

    def _drop(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        stranger.connection.close()

    def _forget(self, stranger: _Stranger) -> None:
        self._selector.unregister(stranger.connection)
        self.strangers.free(stranger.address, stranger.leave)
        del self._greeted[stranger]


def say(sentence: str) -> None:
    with suppress(OSError):
        print(f"ropeteam: {sentence}", file=sys.stderr, flush=True)


def _is_one_of_the_last(descriptor: int) -> bool:
    """The kernel gives the lowest that is free."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most != resource.RLIM_INFINITY and descriptor >= most - OWN_DESCRIPTORS
