"""New replicas that follow the others until they have caught up, while these train on (catchUp: Follow).

At the end of a step the lowest replica sends its state to the new ones, and from then on the sums of each
exchange. A new replica makes the same steps with these, without a micro-batch of its own, which is faster,
and reports how far it is. Once all new ones are one exchange behind at most, they are admitted at the end of
a step that all the others choose.

    the others   ─ step 7 ─ step 8 ─ step 9 ─ step 10 ┐ form a group ┌ step 11
    state 7, sums      ╲  ╲      ╲       ╲       ╲    │              │
    a new one           loads 7   8   9   10 ─────────┘              └ step 11
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from ropeteam_trainer.strategies.exact.links import Header
from ropeteam_trainer.strategies.exact.sums import BucketShape, as_bytes

STATE, FOLLOWED, PROGRESS, ADMITTED = 5, 6, 7, 8
"""Kinds of messages: a part of the state; the whole sum of a bucket in an exchange; the number of exchanges
that a new replica has done; that after which it is a member."""
MOST_BEHIND, _CLOSER_EVERY = 16, 4
"""Exchanges by which new replicas may be behind: the others wait for them then, whose sums take memory. After
so many exchanges it is one less."""


class WholeSums:
    """Sums of all buckets that another replica sends to this one, by exchange."""

    def __init__(self, shapes: Sequence[BucketShape]) -> None:
        self._shapes = shapes
        self._sums: dict[int, dict[int, torch.Tensor]] = {}
        self._received: dict[int, set[int]] = {}
        """Buckets whose sums are complete."""

    def buffer(self, header: Header, size: int) -> memoryview:
        """As Receiver.buffer()."""
        of_exchange = self._sums.setdefault(header.step, {})
        if header.bucket in of_exchange or header.bucket >= len(self._shapes):
            raise ValueError(f"it sent the sum of bucket {header.bucket}, which was not due")
        of_exchange[header.bucket] = self._shapes[header.bucket].new()
        view = as_bytes(of_exchange[header.bucket])
        if len(view) != size:
            raise ValueError(f"it sent {size} bytes for a sum of {len(view)}")
        return view

    def received(self, header: Header) -> None:
        """As Receiver.received()."""
        self._received.setdefault(header.step, set()).add(header.bucket)

    def are_here(self, exchange: int) -> bool:
        return len(self._received.get(exchange, ())) == len(self._shapes)

    def take(self, exchange: int) -> list[torch.Tensor]:
        """The sums, which are forgotten here."""
        del self._received[exchange]
        return [values for _, values in sorted(self._sums.pop(exchange).items())]


class Newcomer:
    """A new replica, until it is a member: messages to it. Guarded by the exchange that has it."""

    KINDS = frozenset({STATE, FOLLOWED, ADMITTED})

    def __init__(self, source: int, shapes: Sequence[BucketShape], follows: bool) -> None:
        """source: the replica that sends it the state. follows: whether it follows the others then, before it
        is a member."""
        self.source, self.follows = source, follows
        self.awaits_state = True
        self.has_declined = False
        """Whether others continue without it, because it was no member yet."""
        self.admitted_at: int | None = None
        """Number of exchanges after which it is a member. None: not known yet."""
        self.sums = WholeSums(shapes)
        self._state: dict[int, memoryview] = {}

    @property
    def is_apart(self) -> bool:
        """Whether others that regroup continue without it: it is no member yet."""
        return self.awaits_state or (self.follows and self.admitted_at is None)

    def buffer(self, header: Header, size: int) -> memoryview:
        """As Receiver.buffer()."""
        if header.kind == FOLLOWED:
            return self.sums.buffer(header, size)
        if header.kind == STATE and header.bucket in self._state:
            raise ValueError(f"it sent part {header.bucket} of the state, which was not due")
        return memoryview(bytearray(size))

    def received(self, header: Header, payload: memoryview) -> None:
        """As Receiver.received()."""
        if header.kind == FOLLOWED:
            self.sums.received(header)
        elif self.has_declined:
            pass  # too late: others continue without it
        elif header.kind == ADMITTED:
            self.admitted_at = header.step
        else:
            self._state[header.bucket] = payload
            self.awaits_state = len(self._state) < header.end

    def state(self) -> list[memoryview]:
        """The parts of the state, which are forgotten here."""
        parts, self._state = self._state, {}
        return [part for _, part in sorted(parts.items())]


def most_behind(exchanges: int) -> int:
    """Number by which new replicas may be behind after they have followed for so many exchanges. It falls to
    0, so that those that are slower than the others are admitted too."""
    return max(0, MOST_BEHIND - exchanges // _CLOSER_EVERY)


def behind(progress: Mapping[int, int], replicas: Iterable[int], done: int, begun_at: int) -> int:
    """Exchanges by which the slowest of these replicas is behind one that has done so many. progress: number
    that each has reported; none is before `begun_at`, when they began to follow."""
    return done - max(begun_at, min(progress.get(replica, 0) for replica in replicas))
