"""Connections between the replicas of a job, and the thread that serves them.

Each replica has one connection to each other. Messages are a fixed header, then raw bytes:

    kind 4 | world 8 | bucket 4 | begin 4 | end 4 | step 8 | length of the payload 8

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
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

_HEADER = struct.Struct("<IQIIIQQ")


class Header(NamedTuple):
    """Header of a message; exchange.py has the meanings."""

    kind: int
    world: int
    """Number of the members among whom it is sent."""
    bucket: int
    begin: int
    end: int
    step: int


class Receiver(Protocol):
    """Called in the thread of the connections."""

    def buffer(self, peer: int, header: Header, size: int) -> memoryview | None:
        """Where the payload of a message goes. None: it is too early, and its connection is not read before
        Links.resume(). Raises ValueError for a message that cannot be."""

    def received(self, peer: int, header: Header, payload: memoryview) -> None:
        """The payload is in its buffer."""

    def lost(self, peer: int, reason: str) -> None:
        """The connection has ended. Not called after close()."""

    def failed(self, error: Exception) -> None:
        """The thread ends by an error of ours. Nothing is called any more."""


@dataclass
class _Message:
    """A message, as far as it is still to be sent."""

    header: memoryview
    payload: memoryview
    sent: Callable[[], None] | None
    """Called when all of it is sent, or never will be."""

    @property
    def has_begun(self) -> bool:
        return len(self.header) < _HEADER.size


class _Peer:
    """One connection, what is to be sent there, and the message that is being received."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number, self.connection = number, connection
        self.outbox: collections.deque[_Message] = collections.deque()
        self.is_full = False
        """Whether the connection took less than there was to send."""
        self.takes = True
        """Whether the connection can be sent anything. If not, what it has sent may still be read."""
        self.waits = False
        """Whether nothing is read, because the payload of `header` is too early."""
        self.head = bytearray(_HEADER.size)
        self.header: Header | None = None
        """Header of the message whose payload is being received. None: a header is."""
        self.size = 0
        """Size of that payload."""
        self.payload = memoryview(b"")
        """Buffer of that payload."""
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
        self._peers: dict[int, _Peer] = {}
        self.add(connections)
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

    def call(self, call: Callable[[], None]) -> None:
        """Have the thread of the connections call this, and return once it has, or has ended."""
        done = threading.Event()

        def call_and_note() -> None:
            try:
                call()
            finally:
                done.set()

        self.run(call_and_note)
        self.wait(done)

    def wait(self, event: threading.Event) -> None:
        """Return once the thread of the connections has set this, or has ended."""
        while not event.wait(1.0) and self._thread.is_alive():
            pass

    def add(self, connections: Mapping[int, socket.socket]) -> None:
        """Serve more connections: {replica: connected socket}, to replicas that have none. In the thread of
        the connections only."""
        for number, connection in connections.items():
            connection.setblocking(False)
            self._peers[number] = _Peer(number, connection)
            self._selector.register(connection, selectors.EVENT_READ, self._peers[number])

    def resume(self) -> None:
        """Take messages that were too early. In the thread of the connections only."""
        for peer in [peer for peer in self._peers.values() if peer.waits]:
            if not self._is_served(peer):
                continue  # what another one has sent has ended it
            peer.waits = False
            self._watch(peer)
            self._receive(peer)

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
        peer.outbox.append(_Message(memoryview(_HEADER.pack(*header, len(payload))), payload, sent))
        if not peer.is_full:
            self._flush(peer)

    def send_all(
        self, to: Mapping[int, socket.socket], messages: Iterable[tuple[Header, memoryview]]
    ) -> threading.Event:
        """Send these messages to each replica that still has this connection. From any thread. The payloads
        must not change before the returned event: all is sent, or never will be."""
        done = threading.Event()

        def send() -> None:
            served = [number for number, connection in to.items() if self.serves(number, connection)]
            unsent = 1  # until all are in outboxes

            def note_sent() -> None:
                nonlocal unsent
                unsent -= 1
                if unsent == 0:
                    done.set()

            for header, payload in messages:
                for number in served:
                    unsent += 1
                    self.send(number, header, payload, note_sent)
            note_sent()

        self.run(send)
        return done

    def withdraw(self) -> None:
        """Send none of the messages that are still to be sent: their memory may change now. The rest of one
        that has begun is copied, and sent. In the thread of the connections only."""
        for peer in self._peers.values():
            for message in self._emptied(peer):
                if message.has_begun:
                    peer.outbox.append(_Message(message.header, memoryview(bytes(message.payload)), None))

    def serves(self, number: int, connection: socket.socket) -> bool:
        """Whether this is still the connection to that replica. In the thread of the connections only."""
        return number in self._peers and self._peers[number].connection is connection

    def drop(self, number: int, reason: str) -> None:
        """End a connection, as if the peer had. In the thread of the connections only."""
        if peer := self._peers.get(number):
            self._drop(peer, reason)

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
            if events & selectors.EVENT_WRITE and self._is_served(peer):
                self._flush(peer)
            if events & selectors.EVENT_READ and self._is_served(peer):
                self._receive(peer)

    def _is_served(self, peer: _Peer) -> bool:
        """Whether this connection has not been ended since."""
        return self._peers.get(peer.number) is peer

    def _run_calls(self) -> None:
        self._woken.recv(4096)
        while self._calls:
            self._calls.popleft()()

    def _flush(self, peer: _Peer) -> None:
        """Send what the connection takes now; the rest when it takes more."""
        try:
            while peer.outbox:
                message = peer.outbox[0]
                while message.header:
                    message.header = message.header[peer.connection.send(message.header) :]
                while message.payload:
                    message.payload = message.payload[peer.connection.send(message.payload) :]
                peer.outbox.popleft()
                if message.sent:
                    message.sent()
        except BlockingIOError:
            pass
        except OSError:
            self._stop_sending(peer)
        if peer.is_full != bool(peer.outbox):
            peer.is_full = bool(peer.outbox)
            self._watch(peer)

    def _watch(self, peer: _Peer) -> None:
        """Wait for what this connection is to do next."""
        wanted = (0 if peer.waits else selectors.EVENT_READ) | (selectors.EVENT_WRITE if peer.is_full else 0)
        with suppress(KeyError):  # it waited for nothing
            self._selector.unregister(peer.connection)
        if wanted:
            self._selector.register(peer.connection, wanted, peer)

    def _receive(self, peer: _Peer) -> None:
        """Receive what is there."""
        try:
            if peer.header is not None and not peer.rest:
                self._begin_payload(peer, peer.header)  # it was too early
            while self._is_served(peer) and not peer.waits:  # what is received may end connections
                if not peer.rest:
                    self._begin_next_part(peer)
                    continue
                count = peer.connection.recv_into(peer.rest)
                if count == 0:
                    self._drop(peer, "it has closed the connection")
                    return
                peer.rest = peer.rest[count:]
        except BlockingIOError:
            pass
        except (OSError, ValueError) as error:
            self._drop(peer, str(error))

    def _begin_next_part(self, peer: _Peer) -> None:
        """A header is complete: its payload is next. A payload is: a header is next."""
        if peer.header is None:
            *fields, peer.size = _HEADER.unpack(peer.head)
            peer.header = Header(*fields)
            self._begin_payload(peer, peer.header)
        else:
            header, peer.header, peer.rest = peer.header, None, memoryview(peer.head)
            self._receiver.received(peer.number, header, peer.payload)

    def _begin_payload(self, peer: _Peer, header: Header) -> None:
        payload = self._receiver.buffer(peer.number, header, peer.size)
        if payload is None:
            peer.waits = True
            self._watch(peer)
        else:
            peer.rest = peer.payload = payload

    def _drop(self, peer: _Peer, reason: str) -> None:
        """End one connection, and report that, once."""
        if not self._is_served(peer):
            return
        del self._peers[peer.number]
        self._close(peer)
        self._receiver.lost(peer.number, reason)

    def _close(self, peer: _Peer) -> None:
        with suppress(KeyError):  # it waited for nothing
            self._selector.unregister(peer.connection)
        peer.connection.close()
        self._stop_sending(peer)

    def _stop_sending(self, peer: _Peer) -> None:
        """Drop what is to be sent to a peer that takes nothing any more. Its end is read after what it has
        sent."""
        peer.takes = False
        self._emptied(peer)

    def _emptied(self, peer: _Peer) -> list[_Message]:
        """The messages that were to be sent to a peer, which is sent none of them now."""
        messages = [*peer.outbox]
        peer.outbox.clear()
        for message in messages:
            if message.sent:
                message.sent()
        return messages
