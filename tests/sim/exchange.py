"""The exchange of replicas of one generation, and the truth about it: which micro-batches made which step.

A sum is complete once all members have added to it. Then it is delivered to each member by itself: one that
dies meanwhile may have sent its part to some of them only. Promises: a micro-batch counts once in a step, and
in each; members differ by one step at most; parameters are a function of the step alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from tests.sim.promise import require
from tests.sim.ranks import Gang, Rank
from tests.sim.replicas import LEAVES, LOOK_SECONDS, Replica

from ropeteam_trainer.contract.local import LiveWorld
from ropeteam_trainer.contract.world import Plan, WorldId
from ropeteam_trainer.strategies.exact.positions import Position

if TYPE_CHECKING:
    from tests.sim.world import World

Exchange = tuple[int, int]
"""Number of the members, and of the step."""


@dataclass(frozen=True)
class Sum:
    """Of all members."""

    votes: tuple[float, ...]
    leaves: tuple[int, ...]


@dataclass(frozen=True)
class Sent:
    """A replica's part of a sum, or its position."""

    sender: Replica
    to: frozenset[int]
    position: Position
    votes: tuple[int, ...] = ()


class Replicas(Gang):
    """`ranks`: the newest process of each number. `plan`: of the newest world that has started one."""

    lives_on = True

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self._line, self._newest = plan.server_generation, -1
        self._parts: dict[Exchange, dict[int, Sent]] = {}
        self._delivered: dict[Exchange, set[Replica]] = {}
        self._positions: dict[int, dict[int, Sent]] = {}
        self._newcomers: dict[WorldId, dict[int, Replica]] = {}
        self._arrived: dict[WorldId, set[Replica]] = {}

    @property
    def line(self) -> WorldId:
        return self._line

    @property
    def _living(self) -> list[Replica]:
        return [cast(Replica, rank) for rank in self.ranks.values() if rank.alive]

    def willing(self) -> None:
        """All begin, from the checkpoint that rank 0 has chosen."""
        peers = {rank.number: rank for rank in self._living}
        parameters = self._world.parameters
        for rank in peers.values():
            rank.begin(peers, parameters.get(rank.step, 0))
            rank.next_step()

    def lost(self, dead: Rank) -> None:
        if not self.begun:
            super().lost(dead)
        for rank in self._living if self.begun and not dead.silent else ():
            if rank.peers.get(dead.number) is dead:
                rank.misses(dead.number)

    # ---- sums

    def add(self, replica: Replica, votes: tuple[int, ...]) -> None:
        key = replica.members_number, replica.step
        parts = self._parts.setdefault(key, {})
        require(replica.number not in parts, "a replica adds once to a sum", replica.number, key)
        mine = Position(replica.step, replica.held)
        parts[replica.number] = Sent(replica, replica.members, mine, votes)
        require(len({part.to for part in parts.values()}) == 1, "members of one number are the same", key)
        if parts.keys() == replica.members:
            leaves = sorted(leaf for part in parts.values() for leaf in part.position.leaves)
            require(leaves == [*range(LEAVES)], "a micro-batch counts exactly once in a step", key, leaves)
            weights = {part.sender.weights for part in parts.values()}
            require(len(weights) == 1, "gradients that are added are of the same parameters", key)
            self._delivered[key] = set()
            for part in parts.values():
                self._deliver_soon(key, part.sender)

    def _deliver_soon(self, key: Exchange, receiver: Replica, seconds: float = 0.05) -> None:
        self._world.clock.after(seconds * self._world.random.random(), self._deliver, key, receiver)

    def _deliver(self, key: Exchange, receiver: Replica) -> None:
        senders = [part.sender for part in self._parts[key].values()]
        if not all(sender.alive for sender in senders) and self._world.random.random() < 0.6:
            return
        if not all(receiver.reaches(sender) for sender in senders if sender.alive):
            self._deliver_soon(key, receiver, LOOK_SECONDS)
            return
        self._delivered[key].add(receiver)
        receiver.look_soon()

    def delivered(self, replica: Replica) -> Sum | None:
        key = replica.members_number, replica.step
        if replica not in self._delivered.get(key, ()):
            return None
        parts = self._parts[key].values()
        votes = tuple(float(sum(part.votes[n] for part in parts)) for n in range(2))
        return Sum(votes, tuple(sorted(leaf for part in parts for leaf in part.position.leaves)))

    def taken(self, replica: Replica) -> None:
        """A replica has made a step."""
        step, parameters = replica.step, self._world.parameters
        if step > self._newest:
            self._newest, self.stepped_at = step, self._world.clock.now
            self.position = self._world.script.data.after(self.position)
            self._world.checks.stepped(self, step)
        same = parameters.setdefault(step, replica.weights) == replica.weights
        require(same, "parameters are a function of the step alone", replica.number, step)
        peers = [peer for number in replica.members if (peer := replica.peers.get(number)) and peer.alive]
        behind = [peer.number for peer in peers if peer.step < step - 1]
        require(not behind, "no step is taken by some replicas only", step, behind)

    def are_at(self, step: int, replicas: frozenset[int]) -> bool:
        return all(self.ranks[number].step == step for number in replicas)

    # ---- positions

    def publish(self, replica: Replica, position: Position) -> None:
        sent_here = self._positions.setdefault(replica.members_number, {})
        sent_here[replica.number] = Sent(replica, replica.members, position)
        for peer in self._living:
            peer.look_soon()

    def refuse(self, newcomer: Replica) -> None:
        """The newcomer has no state yet, and the others continue."""
        newcomer.members_number = max(self._calls(newcomer))
        newcomer.members = newcomer.everyone
        self.publish(newcomer, Position(-1))

    def is_continued(self, replica: Replica) -> bool:
        return max(self._calls(replica), default=0) > replica.members_number

    def _calls(self, replica: Replica) -> list[int]:
        """Numbers of members for which this replica was sent a position."""
        return [
            number
            for number, sent_here in self._positions.items()
            if any(replica.number in each.to and each.sender is not replica for each in sent_here.values())
        ]

    def positions(self, replica: Replica) -> dict[int, Position] | None:
        """Of the members that have state. None: not all have come."""
        sent_here = self._positions[replica.members_number]
        mine = {**replica.peers, replica.number: replica}
        for number in replica.members:
            sent = sent_here.get(number)
            if sent is None or sent.sender is not mine.get(number) or replica.number not in sent.to:
                return None
        found = {number: sent_here[number].position for number in replica.members}
        return {number: position for number, position in found.items() if position.done >= 0}

    # ---- new ranks

    def begins(self, plan: Plan) -> None:
        """A world that starts ranks beside these, which may save by its name before the new ones are here."""
        if plan.world_id > self.plan.world_id:
            self.plan = plan
        self._world.checks.continues(self, plan)

    def comes(self, newcomer: Replica) -> None:
        self._newcomers.setdefault(newcomer.plan.world_id, {})[newcomer.number] = newcomer
        self.ranks[newcomer.number] = newcomer

    def introduce(self, world: LiveWorld) -> None:
        """Replicas that know of this world connect to the ranks that it starts, once all these have come."""
        new = {n: rank for n, rank in self._newcomers.get(world.world_id, {}).items() if rank.alive}
        if new.keys() != {*world.started} or not self._world.store_answers(world):
            return
        for rank in self._living:
            knows = rank.orders.live_world == world and rank.connected != world.world_id
            if knows and rank.number not in new and all(each.reaches(rank) for each in new.values()):
                rank.connect(world, new)
        for rank in new.values():
            rank.peers.update({n: other for n, other in new.items() if other is not rank})

    def hand_over(self, source: Replica, newcomer: Replica) -> None:
        """Send the state. What dies meanwhile has not sent all of it."""
        state = source.step, source.weights

        def arrive() -> None:
            if source.alive:
                newcomer.received = state
                newcomer.look_soon()

        self._world.clock.after(0.05 + 0.3 * self._world.random.random(), arrive)

    def joins(self, newcomer: Replica) -> None:
        known = self._world.parameters[newcomer.step]
        require(newcomer.weights == known, "a rank joins with the state of its step", newcomer.number)
        self._world.checks.counts["joins"] += 1

    def arrives(self, replica: Replica, world_id: WorldId) -> None:
        self._arrived.setdefault(world_id, set()).add(replica)

    def all_have_arrived(self, world_id: WorldId) -> bool:
        return len({replica.number for replica in self._arrived[world_id]}) == self.plan.world_size
