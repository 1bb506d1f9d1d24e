"""Simulated time: a heap of things that will happen, and processes written as generators.

A process yields how many seconds it waits; whatever happens between two of its yields is one moment.
Killing a process means that its next moment never comes: so it can die between any two of its calls. Two
things at the same moment happen in the order in which they were planned: a history is the same each time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator
from typing import Any

Process = Generator[float, None, Any]


class Timer:
    """One thing that will happen, unless it is cancelled."""

    __slots__ = ("arguments", "call", "number", "when")

    def __init__(
        self, when: float, number: int, call: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        self.when, self.number = when, number
        self.call: Callable[..., None] | None = call
        self.arguments = arguments

    def __lt__(self, other: Timer) -> bool:
        return (self.when, self.number) < (other.when, other.number)

    def cancel(self) -> None:
        self.call = None


class Task:
    """A running process."""

    def __init__(self, clock: Clock, process: Process) -> None:
        self._clock, self._process = clock, process
        self.alive = True
        self._timer = clock.after(0, self._step)

    def _step(self) -> None:
        try:
            wait = next(self._process)
        except StopIteration:
            self.alive = False
            return
        if self.alive:  # the process may have been killed by what it just did
            self._timer = self._clock.after(wait, self._step)

    def wake(self, seconds: float) -> None:
        """End the wait that it is in, in `seconds`. Only for a process that waits."""
        self._timer.cancel()
        self._timer = self._clock.after(seconds, self._step)

    def kill(self) -> None:
        self.alive = False
        self._timer.cancel()


class Clock:
    """`now` in seconds since the world began."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[Timer] = []
        self._count = 0

    def at(self, when: float, call: Callable[..., None], *arguments: Any) -> Timer:
        self._count += 1
        timer = Timer(max(when, self.now), self._count, call, arguments)
        heapq.heappush(self._heap, timer)
        return timer

    def after(self, seconds: float, call: Callable[..., None], *arguments: Any) -> Timer:
        return self.at(self.now + seconds, call, *arguments)

    def spawn(self, process: Process) -> Task:
        return Task(self, process)

    def happen(self, until: float) -> Iterator[float]:
        """Let everything up to `until` happen, one thing at a time; yields the time after each."""
        while self._heap and self._heap[0].when <= until:
            timer = heapq.heappop(self._heap)
            if timer.call is None:
                continue
            self.now = timer.when
            self.events += 1
            timer.call(*timer.arguments)
            yield self.now
        self.now = max(self.now, until)
