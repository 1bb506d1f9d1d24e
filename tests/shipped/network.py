"""TCP between processes of simulated time: connections with delay, loss, partitions and dead ends.

Each direction keeps its order; two connections do not keep each other's. What is sent over a cut waits and is
sent again when the cut heals, unless TCP_USER_TIMEOUT (or 900 s) ends the connection first. A process that
dies closes its connections; a machine without power says nothing, and resets when it is back and receives.
A frozen process's kernel continues: it accepts and acknowledges.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from tests.shipped.loop import OWNER, Loop, Process

_PATIENCE, _CONNECT_PATIENCE = 900.0, 127.0
_RETRANSMIT = 0.4


class Network:
    """`resolve`: an address as a node sees it, to the pod's (Services)."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.resolve: Callable[[str, str], str] = lambda _, ip: ip
        self.islands: dict[str, int] = {}
        """By node; on the mainland is who is not in it."""
        self.partitions: set[frozenset[str]] = set()
        self.slowness: dict[str, float] = {}
        self.hosts: dict[str, Process] = {}
        self._ends: list[End] = []
        self._listeners: dict[tuple[str, int], Listener] = {}
        loop.connect, loop.listen = self.connect, self.listen

    # ---- who reaches whom

    def reaches(self, one: str, other: str) -> bool:
        if one == other:
            return True
        if self.islands.get(one, 0) != self.islands.get(other, 0):
            return False
        return frozenset((one, other)) not in self.partitions

    def island(self, nodes: set[str]) -> None:
        """Nodes that reach each other, and nobody else."""
        number = 1 + max(self.islands.values(), default=0)
        self.islands |= dict.fromkeys(sorted(nodes), number)

    def heal(self) -> None:
        self.islands.clear()
        self.partitions.clear()
        self.slowness.clear()

    def delay(self, one: str, other: str) -> float:
        slow = self.slowness.get(one, 1.0) * self.slowness.get(other, 1.0)
        return (0.0005 + 0.005 * self.loop.random.random()) * slow

    def reset(self, node: str) -> None:
        """Every connection of this node breaks (a middlebox restarts)."""
        for end in [each for each in self._ends if node in (each.owner.node, each.peer.owner.node)]:
            end.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    # ---- what the loop calls

    def listen(self, factory: Callable[[], Any], _host: str, port: int) -> Listener:
        owner = OWNER.get()
        assert owner is not None
        port = port or 40000 + len(self._listeners)
        listener = self._listeners[owner.ip, port] = Listener(self, owner, factory, port)
        owner.at_end.append(lambda _: listener.close())
        return listener

    def stop_listening(self, listener: Listener) -> None:
        place = listener.owner.ip, listener.port
        if self._listeners.get(place) is listener:
            del self._listeners[place]

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[End, Any]:
        owner = OWNER.get()
        assert owner is not None
        future = self.loop.create_future()
        until = self.loop.now + _CONNECT_PATIENCE
        self.loop.after(self.delay(owner.node, ""), self._knock, owner, host, port, until, future)
        listener = await future
        client, server = End(self, owner, copy_context()), End(self, listener.owner, listener.context)
        client.connect_to(server, (host, port))
        server.connect_to(client, (owner.ip, 30000 + len(self._ends) % 20000))
        protocol = client.begin(factory())
        self._ends = [end for end in self._ends if not end.over] + [client, server]
        listener.owner.loop.after(
            self.delay(owner.node, listener.owner.node), listener.accept, server, client
        )
        return client, protocol

    def _knock(self, owner: Process, host: str, port: int, until: float, future: Any) -> None:
        """A SYN, again each second until somebody answers."""
        if future.done() or not owner.alive:
            return
        ip = self.resolve(owner.node, host)
        there = self.hosts.get(ip)
        if there is not None and there.alive and self.reaches(owner.node, there.node):
            listener = self._listeners.get((ip, port))
            refused = ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed ({host!r}, {port})")
            self._answer(owner, future, listener or refused)
        elif not ip:  # a Service without endpoints
            self._answer(owner, future, ConnectionRefusedError(errno.ECONNREFUSED, "no endpoint"))
        elif self.loop.now >= until:
            self._answer(owner, future, OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
        else:
            self.loop.after(1.0, self._knock, owner, host, port, until, future)

    def _answer(self, owner: Process, future: Any, answer: Any) -> None:
        def settle() -> None:
            if not future.done():
                (future.set_exception if isinstance(answer, OSError) else future.set_result)(answer)

        owner.call(settle)


class Listener:
    """Also what create_server returns."""

    def __init__(self, network: Network, owner: Process, factory: Callable[[], Any], port: int) -> None:
        self._network, self.owner, self._factory, self.port = network, owner, factory, port
        self.context = copy_context()
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        return self.owner.ip, self.port

    def close(self) -> None:
        self._network.stop_listening(self)

    def accept(self, end: End, client: End) -> None:
        if client.over:
            return
        if not self.owner.alive:
            client.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            return
        self.owner.loop.call_soon(lambda: end.begin(self._factory()), context=self.context)


class End(asyncio.Transport):
    """One end of a connection, as asyncio's transport. Also its socket."""

    def __init__(self, network: Network, owner: Process, context: Context) -> None:
        super().__init__()
        self._network, self.owner, self._context = network, owner, context
        self.over = self._closing = self.deaf = False
        self.peer: End
        self._protocol: Any = None
        self._early: list[tuple[Callable[..., None], Any]] = []
        self._name: tuple[str, int] = ("", 0)
        self._arrives = 0.0
        self._unsent: list[tuple[str, bytes]] = []
        """Not acknowledged, in order: what and the bytes."""
        self._since = 0.0
        """Of the first of them."""
        self.patience = _PATIENCE
        self._trying = False
        owner.at_end.append(self._owner_died)

    def connect_to(self, peer: End, name: tuple[str, int]) -> None:
        self.peer, self._name = peer, name

    def begin(self, protocol: Any) -> Any:
        self._protocol = protocol
        if self.over:
            return protocol
        protocol.connection_made(self)
        for call, argument in self._early:
            call(argument)
        self._early.clear()
        return protocol

    # ---- what protocols call

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        known = {"peername": self._name, "socket": self, "sockname": (self.owner.ip, 0)}
        return known.get(name, default)

    def setsockopt(self, _level: int, _option: int, value: int) -> None:
        """TCP_USER_TIMEOUT is the only one that anybody sets."""
        self.patience = value / 1000

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing or self.over

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """No sender sends that much."""

    resume_reading = pause_reading

    def is_reading(self) -> bool:
        return True

    def write(self, data: Any) -> None:
        if not self.is_closing() and data:
            self._send("data", bytes(data))

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._send("end", b"")

    def close(self) -> None:
        if not self.is_closing():
            self._closing = True
            self._send("end", b"")
            self._notify(self._finish, None)

    def abort(self) -> None:
        if not self.over:
            self._closing = True
            self._unsent.clear()
            self._send("reset", b"")
            self._notify(self._finish, None)

    # ---- the kernel

    def _owner_died(self, silent: bool) -> None:
        if self.over:
            return
        if not silent:
            self._unsent.clear()
            self._send("reset" if self._network.loop.random.random() < 0.5 else "end", b"")
        self.over = True
        self.deaf = silent

    def _send(self, kind: str, data: bytes) -> None:
        if not self._unsent:
            self._since = self._network.loop.now
        self._unsent.append((kind, data))
        if not self._trying:
            self._trying = True
            self._network.loop.after(0.0, self._transmit)

    def _transmit(self) -> None:
        """Deliver all that waits, if the way is free; else later again, until patience ends."""
        loop, network, peer = self._network.loop, self._network, self.peer
        self._trying = False
        if self.deaf or not self._unsent:
            return
        if network.reaches(self.owner.node, peer.owner.node) and not peer.deaf:
            ready, self._unsent = self._unsent, []
            when = max(self._arrives, loop.now + network.delay(self.owner.node, peer.owner.node))
            self._arrives = when
            loop.after(when - loop.now, self._arrive, ready)
        elif loop.now - self._since >= self.patience:
            self.lose(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
        elif network.hosts.get(peer.owner.ip) is not peer.owner and peer.deaf and self._host_is_back():
            self.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        else:
            self._trying = True
            loop.after(_RETRANSMIT, self._transmit)

    def _host_is_back(self) -> bool:
        there = self._network.hosts.get(self.peer.owner.ip)
        return there is not None and there.alive and self._network.reaches(self.owner.node, there.node)

    def _arrive(self, parts: list[tuple[str, bytes]]) -> None:
        peer = self.peer
        if not self._network.reaches(self.owner.node, peer.owner.node) and not self.deaf:
            self._unsent = parts + self._unsent  # the cut came while it was under way
            self._since = self._network.loop.now
            self._network.loop.after(_RETRANSMIT, self._transmit)
            return
        for kind, data in parts:
            self._network.loop.note(self.owner.name, peer.owner.name, kind, data)
            peer.take(kind, data)

    def take(self, kind: str, data: bytes) -> None:
        """Data has arrived at this end's kernel."""
        if self.over:
            if kind == "data" and self.peer and not self.deaf:
                self.peer.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        elif kind == "data":
            self._notify(self._data, data)
        elif kind == "end":
            self._notify(self._eof, None)
        else:
            self.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def lose(self, error: OSError) -> None:
        """The connection is over, as far as this end is concerned."""
        self._unsent.clear()
        self._notify(self._finish, error)

    def _notify(self, call: Callable[..., None], argument: Any) -> None:
        if self._protocol is None:
            self._early.append((call, argument))
        else:
            self._network.loop.call_soon(call, argument, context=self._context.copy())

    def _data(self, data: bytes) -> None:
        if not self.is_closing():
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                asyncio.protocols._feed_data_to_buffered_proto(self._protocol, data)  # type: ignore[attr-defined]
            else:
                self._protocol.data_received(data)

    def _eof(self, _: None) -> None:
        if not self.over and not self._protocol.eof_received():
            self.close()

    def _finish(self, error: OSError | None) -> None:
        if not self.over:
            self.over = self._closing = True
            self._protocol.connection_lost(error)
