"""Admission of connections to a parameter server: only peers that prove the job's secret are served.

One thread runs all handshakes, so an unauthenticated connection costs a descriptor and 48 bytes. Their number
is limited (contract/preauth.py), and a handshake takes 2 seconds at most. The last descriptors of the process
are reserved: if unauthenticated connections hold all others, one is closed for each new one. Running out of
descriptors, memory or threads never stops admission.
"""

from __future__ import annotations

import os
import resource
import secrets
import selectors
import socket
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from ropeteam_trainer.contract.preauth import UnauthenticatedConnections
from ropeteam_trainer.strategies.parameterserver import wire
from ropeteam_trainer.system.notice import notice

GREETING_SECONDS = 2.0
OWN_DESCRIPTORS = 16
"""Descriptors reserved for the server's files and libraries."""
_PAUSE_SECONDS = 0.1
"""Pause while no descriptor is free and no unauthenticated connection holds one."""
_LOG_INTERVAL_SECONDS = 10.0
"""Minimum interval between log lines about refused connections."""


class _Handshake:
    """Connection during its handshake."""

    def __init__(self, connection: socket.socket, address: str, leave: Callable[[_Handshake], None]) -> None:
        self.connection, self.address = connection, address
        self.until = time.monotonic() + GREETING_SECONDS
        self.nonce, self.answer = secrets.token_bytes(wire.NONCE), b""
        self._leave = leave

    def leave(self) -> None:
        self._leave(self)


class Door:
    """Admission thread. It calls `let_in` with connections whose peers belong to the job."""

    def __init__(
        self, listener: socket.socket, secret: str, places: int, let_in: Callable[[socket.socket], None]
    ) -> None:
        self._listener, self._secret, self._let_in = listener, secret, let_in
        self.strangers = UnauthenticatedConnections(places)
        self._handshakes: dict[_Handshake, None] = {}
        """Connections in handshake, in the order of their deadlines."""
        self._selector = selectors.DefaultSelector()
        self._is_open, self._next_log_at = True, 0.0
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
            self._run_handshakes()
        except Exception:  # a bug: a server that cannot be reached is useless
            traceback.print_exc()
            os._exit(1)

    def _run_handshakes(self) -> None:
        while self._is_open:
            for key, _ in self._selector.select(self._next_timeout()):
                if key.data is None:
                    self._accept()
                elif key.data in self._handshakes:  # or it was just closed to free a descriptor
                    self._read_answer(key.data)
            while self._handshakes and self._next_timeout() == 0:
                self._close_handshake(next(iter(self._handshakes)))
        for handshake in tuple(self._handshakes):
            self._close_handshake(handshake)
        self._selector.close()
        self._listener.close()

    def _next_timeout(self) -> float | None:
        """Seconds until the next handshake deadline. None: no connection is in handshake."""
        first = next(iter(self._handshakes), None)
        return max(first.until - time.monotonic(), 0) if first else None

    def _accept(self) -> None:
        try:
            connection, (address, *_) = self._listener.accept()
            if _is_reserved(connection.fileno()) and self.strangers.evict_one():
                with connection:
                    connection = connection.dup()  # gets the lowest free number
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # no descriptor or memory is left
            if not self.strangers.evict_one():
                time.sleep(_PAUSE_SECONDS)
            return
        handshake = _Handshake(connection, address, self._close_handshake)
        try:
            connection.setblocking(False)
            connection.send(handshake.nonce)
            self._selector.register(connection, selectors.EVENT_READ, handshake)
        except OSError:  # the peer has closed it, or the kernel cannot watch more
            connection.close()
            return
        self._handshakes[handshake] = None
        self.strangers.admit(address, handshake.leave)

    def _read_answer(self, handshake: _Handshake) -> None:
        connection = handshake.connection
        try:
            more = connection.recv(wire.ANSWER - len(handshake.answer))
            handshake.answer += more
            if more and len(handshake.answer) < wire.ANSWER:
                return
            connection.send(wire.counter_proof(self._secret, handshake.nonce, handshake.answer))
            wire.settle(connection)
        except wire.WrongSecret as error:
            self._close_handshake(handshake)
            if time.monotonic() >= self._next_log_at:
                self._next_log_at = time.monotonic() + _LOG_INTERVAL_SECONDS
                say(f"{error}: {handshake.address}")
        except BlockingIOError:  # spurious wakeup
            return
        except OSError:
            self._close_handshake(handshake)
        else:
            self._unregister(handshake)
            self._let_in(connection)

    def _close_handshake(self, handshake: _Handshake) -> None:
        self._unregister(handshake)
        handshake.connection.close()

    def _unregister(self, handshake: _Handshake) -> None:
        self._selector.unregister(handshake.connection)
        self.strangers.free(handshake.address, handshake.leave)
        del self._handshakes[handshake]


def say(sentence: str) -> None:
    with suppress(OSError):
        notice(sentence)


def _is_reserved(descriptor: int) -> bool:
    """Whether a descriptor is one of the reserved ones. The kernel assigns the lowest free number."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most != resource.RLIM_INFINITY and descriptor >= most - OWN_DESCRIPTORS
