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
MOST_BYTES = 1 << 30
"""Size of the sums by which new replicas may be behind, if it is more than those of one exchange."""


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
        self.index: memoryview | None = None
        """The first part of the state. None: it has not come yet."""
        self._places: Sequence[memoryview] | None = None
        """Memory of the other parts. None: it is not known before the index is read."""
        self._next = 0
        """Number of the part that is due."""

    @property
    def is_apart(self) -> bool:
        """Whether others that regroup continue without it: it is no member yet."""
        return self.awaits_state or (self.follows and self.admitted_at is None)

    def receive_into(self, places: Sequence[memoryview]) -> None:
        """Receive the parts of the state after the first one there."""
        self._places = places

    def buffer(self, header: Header, size: int) -> memoryview | None:
        """As Receiver.buffer()."""
        if header.kind == FOLLOWED:
            return self.sums.buffer(header, size)
        return memoryview(bytearray(size)) if header.kind == ADMITTED else self._place(header, size)

    def _place(self, header: Header, size: int) -> memoryview | None:
        """Memory of a part of the state. None: it is not known yet."""
        if header.bucket != self._next:
            raise ValueError(f"it sent part {header.bucket} of the state, and {self._next} was due")
        if self._next == 0:
            place = memoryview(bytearray(size))
        elif self._places is None:
            return None
        elif len(self._places) != header.end - 1 or len(self._places[self._next - 1]) != size:
            raise ValueError(f"it sent other state than this rank has: {size} bytes in part {self._next}")
        else:
            place = self._places[self._next - 1]
        self._next += 1
        return place

    def received(self, header: Header, payload: memoryview) -> None:
        """As Receiver.received()."""
        if header.kind == FOLLOWED:
            self.sums.received(header)
        elif self.has_declined:
            pass  # too late: others continue without it
        elif header.kind == ADMITTED:
            self.admitted_at = header.step
        else:
            self.index = self.index or payload
            self.awaits_state = header.bucket + 1 < header.end


def most_behind(exchanges: int, size: int) -> int:
    """Number by which new replicas may be behind after they have followed for so many exchanges. It falls to
    0, so that those that are slower than the others are admitted too. size: bytes of the sums of one."""
    most = max(1, min(MOST_BEHIND, MOST_BYTES // size))
    return max(0, most - exchanges // _CLOSER_EVERY)


def behind(progress: Mapping[int, int], replicas: Iterable[int], done: int, begun_at: int) -> int:
    """Exchanges by which the slowest of these replicas is behind one that has done so many. progress: number
    that each has reported; none is before `begun_at`, when they began to follow."""
    return done - max(begun_at, min(progress.get(replica, 0) for replica in replicas))
