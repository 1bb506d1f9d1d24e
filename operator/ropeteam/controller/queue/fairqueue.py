"""A fair queue: keys that are due, by the group that they belong to.

Groups are served round-robin, however many keys each has; and a group uses at most half of the capacity that
the others leave, at least one, so that the next group finds some whatever the first does with its share.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class FairQueue(Generic[Key]):
    """Keys in round-robin order of their groups. `capacity`: how many keys may be taken at the same time."""

    def __init__(self, capacity: int, group: Callable[[Key], Hashable]) -> None:
        self._capacity, self._group = capacity, group
        self._due: dict[Hashable, deque[Key]] = {}
        """Keys by group, in the order in which groups are served."""
        self._taken = Counter[Hashable]()
        """By group: keys that were taken and not given back."""
        self._wakeups = asyncio.Queue[None]()
        """At least one for each key that a waiting `take` could return; one too many does no harm."""

    def __len__(self) -> int:
        """Number of keys that wait; those taken are not counted."""
        return sum(map(len, self._due.values()))

    def add(self, key: Key) -> None:
        """Append a key to its group. A key that is added twice is taken twice."""
        self._due.setdefault(self._group(key), deque()).append(key)
        self._wakeups.put_nowait(None)

    async def take(self) -> Key:
        """Wait for the next key, remove and return it; the caller has to call `give_back`. The first group in
        order that has capacity is served, and goes to the end of the order. Cancelling loses no key."""
        while True:
            await self._wakeups.get()
            group = next((group for group in self._due if self._has_capacity(group)), None)
            if group is None:
                continue
            keys = self._due.pop(group)
            key = keys.popleft()
            self._taken[group] += 1
            if keys:
                self._due[group] = keys
            if self._due:
                self._wakeups.put_nowait(None)
            return key

    def give_back(self, key: Key) -> None:
        """Release the capacity that a taken key uses."""
        group = self._group(key)
        self._taken[group] -= 1
        if not self._taken[group]:
            del self._taken[group]
        if self._due:
            self._wakeups.put_nowait(None)

    def _has_capacity(self, group: Hashable) -> bool:
        """Whether the group may use more: less than half, rounded up, of what the others leave."""
        own = self._taken[group]
        left = self._capacity - (self._taken.total() - own)
        return own < (left + 1) // 2
