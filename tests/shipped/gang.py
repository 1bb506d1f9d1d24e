"""The ranks of one world, on their nodes: see tests/sim/ranks.py for what they do."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tests.shipped.pod import SimPod
from tests.sim.ranks import TIMEOUT_SECONDS, Gang, Rank

if TYPE_CHECKING:
    from tests.shipped.site import Site


class SiteGang(Gang):
    """Ranks reach each other, and the volume, as their nodes do."""

    def _connected(self) -> bool:
        nodes = self._nodes()
        reaches = self._site.network.reaches
        return all(reaches(one, other) for one in nodes for other in nodes if one < other)

    def _after_step(self, step: int) -> None:
        """Each rank prints its loss; the reader is its agent."""
        for rank in self.ranks.values():
            self._site.prints(cast(SimPod, rank.parent).process)
        super()._after_step(step)

    def _restore(self, first: Rank) -> int:
        """All ranks read, each its part."""
        disk = self._site.disk
        disk.reader = min((node for node in self._nodes() if node in disk.stale), default="")
        return super()._restore(first)

    def _wait_for_the_volume(self, why: str) -> None:
        """As agreement.py does it: each says whether it saw the fault itself."""
        self._waited += 1.0
        if self._waited < TIMEOUT_SECONDS:
            self._site.loop.after(1.0, self._begin)
            return
        disk = self._site.disk
        hindered = {node for node in self._nodes() if disk.error is not None or node in disk.stale}
        everywhere = hindered == self._nodes() and len({rank.parent for rank in self.ranks.values()}) > 1
        for rank in tuple(self.ranks.values()):
            here = _node(rank) in hindered
            name = "CheckpointUnavailable" if here else "UnavailableElsewhere"
            name = "UnavailableEverywhere" if everywhere else name
            rank.raises(name, f"{name}: {why}")

    @property
    def _site(self) -> Site:
        return cast("Site", self._world)

    def _nodes(self) -> set[str]:
        return {_node(rank) for rank in self.ranks.values()}


def _node(rank: Rank) -> str:
    return cast(SimPod, rank.parent).process.node


def hash_of(*fields: str) -> int:
    """A number that is the same in each interpreter."""
    number = 7
    for letter in "".join(fields):
        number = (number * 31 + ord(letter)) % 1_000_003
    return number
