"""Positions of replicas that regroup, and their messages."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from ropeteam_trainer.strategies.exact.links import Header

POSITION = 4
"""Kind of the message with a position. Payload: when others joined, and the leaves."""
_JOINED, _LEAF = struct.Struct("<Q"), struct.Struct("<I")
_NOTHING = (1 << 64) - 1
"""In a message: the position of a replica without state."""


class Position(NamedTuple):
    """Progress of a replica when it regroups."""

    done: int
    """Number of its complete exchanges. -1: it has no state yet."""
    leaves: tuple[int, ...] = ()
    """Leaves whose gradients it has, or will have, for the next one."""
    joined: int = 0
    """Number of its complete exchanges when new replicas joined last. 0: none has."""

    def message(self, world: int) -> tuple[Header, memoryview]:
        """Message to the next members, which have this number."""
        done = _NOTHING if self.done < 0 else self.done
        payload = _JOINED.pack(self.joined) + b"".join(map(_LEAF.pack, self.leaves))
        return Header(POSITION, world, 0, 0, 0, done), memoryview(payload)

    @classmethod
    def of(cls, header: Header, payload: memoryview) -> Position:
        """The position in a message. Raises ValueError."""
        size = len(payload) - _JOINED.size
        if size < 0 or size % _LEAF.size:
            raise ValueError(f"it sent a position of {len(payload)} bytes")
        (joined,) = _JOINED.unpack_from(payload)
        leaves = tuple(number for (number,) in _LEAF.iter_unpack(payload[_JOINED.size :]))
        return cls(-1 if header.step == _NOTHING else header.step, leaves, joined)


def most_bytes(leaves: int) -> int:
    """Size of the payload of a position with all leaves."""
    return _JOINED.size + _LEAF.size * leaves


def sender_of_sums(positions: Mapping[int, Position]) -> int | None:
    """The lowest replica with the last sums, which sends them to those without. None: all have them."""
    most = max(position.done for position in positions.values())
    if all(position.done == most for position in positions.values()):
        return None
    return min(replica for replica, position in positions.items() if position.done == most)


def with_state(positions: Mapping[int, Position]) -> dict[int, Position]:
    return {replica: position for replica, position in positions.items() if position.done >= 0}
