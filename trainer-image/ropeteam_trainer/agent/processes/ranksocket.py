"""The Unix socket of one rank: JSON lines in (FromRank), JSON lines out (ToRank).

One socket per rank and world, so that the socket identifies the sender. A line that is not a FromRank closes
the connection that sent it, with a line in the log. A message to a rank carries the whole state: of those
that are queued because the rank does not read, only the newest is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

from ropeteam_trainer.agent.log import log
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.local import FromRank, ToRank

_LONGEST_LINE = 1 << 20
_ACCEPT_AGAIN_SECONDS = 0.5
"""Pause when this process, or its node, has no descriptor or memory left."""


class RankSocket:
    """The listener of one rank, and its connections: of the rank's library, the shim and child processes."""

    def __init__(self, path: Path, on_message: Callable[[FromRank], None], secret: str = "") -> None:
        """Listen. `on_message` is called in the running loop. `secret`: of the parameter servers, sent on
        request. Raises OSError, with nothing left open."""
        self.path, self._on_message, self._secret = path, on_message, secret
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(str(path))
            self._listener.listen()
        except OSError:
            self._listener.close()
            raise
        self._listener.setblocking(False)
        self._buffers: dict[socket.socket, bytes] = {}
        """By open connection: begin of a line whose end was not received yet."""
        self._library: socket.socket | None = None
        """The connection that last sent hello: only it gets messages."""
        self._newest = self._pending = self._unsent = b""
        """The newest message; the same, until sending it begins; the rest of the one that is being sent."""
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def send(self, message: ToRank) -> None:
        """Send to the library of this rank, as soon as it has sent hello and reads. Never blocks. Replaces a
        message that is not being sent yet."""
        self._newest = self._pending = codec.encode(message) + b"\n"
        if self._library is not None:
            self._send(self._library)

    def drain(self) -> None:
        """Receive everything that was sent so far; called once the rank has exited."""
        self._accept()
        for connection in tuple(self._buffers):
            self._receive(connection)

    def close(self) -> None:
        """Close all connections and remove the socket. Data that was not received is lost: see `drain`."""
        for connection in tuple(self._buffers):
            self._drop(connection)
        if self._pause:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        with contextlib.suppress(OSError):  # as for the page
            self.path.unlink()

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Accept all waiting connections. After an error the listener rests for a while: it would be readable
        again at once."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log(f"cannot accept a connection of a rank's process ({self.path}), trying again: {error}")
                self._loop.remove_reader(self._listener)
                if self._pause:
                    self._pause.cancel()
                self._pause = self._loop.call_later(_ACCEPT_AGAIN_SECONDS, self._listen)
                return
            connection.setblocking(False)
            self._buffers[connection] = b""
            self._loop.add_reader(connection, self._receive, connection)

    def _receive(self, connection: socket.socket) -> None:
        """Handle all lines that are there. Drops the connection at its end, after an error, and for a line
        that is too long or cannot be handled."""
        while connection in self._buffers:
            try:
                data = connection.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._drop(connection)
                return
            *lines, rest = (self._buffers[connection] + data).split(b"\n")
            self._buffers[connection] = rest
            if len(rest) > _LONGEST_LINE or not all(self._handle_line(line, connection) for line in lines):
                self._drop(connection)

    def _handle_line(self, line: bytes, connection: socket.socket) -> bool:
        """Handle one message: a request for the secret is answered here, all others are passed on. False: it
        is no message, the connection must be dropped."""
        try:
            message = codec.decode(FromRank, line)
        except codec.DecodeError as error:
            log(f"a message of a rank's process ({self.path}) is dropped, because it is malformed: {error}")
            return False
        if message.wants_secret:
            with contextlib.suppress(OSError):  # the process has exited
                connection.send(codec.encode(ToRank(secret=self._secret)) + b"\n")
            return True
        if message.hello_pid is not None:
            self._library, self._pending, self._unsent = connection, self._newest, b""
            self._send(connection)
        self._on_message(message)
        return True

    def _send(self, library: socket.socket) -> None:
        """Send as much as the socket takes now; the rest when the library reads."""
        self._loop.remove_writer(library)
        try:
            while self._unsent or self._pending:
                if not self._unsent:
                    self._unsent, self._pending = self._pending, b""
                self._unsent = self._unsent[library.send(self._unsent) :]
        except BlockingIOError:
            self._loop.add_writer(library, self._send, library)
        except OSError as error:  # end of file is read, too, and closes the connection
            log(f"cannot send {self._newest!r} to a rank ({self.path}), it has probably exited: {error}")

    def _drop(self, connection: socket.socket) -> None:
        """Close a connection and forget it."""
        self._loop.remove_reader(connection)
        self._loop.remove_writer(connection)
        del self._buffers[connection]
        if self._library is connection:
            self._library = None
        connection.close()
