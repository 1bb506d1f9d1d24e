"""The exchange of replicas of one generation, and the truth about it: which micro-batches made which step.

Ranks of one part in all replicas add to one sum. It is complete once all members have added to it. Then it is
delivered to each member by itself: one that dies meanwhile may have sent its part to some of them only.
Promises: a micro-batch counts once in a step, and in each; members differ by one step at most, and no mate
makes a step before all have its sums; parameters are a function of the step alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from tests.sim.peers import LOOK_SECONDS, Peer
from tests.sim.promise import require
from tests.sim.ranks import Gang, Rank
from tests.sim.replicas import Replica
from tests.sim.steps import LEAVES, StepRank
from tests.sim.waiting import Awaited, Collectives

from ropeteam_trainer.contract.local import LiveWorld
from ropeteam_trainer.contract.world import Plan, WorldId
from ropeteam_trainer.strategies.exact.positions import Position, with_state
from ropeteam_trainer.strategies.exact.sums import ReplicaLost

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

    sender: StepRank
    to: frozenset[int]
    position: Position
    votes: tuple[int, ...] = ()
    weights: int = 0
    """The parameters of which the gradients are. The sender may have others by now: it continues alone while
    the last part comes from a pod that was frozen."""


class Part:
    """The exchange of the ranks of one part in all replicas."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._parts: dict[Exchange, dict[int, Sent]] = {}
        self._delivered: dict[Exchange, set[StepRank]] = {}
        self._positions: dict[int, dict[int, Sent]] = {}
        self._newcomers: dict[WorldId, dict[int, Replica]] = {}

    # ---- sums

    def add(self, rank: StepRank, votes: tuple[int, ...]) -> None:
        key = rank.members_number, rank.step
        parts = self._parts.setdefault(key, {})
        require(rank.replica not in parts, "a replica adds once to a sum", rank.number, key)
        mine = Position(rank.step, rank.held)
        parts[rank.replica] = Sent(rank, rank.members, mine, votes, rank.weights)
        require(len({part.to for part in parts.values()}) == 1, "members of one number are the same", key)
        if any(part.sender.members_number != rank.members_number for part in parts.values()):
            return  # these are members with others now, and drop it
        if parts.keys() == rank.members:
            leaves = sorted(leaf for part in parts.values() for leaf in part.position.leaves)
            require(leaves == [*range(LEAVES)], "a micro-batch counts exactly once in a step", key, leaves)
            weights = {part.weights for part in parts.values()}
            require(len(weights) == 1, "gradients that are added are of the same parameters", key)
            self._delivered[key] = set()
            for part in parts.values():
                self._deliver_soon(key, part.sender)

    def _deliver_soon(self, key: Exchange, receiver: StepRank, seconds: float = 0.05) -> None:
        self._world.clock.after(seconds * self._world.random.random(), self._deliver, key, receiver)

    def _deliver(self, key: Exchange, receiver: StepRank) -> None:
        senders = [part.sender for part in self._parts[key].values()]
        if not all(sender.alive for sender in senders) and self._world.random.random() < 0.6:
            return
        if not all(receiver.reaches(sender) for sender in senders if sender.alive):
            self._deliver_soon(key, receiver, LOOK_SECONDS)
            return
        self._delivered[key].add(receiver)
        self._world.moments["sum"] += 1
        receiver.look_soon()

    def delivered(self, rank: StepRank) -> Sum | None:
        key = rank.members_number, rank.step
        if rank not in self._delivered.get(key, ()):
            return None
        parts = self._parts[key].values()
        votes = tuple(float(sum(part.votes[n] for part in parts)) for n in range(3))
        return Sum(votes, tuple(sorted(leaf for part in parts for leaf in part.position.leaves)))

    # ---- positions

    def publish(self, rank: StepRank, position: Position) -> None:
        """Send it to the next members."""
        self._send(rank, rank.members_number, rank.members, position)

    def _send(self, rank: StepRank, number: int, to: frozenset[int], position: Position) -> None:
        self._positions.setdefault(number, {})[rank.replica] = Sent(rank, to, position)
        for peer in rank.group.living:
            if peer.mates.part == rank.mates.part:
                peer.receive_soon()

    def decline(self, newcomer: StepRank) -> None:
        """The newcomer is no member yet, and the others continue."""
        self._send(newcomer, max(self._calls(newcomer)), newcomer.everyone, Position(-1))

    def is_continued(self, rank: Peer) -> bool:
        return max(self._calls(rank), default=0) > rank.members_number

    def _calls(self, rank: Peer) -> list[int]:
        """Numbers of members for which this replica was sent a position."""
        return [
            number
            for number, sent_here in self._positions.items()
            if any(rank.replica in each.to and each.sender is not rank for each in sent_here.values())
        ]

    def positions(self, rank: StepRank) -> dict[int, Position]:
        """Of the members that have state. Raises Awaited, and ReplicaLost if another one is."""
        sent_here = self._positions[rank.members_number]
        mine = {**rank.peers, rank.replica: rank}
        for replica in rank.members:
            sent = sent_here.get(replica)
            if sent is None or sent.sender is not mine.get(replica) or rank.replica not in sent.to:
                if rank.is_missing(rank.members):
                    raise ReplicaLost
                raise Awaited
        return with_state({replica: sent_here[replica].position for replica in rank.members})

    # ---- new ranks

    def comes(self, newcomer: Replica) -> None:
        self._newcomers.setdefault(newcomer.plan.world_id, {})[newcomer.replica] = newcomer

    def introduce(self, world: LiveWorld) -> None:
        """Ranks that know of this world connect to those that it starts, once all these have come, with their
        mates."""
        come = self._newcomers.get(world.world_id, {})
        new = {n: rank for n, rank in come.items() if rank.alive and rank.mates_are_here}
        anyone = next(iter(come.values()), None)
        if anyone is None or new.keys() != anyone.mates.replicas_of(world.started):
            return
        for rank in anyone.group.living:
            knows = rank.newest_world == world and rank.connected != world.world_id
            is_other = rank.mates.part == anyone.mates.part and rank.replica not in new
            if knows and is_other and all(each.reaches(rank) for each in new.values()):
                rank.connect(world, new)
        for rank in new.values():
            rank.peers.update({n: other for n, other in new.items() if other is not rank})


class Replicas(Gang):
    """`ranks`: the newest process of each number. `plan`: of the newest world that has started one."""

    lives_on = True

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self._line, self._newest = plan.server_generation, -1
        self.size = plan.world_size - len(plan.started) - len(plan.absent)
        self._early: dict[int, Replica] = {}  # new ranks that have come before the others have begun
        self.parts = [Part(world) for _ in range(plan.replica_ranks)]
        self._collectives: dict[tuple[WorldId, int], Collectives] = {}
        self._arrived: dict[WorldId, set[Replica]] = {}
        self._unsaved = set[WorldId]()
        """Worlds in which a rank has arrived that had left out a save."""

    @property
    def line(self) -> WorldId:
        return self._line

    @property
    def living(self) -> list[Replica]:
        return [cast(Replica, rank) for rank in self.ranks.values() if rank.alive]

    def collectives_of(self, rank: Peer) -> Collectives:
        """Collectives of this rank and the mates that the same world has started."""
        return self._collectives.setdefault((rank.plan.world_id, rank.replica), Collectives())

    def willing(self) -> None:
        """All begin, from the checkpoint that rank 0 has chosen."""
        ranks, parameters = self.living, self._world.parameters
        self.ranks.update(self._early)
        for rank in ranks:
            rank.find_mates()
        for rank in ranks:
            peers = {each.replica: each for each in ranks if each.mates.part == rank.mates.part}
            rank.begin(peers, parameters.get((rank.mates.part, rank.step), rank.mates.part))
            rank.next_step()

    def lost(self, dead: Rank) -> None:
        if not self.begun and dead.number not in self._early:
            super().lost(dead)
        assert isinstance(dead, Replica)
        for rank in self.living if self.begun and not dead.silent else ():
            if rank.mates.part == dead.mates.part and rank.peers.get(dead.replica) is dead:
                rank.misses(dead.replica)
            elif rank.collectives is dead.collectives and not dead.finished:
                rank.mate_ended()

    # ---- steps

    def taken(self, rank: StepRank) -> None:
        """A rank has made a step."""
        step, parameters = rank.step, self._world.parameters
        if step > self._newest:
            self._newest, self.stepped_at = step, self._world.clock.now
            self.position = self._world.script.data.after(self.position)
            self._world.checks.stepped(self, step)
        same = parameters.setdefault((rank.mates.part, step), rank.weights) == rank.weights
        require(same, "parameters are a function of the step alone", rank.number, step)
        if rank.follows:
            return
        peers = [peer for number in rank.members if (peer := rank.peers.get(number)) and peer.alive]
        behind = [peer.number for peer in peers if peer.step < step - 1]
        require(not behind, "no step is taken by some replicas only", step, behind)
        mates = [cast(StepRank, mate) for mate in rank.collectives.ranks.values() if mate.alive]
        without = [mate.number for mate in mates if mate.step < step and not mate.has_sum(step - 1)]
        require(not without, "no step is taken by some mates only", step, without)

    def are_at(self, step: int) -> bool:
        return all(rank.step == step for rank in self.ranks.values())

    # ---- new ranks

    def begins(self, plan: Plan) -> None:
        """A world that starts ranks beside these, which may save by its name before the new ones are here."""
        if plan.world_id > self.plan.world_id:
            self.plan = plan
        size = plan.replica_ranks
        whole = {rank - rank % size + part for rank in plan.started for part in range(size)}
        require(whole == {*plan.started}, "a replica is started as a whole", plan.started)
        self._world.checks.continues(self, plan)

    def comes(self, newcomer: Replica) -> None:
        self.parts[newcomer.mates.part].comes(newcomer)
        (self.ranks if self.begun else self._early)[newcomer.number] = newcomer
        newcomer.find_mates()

    def introduce(self, world: LiveWorld) -> None:
        """Connect ranks that know of this world to those that it starts, if its store answers."""
        if self._world.store_answers(world):
            for part in self.parts:
                part.introduce(world)

    def joins(self, newcomer: Replica) -> None:
        known = self._world.parameters[newcomer.mates.part, newcomer.step]
        require(newcomer.weights == known, "a rank joins with the state of its step", newcomer.number)
        self._world.checks.counts["joins"] += 1

    def arrives(self, rank: Replica, world_id: WorldId, leaves_out_save: bool) -> None:
        self._arrived.setdefault(world_id, set()).add(rank)
        if leaves_out_save:
            self._unsaved.add(world_id)

    def all_have_arrived(self, world_id: WorldId) -> bool:
        return len({rank.number for rank in self._arrived[world_id]}) == self.plan.world_size

    def saves_next(self, world_id: WorldId) -> bool:
        return world_id in self._unsaved
