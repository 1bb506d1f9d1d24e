"""Whose turn it is: keys that are due, by the group that they belong to.

Groups take turns, however many keys each has; and a group holds at most half of the places that the others
leave, at least one, so that the next group finds one whatever the first does with its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Turns(Generic[Key]):
    """`places`: how many keys may be out at the same time."""

    def __init__(self, places: int, group: Callable[[Key], Hashable]) -> None:
        self._places, self._group = places, group
        self._due: dict[Hashable, deque[Key]] = {}
        """In the order of their turns."""
        self._out = Counter[Hashable]()
        self._bells = asyncio.Queue[None]()
        """One at least for each key that could be taken by somebody who waits; one too many does no harm."""

    def __len__(self) -> int:
        return sum(map(len, self._due.values()))

    def add(self, key: Key) -> None:
        self._due.setdefault(self._group(key), deque()).append(key)
        self._bells.put_nowait(None)

    async def take(self) -> Key:
        """The next key; the caller owes `give_back`."""
        while True:
            await self._bells.get()
            group = next((group for group in self._due if self._has_place(group)), None)
            if group is None:
                continue
            keys = self._due.pop(group)
            key = keys.popleft()
            self._out[group] += 1
            if keys:
                self._due[group] = keys
            if self._due:
                self._bells.put_nowait(None)
            return key

    def give_back(self, key: Key) -> None:
        group = self._group(key)
        self._out[group] -= 1
        if not self._out[group]:
            del self._out[group]
        if self._due:
            self._bells.put_nowait(None)

    def _has_place(self, group: Hashable) -> bool:
        own = self._out[group]
        left = self._places - (self._out.total() - own)
        return own < (left + 1) // 2
