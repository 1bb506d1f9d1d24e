"""Shipped code that waits for others, without threads: where it waits it raises Awaited, and is run again.

    Waiting(run, then).look(rank)      calls run(); once it returns, then() with its result

Order: run() is called from its begin whenever something may be there. What it does or is answered once, as in
a collective, it is answered the same each time (`once`). So run() may be any code that changes nothing else
before all that it awaits is there. Mates are answered once all of them have called the same collective.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tests.sim.promise import require

from ropeteam_trainer.rank.mates import Mates

if TYPE_CHECKING:
    from tests.sim.peers import Peer

T = TypeVar("T")


class Awaited(Exception):
    """Something is not there yet. seconds: after which to look again, also if no message has come."""

    def __init__(self, seconds: float | None = None) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Waiting:
    """One wait of a rank."""

    def __init__(self, run: Callable[[], Any], then: Callable[[Any], None], since: float) -> None:
        self._run, self.then, self.since = run, then, since
        self._answers: list[Any] = []
        self._requested = 0
        self.polls = False

    def look(self) -> Any:
        """Result of run(). Raises Awaited."""
        self._requested = 0
        return self._run()

    def once(self, request: Callable[[], T]) -> T:
        """The answer to this request of run(), repeated only while it is awaited."""
        if self._requested == len(self._answers):
            self._answers.append(request())
        self._requested += 1
        answer: T = self._answers[self._requested - 1]
        return answer


class Collectives:
    """Collectives of the ranks of one replica, matched by their order alone."""

    def __init__(self) -> None:
        self.ranks: dict[int, Peer] = {}
        """By part."""
        self._calls: list[dict[int, tuple[str, tuple[int, ...]]]] = []
        self._counts = Counter[int]()

    def call(self, rank: Peer, what: str, values: Sequence[int]) -> int:
        """The number of this call."""
        number = self._counts[rank.mates.part]
        self._counts[rank.mates.part] += 1
        if number == len(self._calls):
            self._calls.append({})
        call = self._calls[number]
        call[rank.mates.part] = what, (*values,)
        kinds = {(name, len(each)) for name, each in call.values()}
        require(len(kinds) == 1, "mates call the same collective", rank.number, kinds)
        if len(call) == len(rank.mates.ranks):
            for mate in self.ranks.values():
                if mate is not rank:
                    mate.look_soon()
        return number

    def highest(self, number: int, size: int) -> list[int]:
        call = self._calls[number]
        if len(call) < size:
            raise Awaited
        return [max(each) for each in zip(*(values for _, values in call.values()), strict=True)]


@dataclass(frozen=True)
class SimulatedMates(Mates):
    """Mates whose collectives are those of this simulator."""

    owner: Peer | None = None

    def highest(self, values: Sequence[int]) -> list[int]:
        if len(self.ranks) == 1:
            return [*values]
        rank = self.owner
        assert rank is not None
        assert rank.waiting_for is not None
        once, collectives, what = rank.waiting_for.once, rank.collectives, rank.phase
        number = once(lambda: collectives.call(rank, what, values))
        return once(lambda: collectives.highest(number, len(self.ranks)))
