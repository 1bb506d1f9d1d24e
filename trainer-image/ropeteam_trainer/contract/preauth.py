"""Places for peers that have proved nothing yet: how every port of ours keeps a flood from those it serves.

When the places are taken, the address that has most of them loses the stranger that came first: a flood
displaces itself, and who comes from an address of its own stays. From one address alone (a proxy's, a
node's that masquerades) the newest stay, for who has a right to be served shows it at once.
Who has proved that it is one of us takes no place. Pure: to close a connection is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable

HEAD_SECONDS = 5.0
"""For the head of an HTTP request: as long as a kubelet waits for the answer."""
BACKLOG = 4096
"""Connections that wait to be accepted: all agents of a job come at once, and strangers before them. One that
finds no room tries again after a second."""


class Strangers:
    """A stranger is known by its address and `leave`, which ends its connection and may call `free`."""

    def __init__(self, places: int) -> None:
        self.places, self.taken = places, 0
        self._of: dict[str, dict[Callable[[], None], int]] = {}
        """Places by address and stranger, in the order in which they came."""

    def take(self, address: str, leave: Callable[[], None]) -> None:
        """A place, or one more for who has one. Who leaves for it has come before; it may be this one."""
        theirs = self._of.setdefault(address, {})
        theirs[leave] = theirs.get(leave, 0) + 1
        self.taken += 1
        while self.taken > self.places:
            self.end_one()

    def end_one(self) -> bool:
        """Make room. False: there is no stranger."""
        if not self._of:
            return False
        address = max(self._of, key=lambda each: sum(self._of[each].values()))
        leave = next(iter(self._of[address]))
        self.free(address, leave)
        leave()
        return True

    def free(self, address: str, leave: Callable[[], None]) -> None:
        """Its places: it has gone, or it is no stranger any more. Twice is the same as once."""
        theirs = self._of.get(address, {})
        self.taken -= theirs.pop(leave, 0)
        if not theirs:
            self._of.pop(address, None)
