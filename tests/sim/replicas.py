"""New replicas under sync Exact, and those that they join.

Order: a new rank is started with its mates -> it connects to all others of its part -> these vote for it in
each step -> all admit it after the same one, and the lowest sends it its state. Or the lowest does before
that, and sends the sums of each step; the new one makes the others' steps until it has caught up, and is
admitted then. All form the process group of the new world.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from tests.sim.peers import LOOK_SECONDS, Peer
from tests.sim.steps import LEAVES, STATE, StepRank
from tests.sim.waiting import Awaited

from ropeteam_trainer.contract.local import LiveWorld
from ropeteam_trainer.data.decisions.plan import mix
from ropeteam_trainer.strategies.exact import members as rules
from ropeteam_trainer.strategies.exact.sums import ReplicaLost

STORE_SECONDS, GROUP_SECONDS = 5.0, 60.0
"""Time limits of the wait for the process group: less than torch's."""


class Replica(StepRank):
    """A rank of a replica, new or not."""

    # ---- its begin

    def boot(self) -> None:
        self.register(joins=True)
        self.gang = self._world.gang(self)
        if self.number not in self.plan.started:
            self.gang.join(self)
            return
        self.members_number = rules.Arrival(self.first, {}).number
        source = min(self.everyone - self.mates.replicas_of(self.first.started))
        self.wires.expect_state(source, self.may_follow)
        self.group.comes(self)
        self._connect()

    def begin(self, peers: Mapping[int, Peer], weights: int) -> None:
        """All ranks of the first world are here."""
        self.peers.update({n: peer for n, peer in peers.items() if n != self.replica})
        self.weights = weights
        self.formed(not self._joined.absent, self._joined)

    def _connect(self) -> None:
        """Connect to all others, which train."""
        self.group.introduce(self.first)
        if self.peers.keys() < self.everyone - {self.replica}:
            self.later(LOOK_SECONDS, self._connect)
            return
        self.work = "restore"
        self.touch()
        self.wait("state", self._await_state, self._begin_with_state)

    def connect(self, world: LiveWorld, newcomers: Mapping[int, Replica]) -> None:
        """Be connected to new ranks, and vote for them from the next step on."""
        self.peers.update(newcomers)
        self.wires.connect(newcomers)
        self.connected = world.world_id
        self.decisions.admission.arrival = rules.Arrival(world, cast(Any, newcomers))
        for each in newcomers.values():
            each.peers[self.replica] = self
        self.look_soon()

    def note_position(self) -> None:
        """As Exchange._note_position(): a new rank that is no member yet ends, if others continue."""
        new = self.wires.newcomer
        if new and new.is_apart and not new.has_declined and self.part.is_continued(self):
            new.has_declined = True
            self.part.decline(self)

    def _await_state(self) -> bool:
        """Await the state. False: it does not come, since the others continue without this rank."""
        try:
            self.admitting.receive_state(lambda _: [], self.touch)
        except ReplicaLost:
            return False
        return True

    def _begin_with_state(self, has_state: bool) -> None:
        if not has_state:
            self.fail()
            return
        assert self.wires.state
        step, self.weights = self.wires.state
        self.go_on_from(step)
        if self.follows:
            self.wires.report_progress(step)
            self._proceed()
        else:
            self._become_member()

    # ---- it follows the others

    def next_step(self) -> None:
        if self.follows:
            self.work = "train"
            self.wait("follow", self._await_followed_sums, self._begin_to_follow)
        else:
            super().next_step()

    def _await_followed_sums(self) -> bool:
        try:
            self.admitting.followed_sums(self.step)
        except ReplicaLost:
            return False
        return True

    def _begin_to_follow(self, has_sums: bool) -> None:
        if has_sums:
            slowness = 2.0 if self._world.random.random() < 0.1 else 0.6
            self.later(self._world.script.step_seconds * slowness * self._world.random.random(), self._follow)
        else:
            self.fail()

    def _follow(self) -> None:
        """Make a step of the others."""
        self.retained = total = self.wires.sums.pop(self.step)
        self.weights = mix(self.weights, self.step, *total.leaves)
        self.step += 1
        self.base = self.step  # no step is its own before it has joined
        self.touch()
        self.group.taken(self)
        self._world.checks.counts["followed steps"] += 1
        self.wires.report_progress(self.step)
        self.wait("member", lambda: self.admitting.is_member_after(self.step), self._note_membership)

    def _note_membership(self, is_member: bool) -> None:
        if is_member:
            self._become_member()
        else:
            self._proceed()

    # ---- replicas have come

    def admit(self, arrival: rules.Arrival) -> None:
        """Of one that trains."""
        if self.admitting.admit(arrival, self.step, lambda _: [STATE]):
            self._enter(arrival.world)
            self._join_group()
        else:
            self._world.checks.counts["begins to follow"] += 1
            self._proceed()

    def _become_member(self) -> None:
        """Of a new one."""
        self.group.joins(self)
        self._enter(self.first)
        self._join_group()

    def _enter(self, world: LiveWorld) -> None:
        """All replicas of this world are members from the next step on."""
        self._joined = world
        self.members = rules.replicas_of_world(world, self.mates, self.replicas)
        self.decisions.admission.close(world.world_id)
        self.membership.have_joined(self.members_number)
        self.presence.note_joined(self.members)
        self._dealt = rules.leaves_of_members(self.members, self.replicas, LEAVES)[self.replica]
        self._dealt_once = {}
        self._world.checks.counts["partial joins"] += bool(world.absent)

    def _join_group(self) -> None:
        """Form the process group of the new world, unless a rank is absent, or lost meanwhile."""
        if self._joined.absent:
            self._note_group(False)
            return
        self.work = "restore"
        self.group.arrives(self, self._joined.world_id, self.leaves_out_save)
        self.wait("group", self._await_group, self._note_group)

    def _await_group(self) -> bool | None:
        """Await the group. False: it is not needed any more. None: it cannot be formed."""
        if self.orders.lost or self.orders.live_world not in (None, self._joined):
            return False
        has_store = self._world.store_answers(self._joined)
        if has_store and self.group.all_have_arrived(self._joined.world_id):
            return True
        if self.waited > (GROUP_SECONDS if has_store else STORE_SECONDS):
            return None
        raise Awaited(LOOK_SECONDS)

    def _note_group(self, is_formed: bool | None) -> None:
        if is_formed is None:
            self.fail()
            return
        self.formed(is_formed, self._joined)
        self._save_due = not is_formed or self.group.saves_next(self._joined.world_id)
        self._proceed()
