"""Connections between the replicas of a job, and the thread that serves them.

Each replica has one connection to each other. Messages are a fixed header, then raw bytes:

    kind 4 | bucket 4 | begin 4 | end 4 | step 8 | length of the payload 8

One thread per process reads and writes all connections, and calls the Receiver: what that does needs no lock.
Other threads reach it by run(). A connection begins with mutual proof of a secret, as to parameter servers;
messages are neither encrypted nor signed, as in gloo and NCCL.
Why not torch's process groups: a wait of gloo ends by the peer's answer or by its time-out only, and a group
that has lost a member is of no use any more. Here a connection ends alone.
"""

from __future__ import annotations

import collections
import os
import selectors
import socket
import struct
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

_HEADER = struct.Struct("<IIIIQQ")


class Header(NamedTuple):
    """Header of a message; exchange.py has the meanings."""

    kind: int
    bucket: int
    begin: int
    end: int
    step: int


class Receiver(Protocol):
    """Called in the thread of the connections."""

    def buffer(self, peer: int, header: Header, size: int) -> memoryview:
        """Where the payload of a message goes. Raises ValueError for a message that cannot be."""

    def received(self, peer: int, header: Header) -> None:
        """The payload is in its buffer."""

    def lost(self, peer: int, reason: str) -> None:
        """The connection has ended. Not called after close()."""

    def failed(self, error: Exception) -> None:
        """The thread ends by an error of ours. Nothing is called any more."""


class _Peer:
    """One connection, what is to be sent there, and the message that is being received."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number, self.connection = number, connection
        self.outbox: collections.deque[tuple[memoryview, Callable[[], None] | None]] = collections.deque()
        """Bytes, and what to call when they are sent."""
        self.is_full = False
        """Whether the connection took less than there was to send."""
        self.takes = True
        """Whether the connection can be sent anything. If not, what it has sent may still be read."""
        self.head = bytearray(_HEADER.size)
        self.header: Header | None = None
        """Header of the message whose payload is being received. None: a header is."""
        self.rest = memoryview(self.head)
        """Part of the present buffer that is still to be received."""


_open: weakref.WeakSet[Links] = weakref.WeakSet()


def _close_in_child() -> None:
    for links in _open:
        links.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)


class Links:
    """All connections of this replica: {replica: connected socket}. start() them, close() them at the end."""

    def __init__(self, connections: Mapping[int, socket.socket], receiver: Receiver) -> None:
        self._receiver = receiver
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._peers = {number: _Peer(number, connection) for number, connection in connections.items()}
        for peer in self._peers.values():
            peer.connection.setblocking(False)
            self._selector.register(peer.connection, selectors.EVENT_READ, peer)
        self._calls: collections.deque[Callable[[], None]] = collections.deque()
        self._closed = False
        _open.add(self)
        self._thread = threading.Thread(target=self._serve, name="ropeteam-replicas", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def run(self, call: Callable[[], None]) -> None:
        """Have the thread of the connections call this, soon. From any thread."""
        self._calls.append(call)
        self._wake.send(b"x")

    def send(
        self, to: int, header: Header, payload: memoryview, sent: Callable[[], None] | None = None
    ) -> None:
        """Send a message. In the thread of the connections only. The payload must not change before `sent` is
        called. A lost peer is sent nothing, and `sent` is called at once."""
        peer = self._peers.get(to)
        if peer is None or not peer.takes:
            if sent:
                sent()
            return
        peer.outbox.append((memoryview(_HEADER.pack(*header, len(payload))), None))
        peer.outbox.append((payload, sent))
        if not peer.is_full:
            self._flush(peer)

    def close(self) -> None:
        """End the thread and all connections."""
        if self._thread.is_alive():
            self.run(self._end)
            self._thread.join()
        self._selector.close()
        for connection in (self._wake, self._woken, *(peer.connection for peer in self._peers.values())):
            connection.close()
        self._peers.clear()

    def close_in_child(self) -> None:
        """Close this process's copies of the connections, in a process that has been forked: else peers would
        learn of the end of this replica only when that process ends, too."""
        for peer in self._peers.values():
            peer.connection.close()

    def _end(self) -> None:
        self._closed = True

    def _serve(self) -> None:
        try:
            while not self._closed:
                self._serve_ready()
        except Exception as error:
            self._receiver.failed(error)
            raise

    def _serve_ready(self) -> None:
        for key, events in self._selector.select():
            if key.data is None:
                self._run_calls()
                continue
            peer: _Peer = key.data
            if events & selectors.EVENT_WRITE:
                self._flush(peer)
            if events & selectors.EVENT_READ and peer.number in self._peers:
                self._receive(peer)

    def _run_calls(self) -> None:
        self._woken.recv(4096)
        while self._calls:
            self._calls.popleft()()

    def _flush(self, peer: _Peer) -> None:
        """Send what the connection takes now; the rest when it takes more."""
        try:
            while peer.outbox:
                content, sent = peer.outbox[0]
                content = content[peer.connection.send(content) if content else 0 :]
                if content:
                    peer.outbox[0] = content, sent
                    continue
                peer.outbox.popleft()
                if sent:
                    sent()
        except BlockingIOError:
            pass
        except OSError:
            self._stop_sending(peer)
        if peer.is_full != bool(peer.outbox):
            peer.is_full = bool(peer.outbox)
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.is_full else 0)
            self._selector.modify(peer.connection, wanted, peer)

    def _receive(self, peer: _Peer) -> None:
        """Receive what is there."""
        try:
            while peer.number in self._peers:  # what is received may end connections
                count = peer.connection.recv_into(peer.rest)
                if count == 0:
                    self._drop(peer, "it has closed the connection")
                    return
                peer.rest = peer.rest[count:]
                while not peer.rest:
                    self._begin_next_part(peer)
        except BlockingIOError:
            pass
        except (OSError, ValueError) as error:
            self._drop(peer, str(error))

    def _begin_next_part(self, peer: _Peer) -> None:
        """A header is complete: its payload is next. A payload is: a header is next."""
        if peer.header is None:
            *fields, size = _HEADER.unpack(peer.head)
            peer.header = Header(*fields)
            peer.rest = self._receiver.buffer(peer.number, peer.header, size)
        else:
            header, peer.header, peer.rest = peer.header, None, memoryview(peer.head)
            self._receiver.received(peer.number, header)

    def _drop(self, peer: _Peer, reason: str) -> None:
        """End one connection, and report that, once."""
        if self._peers.pop(peer.number, None) is None:
            return
        self._selector.unregister(peer.connection)
        peer.connection.close()
        self._stop_sending(peer)
        self._receiver.lost(peer.number, reason)

    def _stop_sending(self, peer: _Peer) -> None:
        """Drop what is to be sent to a peer that takes nothing any more. Its end is read after what it has
        sent."""
        peer.takes = False
        while peer.outbox:
            _, sent = peer.outbox.popleft()
            if sent:
                sent()
