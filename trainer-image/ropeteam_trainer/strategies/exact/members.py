"""The replicas that add their gradients, and the micro-batches of each."""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ropeteam_trainer.contract.config import STORE_ADDRESS, RankPlan
from ropeteam_trainer.contract.errors import RopeteamError
from ropeteam_trainer.contract.local import LiveWorld, ToRank
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.partition.reductiontree import equal_parts, redealt
from ropeteam_trainer.rank.agentlink import AgentLink
from ropeteam_trainer.rank.mates import Mates
from ropeteam_trainer.strategies.exact.positions import Position

_LINE_SECONDS = 45.0
"""Time for the agent's line after a loss. None comes if the world ends, or if the other rank has ended with
no error: before it counts as hanging, this one ends and blames that one."""
_TERM_BITS, _BOOT_BITS, _N_BITS, _CHANGE_BITS = 15, 16, 20, 13


@dataclass(frozen=True)
class Members:
    """Replicas that add their gradients."""

    number: int
    """Greater than that of any earlier members."""
    replicas: frozenset[int]
    newcomers: frozenset[int] = frozenset()
    """Replicas that the newest world starts, which may not have joined yet."""
    world_id: WorldId | None = None
    """That world."""


@dataclass(frozen=True)
class Arrival:
    """New replicas that are connected to this one."""

    world: LiveWorld
    connections: Mapping[int, socket.socket]
    has_caught_up: bool = False
    """Whether these have followed the others, and are behind by a step at most."""

    @property
    def number(self) -> int:
        """Number of the members from then on."""
        return members_number(self.world.world_id, have_joined=True)

    @property
    def code(self) -> int:
        """Number by which replicas find out that they vote for the same: of 20 bits, so that its square is
        exact in a sum of float64."""
        return 1 + zlib.crc32(f"{self.world.world_id} {self.has_caught_up}".encode()) % (1 << 20)


class Presence:
    """Whether replicas are missing, as far as this one knows, and which of the others saves for all."""

    def __init__(self, replica: int, replicas: int, members: frozenset[int]) -> None:
        """members: those that are there."""
        self._replica, self._replicas = replica, replicas
        self.note_joined(members)
        self._alone_from = 0

    def note_lost(self, members: frozenset[int], most: int) -> None:
        """Only these are left, of which one has done `most` exchanges."""
        self.is_whole, self._members, self._alone_from = False, members, most + 2

    def note_joined(self, members: frozenset[int]) -> None:
        """All replicas that are there now are these."""
        self._members = members
        self.is_whole = len(members) == self._replicas
        """Whether none is missing."""

    def saves_alone(self, done: int) -> bool:
        """Whether replicas are missing, and no other can save after so many exchanges too: a lost one may
        have done one more than those that are left, and may have saved after it."""
        return not self.is_whole and done >= self._alone_from

    @property
    def is_lowest(self) -> bool:
        """Whether this replica is the lowest that is not missing."""
        return self._replica == min(self._members)


@dataclass(frozen=True)
class WorldsOfJob:
    """How a rank learns of its job's worlds."""

    link: AgentLink
    first: LiveWorld
    """The world in which it was started."""


def world_of(plan: RankPlan) -> LiveWorld:
    """World in which a rank with this plan was started."""
    host, _, port = os.environ[STORE_ADDRESS].rpartition(":")
    saves_as = WorldId.parse(plan.saves_as or plan.world_id)
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    world_id = WorldId.parse(plan.world_id)
    return LiveWorld(world_id, host, int(port), plan.started, saves_as, restarts, plan.absent)


class Membership(Protocol):
    """Source of the next members."""

    def after(self) -> Members | None:
        """The next members, once they are known. None: there are none without a new start of this process."""

    def have_joined(self, number: int) -> None:
        """New replicas are members now. Only members with a greater number come after these."""


@dataclass(frozen=True)
class Replication:
    """This replica among all."""

    replica: int = 0
    replicas: int = 1
    membership: Membership | None = None
    """None: the first loss of a replica ends its world."""
    mates: Mates = Mates()
    follow: bool = False
    """Whether new replicas follow the others before they join."""
    begins_alone: bool = False
    """Whether all others join this one later."""


class CannotTakeOver(RopeteamError, ConnectionError):
    """A replica is lost, and its micro-batches cannot be computed here."""


class AgentMembership:
    """Membership by the agent's lines."""

    def __init__(
        self, link: AgentLink, first: LiveWorld, replicas: int, seconds: float, mates: Mates
    ) -> None:
        """first: the world in which this rank was started. seconds: time limit of waits."""
        self._link, self._replicas, self._seconds, self._mates = link, replicas, seconds, mates
        self._first, self._last = first, members_number(first.world_id)

    def after(self) -> Members | None:
        """As Membership.after()."""
        seconds = min(self._seconds, _LINE_SECONDS)
        line = self._link.wait_until(lambda line: self._members(line).number > self._last, seconds)
        if line is None:
            return None
        members = self._members(line)
        self._last = members.number
        return members

    def have_joined(self, number: int) -> None:
        """As Membership.have_joined()."""
        self._last = max(self._last, number)

    def _members(self, line: ToRank) -> Members:
        """New ranks of a world that has lost none are no members: those begin with another number."""
        world, lost = line.live_world or self._first, self._mates.replicas_of(line.lost)
        replicas = replicas_of_world(world, self._mates, self._replicas) - lost
        started = replicas & self._mates.replicas_of(world.started)
        number = members_number(world.world_id, len(lost))
        if not lost:
            return Members(number, replicas - started)
        return Members(number, replicas, started, world.world_id)


def replicas_of_world(world: LiveWorld, mates: Mates, replicas: int) -> frozenset[int]:
    """Replicas that the world has, of so many."""
    return frozenset(range(replicas)) - mates.replicas_of(world.absent)


def members_number(world_id: WorldId, lost: int = 0, have_joined: bool = False) -> int:
    """Number of the members of a world after so many losses: 64 bits. Greater than that of earlier worlds,
    and of fewer losses. have_joined: the members that begin with the state that newcomers were sent."""
    number = 0
    for value, bits in (
        (world_id.term, _TERM_BITS),
        (world_id.boot, _BOOT_BITS),
        (world_id.n, _N_BITS),
        (2 * lost + have_joined, _CHANGE_BITS),
    ):
        number = number << bits | value & ((1 << bits) - 1)
    return number


def first_leaves(replica: int, replicas: int, leaves: int) -> tuple[int, ...]:
    """Leaves of a replica while none is lost: its batches have the samples of these."""
    return tuple(equal_parts(leaves, replicas)[replica])


def leaves_of_members(members: frozenset[int], replicas: int, leaves: int) -> dict[int, tuple[int, ...]]:
    """Leaves of each member in all steps but the one in which it became one. replicas: with all that are
    lost."""
    return redealt({member: first_leaves(member, replicas, leaves) for member in members}, leaves)


def leaves_of_begun_step(
    positions: Mapping[int, Position], replicas: int, leaves: int
) -> dict[int, tuple[int, ...]]:
    """Leaves of each member in the step in which the members changed: nobody computes again what a member
    has. positions: of all members. One that is behind has nothing of this step yet."""
    most = max(position.done for position in positions.values())
    owned = {
        member: position.leaves if position.done == most else first_leaves(member, replicas, leaves)
        for member, position in positions.items()
    }
    return redealt(owned, leaves)
