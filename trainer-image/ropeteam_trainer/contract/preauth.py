"""Limit on connections that have not authenticated yet: it protects every port of ours from a flood.

When the limit is reached, the address that has most connections loses its oldest one: a flood displaces
itself, and a peer with an address of its own stays. From one address alone (a proxy's, or that of a node that
masquerades) the newest stay, because a legitimate peer authenticates at once.
An authenticated peer does not count. Pure: the caller closes connections.
"""

from __future__ import annotations

from collections.abc import Callable

HEAD_SECONDS = 5.0
"""Limit for the head of an HTTP request: as long as a kubelet waits for the response."""
BACKLOG = 4096
"""Listen backlog: all agents of a job connect at once, and unauthenticated peers before them. A peer that
finds the backlog full tries again after a second."""


class UnauthenticatedConnections:
    """Connections that have not authenticated, and the places that they take. A connection takes one place or
    more: its server gives it another one for each so many bytes that it has sent.

    A connection is identified by its address and its function `close`, which may call free().
    """

    def __init__(self, places: int) -> None:
        """`places`: limit on all connections together."""
        self.places, self.taken = places, 0
        self._places: dict[str, dict[Callable[[], None], int]] = {}
        """Number of places by address and connection, oldest connection first."""

    def admit(self, address: str, close: Callable[[], None]) -> None:
        """Take a place, or one more for a connection that has one. Over the limit this closes connections by
        evict_one(), perhaps this one."""
        connections = self._places.setdefault(address, {})
        connections[close] = connections.get(close, 0) + 1
        self.taken += 1
        while self.taken > self.places:
            self.evict_one()

    def evict_one(self) -> bool:
        """Close the oldest connection of the address that has most. False: there is none."""
        if not self._places:
            return False
        address = max(self._places, key=lambda each: sum(self._places[each].values()))
        close = next(iter(self._places[address]))
        self.free(address, close)
        close()
        return True

    def free(self, address: str, close: Callable[[], None]) -> None:
        """Free the connection's places, because it is closed or authenticated. Idempotent."""
        connections = self._places.get(address, {})
        self.taken -= connections.pop(close, 0)
        if not connections:
            self._places.pop(address, None)
