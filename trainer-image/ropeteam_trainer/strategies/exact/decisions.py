"""Decisions of all replicas in each step: whether it is complete, which members are next, whether to save,
and when new replicas are admitted.

Replicas find out by numbers in the sums of the step, which each of their ranks adds with the ranks of its
part in the others. Mates then take the same decision, by a collective among them: one of them may have sums
that another, whose part of a lost replica had not sent yet, has to compute again with it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.rank.mates import Mates
from ropeteam_trainer.strategies.exact.equality import squared
from ropeteam_trainer.strategies.exact.members import Arrival, Members, Membership, members_number
from ropeteam_trainer.strategies.exact.positions import Position
from ropeteam_trainer.strategies.exact.sums import ReplicaLost

_HALF = 1 << 63
"""Numbers of members have 64 bits, and those of a collective a sign."""


class Admission:
    """Agreement of all replicas on the step after which they admit new ones. Each votes once for
    each of its leaves, when all of them are computed, and all have the sum of the votes."""

    def __init__(self) -> None:
        self.arrival: Arrival | None = None
        """The newest that is connected to this replica. Set in any thread."""
        self.due: Arrival | None = None
        """The one that all admit at the end of this step."""
        self._vote: Arrival | None = None
        self._admitted: WorldId | None = None
        """World of the last one."""
        self._present = 0
        """Number of the present members. An arrival for earlier ones is void."""
        self._following: Arrival | None = None

    def begin_exchange(self, have_caught_up: Callable[[], bool] = lambda: False) -> None:
        """Choose the vote for all leaves of this exchange. have_caught_up: of those that follow."""
        vote = self.arrival if self.arrival and self.arrival.number > self._present else None
        if vote and vote is self._following:
            vote = replace(vote, has_caught_up=True) if have_caught_up() else None
        self._vote = vote

    @property
    def following(self) -> Arrival | None:
        """The one that follows the present members. None: there is none, or others have come in its place."""
        return self._following if self._following is self.arrival else None

    @property
    def votes(self) -> tuple[int, int]:
        """Votes of one leaf. Equal for all leaves if, for each of the two, the sum is that of equal ones."""
        return squared(self._vote.code if self._vote else 0)

    def agreed(self, votes: Sequence[float], leaves: int) -> int:
        """Code of the arrival that all replicas have voted for; 0: there is none. votes: the sums of those
        of all leaves."""
        vote = self._vote
        if vote is None or vote.number <= self._present:
            return 0
        return vote.code if [*votes] == [leaves * each for each in self.votes] else 0

    def decide(self) -> None:
        """All have voted for this replica's arrival."""
        self.due = self._vote

    def note_members(self, number: int) -> None:
        """Others are members now: a replica was lost."""
        self._present = number
        if self.due and self.due.number < number:
            self.due = None
        if self._following and self._following.number < number:
            self._following = None

    def follow(self) -> None:
        """The new replicas of due follow the others from now on."""
        self.due, self._following = None, self.due

    def close(self, world_id: WorldId) -> None:
        """The new replicas of this world are admitted."""
        self.due, self._following, self._admitted = None, None, world_id
        self._present = members_number(world_id, have_joined=True)

    def knows(self, world_id: WorldId | None) -> bool:
        """Whether the new replicas of this world are admitted, or connected to this one."""
        return world_id in (self._admitted, self.arrival and self.arrival.world.world_id)


class Decisions:
    """Decisions of one rank, the same as those of its mates."""

    def __init__(self, leaves: int, mates: Mates) -> None:
        self._leaves, self._mates = leaves, mates
        self.admission = Admission()
        self.some_rank_is_late = False
        """Whether the clock of some rank demands a checkpoint after this step."""

    def is_complete(self, votes: Sequence[float] | None) -> bool:
        """Whether all mates have the sums of this step: before, none of them may use its own. votes: the sums
        of votes for an arrival, two numbers, and of ranks that are late; None: it has no sums."""
        code = self.admission.agreed(votes[:2], self._leaves) if votes else 0
        is_late = bool(votes and votes[2] > 0)
        missing, late, most, least = self._mates.highest([not votes, is_late, code, ~code])
        if missing:
            return False
        self.some_rank_is_late = bool(late)
        if most and most == ~least:
            self.admission.decide()
        return True

    def regrouped(self, regroup: Callable[[], dict[int, Position]]) -> dict[int, Position]:
        """Positions that `regroup()` returns, once it has returned those of the same members to all mates:
        what they compute next needs all of them. Raises ReplicaLost, as on all mates."""
        try:
            positions = regroup()
        except ReplicaLost:
            self._mates.are_same(-1)
            raise
        if not self._mates.are_same(zlib.crc32(repr(sorted(positions)).encode())):
            raise ReplicaLost("Connection closed by peer: ranks of this replica regroup with others")
        return positions

    def next_members(self, membership: Membership) -> Members | None:
        """The next members after a loss; None: as Membership.after()."""
        members = membership.after()
        while members is not None:
            number = members.number - _HALF
            newest, least = self._mates.highest([number, ~number])
            if newest == ~least:
                break
            members = members if number == newest else membership.after()
        return members
