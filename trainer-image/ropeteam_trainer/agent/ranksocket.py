"""The Unix socket of one rank: JSON lines in (FromRank), JSON lines out (ToRank).

One socket per rank and epoch, so that who speaks is known by where it speaks. A line that is not a FromRank
closes the connection that sent it, with a word in the log.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

from ropeteam_trainer.agent.log import log
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.local import FromRank, ToRank

_LONGEST_LINE = 1 << 20


class RankSocket:
    def __init__(self, path: Path, heard: Callable[[FromRank], None]) -> None:
        self.path, self._heard = path, heard
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.setblocking(False)
        self._buffers: dict[socket.socket, bytes] = {}
        self._library: socket.socket | None = None
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def tell(self, message: ToRank) -> None:
        """To the library of this rank, if it still listens."""
        if self._library is None:
            return
        try:
            self._library.send(codec.encode(message) + b"\n")
        except OSError as error:
            log(f"{self.path.name}: cannot tell {message}: {error}")

    def drain(self) -> None:
        """Take everything that was sent before the rank ended."""
        self._accept()
        for connection in tuple(self._buffers):
            self._receive(connection)

    def close(self) -> None:
        for connection in tuple(self._buffers):
            self._drop(connection)
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            connection.setblocking(False)
            self._buffers[connection] = b""
            asyncio.get_running_loop().add_reader(connection, self._receive, connection)

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
        if said.hello_pid is not None:
            self._library = connection
        self._heard(said)
        return True

    def _drop(self, connection: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(connection)
        del self._buffers[connection]
        if self._library is connection:
            self._library = None
        connection.close()
