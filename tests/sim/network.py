"""The network between operator, coordinators and agents.

Connections are TCP's: bytes arrive in order or not at all. A cut between two sites holds what is under way
and delivers it when the cut heals, unless the connection was closed meanwhile; neither end learns of a cut.
An end whose process dies says so to the other (its kernel does), one whose machine loses power says
nothing. Delays are drawn again for each message; a slow site multiplies them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from tests.sim.clock import Clock

LONGEST_DELAY = 0.011
"""Seconds that a message is on its way, where no site is slow."""


class Peer(Protocol):
    """One end of a connection: its notifications."""

    site: str

    def received(self, connection: Connection, message: Any) -> None: ...

    def closed(self, connection: Connection) -> None: ...


class Network:
    def __init__(self, clock: Clock, random: Random) -> None:
        self.clock, self._random = clock, random
        self._partitions: set[frozenset[str]] = set()
        self._islands: dict[str, int] = {}
        """Sites that are cut off from all others but those of the same number."""
        self.slowness: dict[str, float] = {}
        self._held: list[tuple[str, str, Callable[[], None]]] = []
        self._opened: list[Connection] = []

    def reaches(self, one: str, other: str) -> bool:
        if self._islands and self._islands.get(one) != self._islands.get(other):
            return False
        return not self._partitions or frozenset((one, other)) not in self._partitions

    def partition(self, one: str, other: str) -> None:
        self._partitions.add(frozenset((one, other)))

    def isolate(self, site: str) -> None:
        """Cut this site off from all others."""
        self.island(site)

    def island(self, *sites: str) -> None:
        """Cut these sites off from all others, not from each other."""
        number = max(self._islands.values(), default=0) + 1
        self._islands.update(dict.fromkeys(sites, number))

    def heal(self) -> None:
        """Undo every cut and slowness; what was held arrives now, in order."""
        self._partitions.clear()
        self._islands.clear()
        self.slowness.clear()
        held, self._held = self._held, []
        for _, _, deliver in held:
            deliver()

    def join(self, site: str) -> None:
        """Undo the isolation of one site."""
        self._islands.pop(site, None)
        held, self._held = self._held, []
        for one, other, deliver in held:
            self.carry(one, other, deliver)

    def delay(self, one: str, other: str) -> float:
        slow = self.slowness.get(one, 1.0) * self.slowness.get(other, 1.0)
        return (0.001 + 0.01 * self._random.random()) * slow

    def carry(self, one: str, other: str, deliver: Callable[[], None]) -> None:
        """Deliver now, or when the cut between the two heals."""
        if self.reaches(one, other):
            deliver()
        else:
            self._held.append((one, other, deliver))

    def connect(self, client: Peer, server: Peer) -> Connection:
        connection = Connection(self, client, server)
        self._opened = [each for each in self._opened if each.open]
        self._opened.append(connection)
        return connection

    def reset(self, site: str) -> None:
        """Every connection of this site breaks (a middlebox restarts): both ends are notified."""
        for connection in self._opened:
            if connection.open and site in (connection.client.site, connection.server.site):
                connection.close(by=connection.client)
                connection.client.closed(connection)


class Connection:
    """One TCP connection. `arrives` keeps each direction in order."""

    def __init__(self, network: Network, client: Peer, server: Peer) -> None:
        self._network, self.client, self.server = network, client, server
        self.open = True
        self._arrives = {True: 0.0, False: 0.0}

    def send(self, sender: Peer, message: Any) -> None:
        to_server = sender is self.client
        receiver = self.server if to_server else self.client
        self._later(to_server, lambda: receiver.received(self, message))

    def close(self, by: Peer) -> None:
        """Closed by one end (or by the kernel of its dead process); the other is notified a little later."""
        if not self.open:
            return
        to_server = by is self.client
        other = self.server if to_server else self.client
        self._later(to_server, lambda: other.closed(self), last=True)
        self.open = False

    def vanish(self) -> None:
        """One end lost power: nothing arrives any more, and nobody is notified."""
        self.open = False

    def _later(self, to_server: bool, notify: Callable[[], None], last: bool = False) -> None:
        if not self.open:
            return
        network, one, other = self._network, self.client.site, self.server.site
        when = max(self._arrives[to_server], network.clock.now + network.delay(one, other))
        self._arrives[to_server] = when

        def deliver() -> None:
            if self.open or last:
                notify()

        network.clock.at(when, network.carry, one, other, deliver)
