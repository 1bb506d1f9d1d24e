"""The Unix socket of one rank: JSON lines in (FromRank), JSON lines out (ToRank).

One socket per rank and epoch, so that who speaks is known by where it speaks. A line that is not a FromRank
closes the connection that sent it, with a word in the log. A message to a rank is its whole truth: of those
that wait because the rank does not read, only the newest is sent.
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
"""When this process, or its node, has no descriptor or memory left."""


class RankSocket:
    def __init__(self, path: Path, heard: Callable[[FromRank], None], secret: str = "") -> None:
        """`secret`: of the parameter servers, for who asks. Raises OSError, and holds nothing then."""
        self.path, self._heard, self._secret = path, heard, secret
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(str(path))
            self._listener.listen()
        except OSError:
            self._listener.close()
            raise
        self._listener.setblocking(False)
        self._buffers: dict[socket.socket, bytes] = {}
        self._library: socket.socket | None = None
        self._told = self._waiting = self._unsent = b""
        """The newest message; the same while it is not begun; what is left of the one that was begun."""
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def tell(self, message: ToRank) -> None:
        """To the library of this rank, as soon as it says hello and reads."""
        self._told = self._waiting = codec.encode(message) + b"\n"
        if self._library is not None:
            self._send(self._library)

    def drain(self) -> None:
        """Take everything that was sent before the rank ended."""
        self._accept()
        for connection in tuple(self._buffers):
            self._receive(connection)

    def close(self) -> None:
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
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log(f"{self.path.name}: cannot accept, trying again: {error}")
                self._loop.remove_reader(self._listener)
                if self._pause:
                    self._pause.cancel()
                self._pause = self._loop.call_later(_ACCEPT_AGAIN_SECONDS, self._listen)
                return
            connection.setblocking(False)
            self._buffers[connection] = b""
            self._loop.add_reader(connection, self._receive, connection)

    def _receive(self, connection: socket.socket) -> None:
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
            if len(rest) > _LONGEST_LINE or not all(self._take(line, connection) for line in lines):
                self._drop(connection)

    def _take(self, line: bytes, connection: socket.socket) -> bool:
        try:
            said = codec.decode(FromRank, line)
        except codec.DecodeError as error:
            log(f"{self.path.name}: not understood, connection closed: {error}")
            return False
        if said.wants_secret:
            with contextlib.suppress(OSError):  # it has gone
                connection.send(codec.encode(ToRank(secret=self._secret)) + b"\n")
            return True
        if said.hello_pid is not None:
            self._library, self._waiting, self._unsent = connection, self._told, b""
            self._send(connection)
        self._heard(said)
        return True

    def _send(self, library: socket.socket) -> None:
        """As much as it takes now; the rest when it reads."""
        self._loop.remove_writer(library)
        try:
            while self._unsent or self._waiting:
                if not self._unsent:
                    self._unsent, self._waiting = self._waiting, b""
                self._unsent = self._unsent[library.send(self._unsent) :]
        except BlockingIOError:
            self._loop.add_writer(library, self._send, library)
        except OSError as error:  # its end is read, too, and closes the connection
            log(f"{self.path.name}: cannot tell {self._told!r}: {error}")

    def _drop(self, connection: socket.socket) -> None:
        self._loop.remove_reader(connection)
        self._loop.remove_writer(connection)
        del self._buffers[connection]
        if self._library is connection:
            self._library = None
        connection.close()
