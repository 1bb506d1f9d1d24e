"""Sets of slots as integers, bit n for slot n: union, intersection and count take 64 slots at a time; frozen.

ALL holds every possible slot; so does a complement (`~`): intersect it with `up_to(n)` before you count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Slots = int
NONE: Slots = 0
ALL: Slots = -1


def one(slot: int) -> Slots:
    """The set of this slot."""
    return 1 << slot


def up_to(count: int) -> Slots:
    """Slots 0 to count - 1."""
    return (1 << count) - 1


def of(members: Iterable[int]) -> Slots:
    """The set of these slots, in any order, none negative."""
    found = NONE
    for slot in members:
        found |= 1 << slot
    return found


def has(slots: Slots, slot: int) -> bool:
    """Whether the set holds the slot. Of a complement, too."""
    return slots >> slot & 1 == 1


def first(slots: Slots) -> int:
    """The lowest slot. Not for an empty set, nor for a complement."""
    return (slots & -slots).bit_length() - 1


def each(slots: Slots) -> Iterator[int]:
    """The slots in ascending order. Not for a complement."""
    while slots:
        yield first(slots)
        slots &= slots - 1
