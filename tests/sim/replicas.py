"""Ranks under sync Exact: replicas that finish a step without those that are lost, and that new ones join.

As strategies/exact does it, with its own rules on members, micro-batches and votes (members.py), but without
bytes: a gradient is the numbers of its micro-batches. A replica computes, adds, and waits for the sum of all
members; only in a wait it learns that one is lost, and regroups as its agent says. Order when ranks have
come: each member votes for those that have connected to it; all admit them after the same step, and the
lowest sends them its state. Limit: what other threads of a stuck process would do is not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from tests.sim.promise import require
from tests.sim.ranks import CONSEQUENCE, Parent, Rank

from ropeteam_trainer.agent.machine.environment import rank_plan
from ropeteam_trainer.contract.local import Beat, FromRank, GroupFormed, LiveWorld, ToRank
from ropeteam_trainer.contract.world import Plan, WorldId
from ropeteam_trainer.data.decisions.plan import mix
from ropeteam_trainer.rank.agentlink import AgentLink
from ropeteam_trainer.rank.mates import Mates
from ropeteam_trainer.strategies.exact import members as rules
from ropeteam_trainer.strategies.exact.decisions import Decisions
from ropeteam_trainer.strategies.exact.positions import Position

if TYPE_CHECKING:
    from tests.sim.exchange import Replicas, Sum
    from tests.sim.world import World

LEAVES = 8
"""Micro-batches of a step."""
LINE_SECONDS, STORE_SECONDS, LOOK_SECONDS = 45.0, 5.0, 0.5


class Replica(Rank):
    """A rank. `weights`: its parameters, as a number that each step makes of the last one."""

    def __init__(self, world: World, parent: Parent, plan: Plan, number: int) -> None:
        super().__init__(world, parent, plan, number)
        own = rank_plan(parent.config, plan, parent.identity)
        saves_as = WorldId.parse(own.saves_as or own.world_id)
        store = plan.store_host, plan.store_port
        self.size = plan.world_size
        self.first = LiveWorld(plan.world_id, *store, plan.started, saves_as, plan.restart_count)
        self._joined = self.first  # the newest world that it has joined
        self.membership = rules.AgentMembership(cast(AgentLink, self), self.first, self.size, 600.0, Mates())
        self.decisions = Decisions(LEAVES, Mates())
        self.everyone = frozenset(range(self.size))
        self.members, self.members_number = self.everyone, 0
        self.peers: dict[int, Replica] = {}
        """The other ends of its connections."""
        self.gone = set[int]()
        """Lost since the present ones are members: their part of a sum does not come, also once new ones have
        connected."""
        self.connected = plan.world_id
        """The newest world whose new ranks are connected to this one."""
        self.phase = ""
        """Name of its wait. "": none."""
        self.whole = True
        """No rank is missing, as far as it knows."""
        self.weights, self.held = 0, tuple[int, ...]()
        """`held`: micro-batches whose gradients it has in this step."""
        self.retained: Sum | None = None
        self.received: tuple[int, int] | None = None
        """The state that it was sent: step and weights."""
        self._dealt = rules.first_leaves(number, self.size, LEAVES)
        self._dealt_once: dict[int, tuple[int, ...]] = {}
        self._source, self._since, self._alone_from = -1, 0.0, 0
        self._alone = 0, plan.world_id  # step and world of its last save for all
        self._save_due = self._looks = False

    @property
    def group(self) -> Replicas:
        return cast("Replicas", self.gang)

    @property
    def saves_as(self) -> WorldId:
        """While ranks are missing, by the name that the newest world gives."""
        return ((None if self.whole else self.orders.live_world) or self._joined).saves_as

    @property
    def settled(self) -> bool:
        return super().settled and self.whole and self.phase in ("", "sum")

    def later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        self._world.clock.after(seconds, self.when_awake, lambda: call(*arguments))

    # ---- the agent

    def wait_until(self, holds: Callable[[ToRank], bool], seconds: float) -> ToRank | None:
        """As AgentLink.wait_until(), without the wait: look() comes with each line."""
        del seconds
        return self.orders if holds(self.orders) else None

    def receive(self, message: ToRank) -> None:
        super().receive(message)
        lost = self._lost()
        require(self.number not in lost, "no rank learns that it is lost itself", self.number, message)
        if self.gang:
            self._drop(lost)
            if message.live_world:
                self.group.introduce(message.live_world)
            self.look_soon()

    def _lost(self) -> set[int]:
        world = self.orders.live_world
        return {*self.orders.lost, *(world.started if world and world.world_id != self.connected else ())}

    def _drop(self, lost: set[int]) -> None:
        """End the connections to these. The other end is notified, if it can be reached."""
        for number in lost & {*self.peers}:
            peer = self.peers.pop(number)
            self.gone.add(number)
            if peer.peers.get(self.number) is self and self.reaches(peer):
                del peer.peers[self.number]
                peer.misses(self.number)

    def misses(self, number: int) -> None:
        """A connection has ended."""
        self.gone.add(number)
        self.look_soon()

    def reaches(self, peer: Replica) -> bool:
        return self._world.network.reaches(self.parent.site, peer.parent.site) and not peer.parent.frozen

    def send_heartbeat(self) -> Beat | None:
        """A wait for others is not taken for a hang."""
        if self.phase and self.beaten_at and not self.stuck:
            self.touch()
        return super().send_heartbeat()

    # ---- its begin

    def boot(self) -> None:
        self.register(joins=True)
        self.gang = self._world.gang(self)
        if self.number not in self.plan.started:
            self.gang.join(self)
            return
        self.group.comes(self)
        self._connect()

    def begin(self, peers: Mapping[int, Replica], weights: int) -> None:
        """All ranks of the first world are here."""
        self.peers, self.weights = {n: peer for n, peer in peers.items() if n != self.number}, weights
        self._formed(True)

    def _formed(self, has_group: bool) -> None:
        who = GroupFormed(self.size, self.number, str(self._joined.world_id), "train.py")
        self.send(FromRank(group=who if has_group else None, regroups=True))

    def _connect(self) -> None:
        """Connect to all others, which train."""
        self.group.introduce(self.first)
        if self.peers.keys() < self.everyone - {self.number}:
            self.later(LOOK_SECONDS, self._connect)
            return
        self.members_number = rules.Arrival(self.first, {}).number
        self._source = min(self.everyone - {*self.first.started})
        self.work = "restore"
        self.touch()
        self._wait("state")

    def connect(self, world: LiveWorld, newcomers: Mapping[int, Replica]) -> None:
        """Be connected to new ranks, and vote for them from the next step on."""
        self.peers.update(newcomers)
        self.connected = world.world_id
        self.decisions.admission.arrival = rules.Arrival(world, cast(Any, newcomers))
        for each in newcomers.values():
            each.peers[self.number] = self

    # ---- a step

    def next_step(self) -> None:
        self.work = "train"
        self._compute(self._dealt_once.pop(self.step, self._dealt))

    def _compute(self, leaves: tuple[int, ...]) -> None:
        self.phase = ""
        part = len(leaves) / len(rules.first_leaves(self.number, self.size, LEAVES))
        rate = 0.8 + 0.4 * self._world.random.random()
        self.later(self._world.script.step_seconds * min(part, 2.0) * rate, self._computed, leaves)

    def _computed(self, leaves: tuple[int, ...]) -> None:
        if self.step + 1 == self._world.script.bug_at and LEAVES - 1 in leaves:
            self.raises("ValueError train.py:31", "ValueError: bad sample (train.py:31)")
            return
        self.held += leaves
        self.decisions.admission.begin_exchange()
        self.group.add(self, tuple(len(self.held) * vote for vote in self.decisions.admission.votes))
        self._wait("sum")

    def _wait(self, phase: str) -> None:
        self.phase, self._since = phase, self._world.clock.now
        self.look()

    def look_soon(self) -> None:
        if self.alive and not self._looks:
            self._looks = True
            self.later(0.005 + 0.05 * self._world.random.random(), self.look)

    def look(self) -> None:
        """Continue, if what it waits for is there."""
        self._looks = False
        if self.phase and self.alive:
            getattr(self, f"_look_for_{self.phase}")()

    def _look_for_sum(self) -> None:
        if total := self.group.delivered(self):
            self._take(total)
        elif self.gone & self.members or self._misses(self.members):
            self._await_line()

    def _misses(self, replicas: frozenset[int]) -> bool:
        """One of these is lost, or continues with others."""
        return self.group.is_continued(self) or any(
            self.peer(each) is None for each in replicas - {self.number}
        )

    def peer(self, number: int) -> Replica | None:
        """None: its connection has ended. A machine without power ends none."""
        found = self.peers.get(number)
        return found if found and (found.alive or found.silent) else None

    def _take(self, total: Sum) -> None:
        self.phase, self.held = "", ()
        assert self.decisions.is_complete((*total.votes, 0))
        self.weights, self.retained = mix(self.weights, self.step, *total.leaves), total
        self.step += 1
        self.touch()
        self.group.taken(self)
        script = self._world.script
        self._save_due |= self.step % script.every_steps == 0 and self.step < script.total_steps
        if self.decisions.admission.due:
            self._admit(self.decisions.admission.due)
            return
        if self._save_due and self._can_save and not self.writing:
            self._save_due = False
            self.save_for_all() if not self.whole else self.save()
        self._proceed()

    def save_for_all(self, then: Callable[[], None] = lambda: None) -> None:
        self._alone = self.step, self.saves_as
        self.save(then, whole=True)

    @property
    def _can_save(self) -> bool:
        """While ranks are missing, once the last save for all is committed, or the leading rank replaced."""
        step, world_id = self._alone
        committed = step <= (self.orders.committed_step or 0) or world_id != self.saves_as
        return self.whole or (self._may_save_for_all and committed)

    @property
    def _may_save_for_all(self) -> bool:
        """Not a step that a lost rank may have saved, too."""
        return self.step >= self._alone_from and self.number == min(self.members)

    def _proceed(self) -> None:
        """Begin the next step, or end: then wait for the others, if none is missing."""
        if self.step < self._world.script.total_steps:
            self.report()
        elif self.whole:
            self.work = "checkpoint"
            self._wait("end")
        else:
            self._finish()

    def _look_for_end(self) -> None:
        at_end = self.group.are_at(self.step, self.everyone)
        if at_end or self._misses(self.everyone):
            self._finish()
        else:
            self.later(LOOK_SECONDS, self.look)

    def _finish(self) -> None:
        self.phase = ""
        self.end()

    def _drain(self) -> None:
        """While ranks are missing one saves for all."""
        if self.whole:
            super()._drain()
            return
        self.waiting = self.drained = True
        if self._may_save_for_all:
            self.save_for_all(lambda: self.send(FromRank(drained=self.step)))
        else:
            self.send(FromRank(drained=self.step))

    # ---- a replica is lost

    def _await_line(self) -> None:
        """The agent's line says who is lost."""
        self._world.clock.after(LINE_SECONDS + 1.0, self.when_awake, self.look)
        self._wait("line")

    def _look_for_line(self) -> None:
        found = self.membership.after()
        if found is None:
            if self._world.clock.now >= self._since + LINE_SECONDS:
                self._fail()
            return
        have_come = self.decisions.admission.knows(found.world_id)
        self.members_number = found.number
        self.members = found.replicas if have_come else found.replicas - found.newcomers
        self.group.publish(self, Position(self.step, self.held))
        self._wait("regroup")

    def _look_for_regroup(self) -> None:
        positions = self.group.positions(self)
        if positions is None:
            if self._misses(self.members):
                self._await_line()
            return
        self.decisions.admission.note_members(self.members_number)
        self.whole, self.members, self._dealt_once, self.gone = False, frozenset(positions), {}, set()
        self._dealt = rules.leaves_of_members(self.members, self.size, LEAVES)[self.number]
        dealt = rules.leaves_of_begun_step(positions, self.size, LEAVES)[self.number]
        most = max(position.done for position in positions.values())
        self._alone_from = most + 2
        self._world.checks.counts["regroups"] += 1
        if self.step < most:
            self._dealt_once[most] = dealt
            self._source = min(each for each, position in positions.items() if position.done == most)
            self._wait("whole")
        else:
            self._compute(tuple(number for number in dealt if number not in self.held))

    def _look_for_whole(self) -> None:
        """The sum that others have."""
        source = self.peer(self._source)
        if source and source.alive and self.reaches(source) and source.step > self.step:
            assert source.retained
            self._world.checks.counts["kept sums"] += 1
            self._take(source.retained)
        elif self._misses(self.members):
            self._await_line()
        else:
            self.later(LOOK_SECONDS, self.look)

    def _fail(self) -> None:
        self.phase = ""
        seconds = 0.02 + 0.3 * self._world.random.random()
        self.later(seconds, self.raises, "DistBackendError", CONSEQUENCE)

    # ---- replicas have come

    def _admit(self, arrival: rules.Arrival) -> None:
        newcomers = cast("Mapping[int, Replica]", arrival.connections)
        self._enter(arrival.world, arrival.number)
        if self.number == min(self.everyone - {*newcomers}):
            for each in newcomers.values():
                self.group.hand_over(self, each)
        self._join_group()

    def _enter(self, world: LiveWorld, number: int) -> None:
        """All replicas are members from the next step on."""
        self._joined, self.members_number, self.members = world, number, self.everyone
        self.decisions.admission.close(world.world_id)
        self.membership.have_joined(number)
        self.whole, self._dealt_once, self.gone = True, {}, set()
        self._dealt = rules.first_leaves(self.number, self.size, LEAVES)

    def _look_for_state(self) -> None:
        """Of a rank that trains. If the others continue without this one, it ends."""
        if self.received:
            step, self.weights = self.received
            self.received = None
            self.go_on_from(step)
            self.group.joins(self)
            self._enter(self.first, self.members_number)
            self._save_due = True
            self._join_group()
        elif self.group.is_continued(self):
            self.group.refuse(self)
            self._fail()
        elif self.peer(self._source) is None:
            self._fail()
        else:
            self.later(LOOK_SECONDS, self.look)

    def _join_group(self) -> None:
        """Form the process group of the new world, unless a rank is lost meanwhile."""
        self.work = "restore"
        self.group.arrives(self, self._joined.world_id)
        self._wait("group")

    def _look_for_group(self) -> None:
        is_over = bool(self.orders.lost) or self.orders.live_world not in (None, self._joined)
        has_store = self._world.store_answers(self._joined)
        if is_over or (has_store and self.group.all_have_arrived(self._joined.world_id)):
            self._formed(not is_over)
            self._save_due = True
            self._proceed()
        elif not has_store and self._world.clock.now > self._since + STORE_SECONDS:
            self._fail()
        else:
            self.later(LOOK_SECONDS, self.look)
