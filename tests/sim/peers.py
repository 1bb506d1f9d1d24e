"""A rank of a replica, its connections to those of its part in the other replicas, its mates, and its waits.

It waits as shipped code does (waiting.py), in a phase with a name. Only in a wait it learns that another
replica is lost. It ends soon after one of its mates, or hangs, as in any collective among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from tests.sim.promise import require
from tests.sim.ranks import CONSEQUENCE, Parent, Rank
from tests.sim.waiting import Awaited, Collectives, SimulatedMates, Waiting

from ropeteam_trainer.agent.machine.environment import rank_plan
from ropeteam_trainer.contract.local import Beat, FromRank, GroupFormed, LiveWorld, ToRank
from ropeteam_trainer.contract.world import Plan, WorldId
from ropeteam_trainer.rank.mates import Mates
from ropeteam_trainer.strategies.exact.members import replicas_of_world

if TYPE_CHECKING:
    from tests.sim.exchange import Part, Replicas
    from tests.sim.world import World

LOOK_SECONDS = 0.5


class Peer(Rank):
    """A rank. Its peers are named by their replicas."""

    def __init__(self, world: World, parent: Parent, plan: Plan, number: int) -> None:
        super().__init__(world, parent, plan, number)
        own = rank_plan(parent.config, plan, parent.identity)
        saves_as = WorldId.parse(own.saves_as or own.world_id)
        store = plan.store_host, plan.store_port
        size = own.replica_ranks
        first = number - number % size
        self.size = plan.world_size
        self.first = LiveWorld(plan.world_id, *store, plan.started, saves_as, plan.restart_count, own.absent)
        self.mates = SimulatedMates(range(first, first + size), number, owner=self)
        self.replica, self.replicas = number // size, plan.world_size // size
        self.everyone = replicas_of_world(self.first, cast(Mates, self.mates), self.replicas)
        """Replicas of the world that has started it."""
        self.collectives = Collectives()
        begins_alone = self.first.begins_alone(number)
        self.members = frozenset({self.replica}) if begins_alone else self.everyone
        self.members_number = 0
        self.peers: dict[int, Peer] = {}
        """The other ends of its connections."""
        self.gone = set[int]()
        """Lost since the present ones are members: their part of a sum does not come, also once new ones have
        connected."""
        self.connected = None if begins_alone else plan.world_id
        """The newest world whose new ranks are connected to this one. None: there is none."""
        self.phase = ""
        """Name of its wait. "": none."""
        self.waiting_for: Waiting | None = None
        self._looks = False

    @property
    def group(self) -> Replicas:
        return cast("Replicas", self.gang)

    @property
    def part(self) -> Part:
        """The exchange that it is in."""
        return self.group.parts[self.mates.part]

    def later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        self._world.clock.after(seconds, self.when_awake, lambda: call(*arguments))

    # ---- the agent

    def wait_until(self, holds: Callable[[ToRank], bool], seconds: float) -> ToRank | None:
        """As AgentLink.wait_until(), without the wait: look() comes with each line."""
        del seconds
        return self.orders if holds(self.orders) else None

    def receive(self, message: ToRank) -> None:
        super().receive(message)
        lost = self.mates.replicas_of(message.lost)
        ranks = {rank for rank in range(self.size) if rank // len(self.mates.ranks) in lost}
        require(ranks == {*message.lost}, "a replica is lost as a whole", message.lost)
        require(self.replica not in lost, "no rank learns that it is lost itself", self.number, message)
        if self.gang:
            self.drop(self._lost())
            if message.live_world:
                self.group.introduce(message.live_world)
            self.look_soon()

    @property
    def newest_world(self) -> LiveWorld:
        return self.orders.live_world or self.first

    def _lost(self) -> frozenset[int]:
        world = self.newest_world
        started = world.started if world.world_id != self.connected else ()
        return self.mates.replicas_of({*self.orders.lost, *started})

    def drop(self, lost: frozenset[int]) -> None:
        """End the connections to these. The other end is notified, if it can be reached."""
        for number in lost & {*self.peers}:
            peer = self.peers.pop(number)
            self.gone.add(number)
            if peer.peers.get(self.replica) is self and self.reaches(peer):
                del peer.peers[self.replica]
                peer.misses(self.replica)

    def misses(self, replica: int) -> None:
        """A connection has ended."""
        self.gone.add(replica)
        self.look_soon()

    def reaches(self, peer: Peer) -> bool:
        return self._world.network.reaches(self.parent.site, peer.parent.site) and not peer.parent.frozen

    def send_heartbeat(self) -> Beat | None:
        """A wait for others is not taken for a hang, but in a forward pass, which mates share."""
        if self.phase not in ("", "compute") and self.beaten_at and not self.stuck:
            self.touch()
        return super().send_heartbeat()

    def formed(self, has_group: bool, world: LiveWorld) -> None:
        who = GroupFormed(self.size, self.number, str(world.world_id), "train.py")
        recovers = True if self.replicas > 1 else None
        self.send(FromRank(group=who if has_group else None, regroups=recovers))

    # ---- mates

    def find_mates(self) -> None:
        """Find the mates that were started with this rank."""
        self.collectives = self.group.collectives_of(self)
        self.collectives.ranks[self.mates.part] = self

    @property
    def mates_are_here(self) -> bool:
        ranks = self.collectives.ranks.values()
        return len(ranks) == len(self.mates.ranks) and all(mate.alive for mate in ranks)

    def mate_ended(self) -> None:
        """The connections to a mate are reset."""
        if self._world.random.random() < 0.7:
            self.fail()

    def fail(self) -> None:
        seconds = 0.02 + 0.3 * self._world.random.random()
        self.later(seconds, self.raises, "DistBackendError", CONSEQUENCE)

    # ---- waits

    def wait(self, phase: str, run: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Call then() with what run() returns, once it does not raise Awaited."""
        self.phase, self.waiting_for = phase, Waiting(run, then, self._world.clock.now)
        self.look()

    @property
    def waited(self) -> float:
        assert self.waiting_for is not None
        return self._world.clock.now - self.waiting_for.since

    def look_soon(self) -> None:
        if self.alive and not self._looks:
            self._looks = True
            self.later(0.005 + 0.05 * self._world.random.random(), self.look)

    def receive_soon(self) -> None:
        """A position of another replica has come."""
        if self.alive:
            self._world.clock.after(0.005 + 0.05 * self._world.random.random(), self._receive_position)

    def _receive_position(self) -> None:
        if self.alive:
            self.note_position()
            self.look_soon()

    def note_position(self) -> None:
        """Decline, if the others continue without this one."""

    def look(self) -> None:
        """Continue, if what it waits for is there."""
        self._looks, waiting = False, self.waiting_for
        if waiting is None or not self.alive:
            return
        try:
            found = waiting.look()
        except Awaited as awaited:
            if awaited.seconds is not None and not waiting.polls:
                waiting.polls = True
                self.later(awaited.seconds, self._poll, waiting)
            return
        self.phase, self.waiting_for = "", None
        waiting.then(found)

    def _poll(self, waiting: Waiting) -> None:
        waiting.polls = False
        if waiting is self.waiting_for:
            self.look()

    def is_missing(self, replicas: frozenset[int]) -> bool:
        """One of these is lost, or continues with others."""
        return self.part.is_continued(self) or any(
            self.peer(each) is None for each in replicas - {self.replica}
        )

    def peer(self, replica: int) -> Peer | None:
        """None: its connection has ended. A machine without power ends none."""
        found = self.peers.get(replica)
        return found if found and (found.alive or found.silent) else None
