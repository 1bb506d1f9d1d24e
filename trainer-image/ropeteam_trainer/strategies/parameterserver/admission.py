"""Admission of connections to a parameter server: only peers that prove that they have the job's secret.

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

HANDSHAKE_SECONDS = 2.0
"""Limit of a handshake, for a server."""
OWN_DESCRIPTORS = 16
"""Descriptors reserved for the server's files and libraries."""
_PAUSE_SECONDS = 0.1
"""Pause in accepting while no descriptor is free and no unauthenticated connection holds one."""
_LOG_INTERVAL_SECONDS = 10.0
"""Minimum interval between log lines about refused connections."""


class _Handshake:
    """Connection during its handshake. answer: what the peer has sent so far of its answer to the nonce."""

    def __init__(
        self, connection: socket.socket, address: str, close_handshake: Callable[[_Handshake], None]
    ) -> None:
        self.connection, self.address = connection, address
        self.deadline = time.monotonic() + HANDSHAKE_SECONDS
        self.nonce, self.answer = secrets.token_bytes(wire.NONCE_BYTES), b""
        self._close_handshake = close_handshake

    def close(self) -> None:
        """Close the connection and free its place. UnauthenticatedConnections calls this to evict it."""
        self._close_handshake(self)


class Admission:
    """Thread that accepts connections and authenticates their peers. Call open(), and close() at the end."""

    def __init__(
        self,
        listener: socket.socket,
        secret: str,
        max_unauthenticated: int,
        on_authenticated: Callable[[socket.socket], None],
    ) -> None:
        """on_authenticated: called in the admission thread with each connection whose peer has the secret; it
        owns the connection, and must not block."""
        self._listener, self._secret, self._on_authenticated = listener, secret, on_authenticated
        self.unauthenticated = UnauthenticatedConnections(max_unauthenticated)
        self._handshakes: dict[_Handshake, None] = {}
        """Connections in handshake, in the order of their deadlines."""
        self._selector = selectors.DefaultSelector()
        self._is_open, self._next_log_at = True, 0.0
        self._thread = threading.Thread(target=self._run, daemon=True, name="ropeteam-admission")
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Close the listener and all connections in handshake, and end the thread."""
        self._is_open = False
        with suppress(OSError):  # the thread has woken by itself, and closed it
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()

    def _run(self) -> None:
        """Body of the thread. Ends the process after an unexpected error."""
        try:
            self._run_handshakes()
        except Exception:  # a bug: a server that cannot be reached is useless
            traceback.print_exc()
            os._exit(1)

    def _run_handshakes(self) -> None:
        """Accept and read until close(), and close handshakes that are over their deadline."""
        while self._is_open:
            for key, _ in self._selector.select(self._next_timeout()):
                if key.data is None:  # the listener
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
        return max(first.deadline - time.monotonic(), 0) if first else None

    def _accept(self) -> None:
        """Accept one connection and send its nonce. It takes a place among the unauthenticated ones; the
        oldest of the address that has most is evicted if there are too many, or if its descriptor is a
        reserved one."""
        try:
            connection, (address, *_) = self._listener.accept()
            if _is_reserved(connection.fileno()) and self.unauthenticated.evict_one():
                with connection:
                    connection = connection.dup()  # gets the number that was freed: the lowest
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # no descriptor or memory is left
            if not self.unauthenticated.evict_one():
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
        self.unauthenticated.admit(address, handshake.close)

    def _read_answer(self, handshake: _Handshake) -> None:
        """Read more of the peer's answer. Once complete: send the server's proof and hand the connection
        over, or close it."""
        connection = handshake.connection
        try:
            more = connection.recv(wire.ANSWER_BYTES - len(handshake.answer))
            handshake.answer += more
            if more and len(handshake.answer) < wire.ANSWER_BYTES:
                return  # the rest is still to come; without `more` the peer has closed the connection
            connection.send(wire.verify_worker_and_prove(self._secret, handshake.nonce, handshake.answer))
            wire.set_socket_options(connection)
        except wire.WrongSecret as error:
            self._close_handshake(handshake)
            if time.monotonic() >= self._next_log_at:
                self._next_log_at = time.monotonic() + _LOG_INTERVAL_SECONDS
                log(
                    f"refused a connection from {handshake.address}: {error}. Nothing to do, unless a worker "
                    "of this job has that address"
                )
        except BlockingIOError:  # spurious wakeup
            return
        except OSError:
            self._close_handshake(handshake)
        else:
            self._unregister(handshake)
            self._on_authenticated(connection)

    def _close_handshake(self, handshake: _Handshake) -> None:
        """Close a connection in handshake, and forget it."""
        self._unregister(handshake)
        handshake.connection.close()

    def _unregister(self, handshake: _Handshake) -> None:
        """Forget a connection in handshake, and free its place: it is authenticated, or about to be
        closed."""
        self._selector.unregister(handshake.connection)
        self.unauthenticated.free(handshake.address, handshake.close)
        del self._handshakes[handshake]


def log(sentence: str) -> None:
    """Print a line on stderr if that is possible: a log that cannot be written must not end the server."""
    with suppress(OSError):
        notice(sentence)


def _is_reserved(descriptor: int) -> bool:
    """Whether the descriptor is among the last OWN_DESCRIPTORS of the process: then all others are in use, as
    the kernel assigns the lowest free number."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most != resource.RLIM_INFINITY and descriptor >= most - OWN_DESCRIPTORS
