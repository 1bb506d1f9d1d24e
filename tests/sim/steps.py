"""Steps under sync Exact: replicas finish one without those that are lost.

As strategies/exact does it, with its own rules on members, micro-batches, votes, mates and newcomers
(members.py, decisions.py, admitting.py), but without bytes: a gradient is the numbers of its micro-batches. A
rank computes with its mates, adds, and waits for the sum of all members. Once all of its mates have theirs,
they make the step; else they regroup, as their agents say. Limit: what other threads of a stuck process would
do is not simulated.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from tests.sim.peers import LOOK_SECONDS, Peer
from tests.sim.promise import require
from tests.sim.ranks import Parent
from tests.sim.waiting import Awaited
from tests.sim.wires import Wires

from ropeteam_trainer.contract.local import FromRank, ToRank
from ropeteam_trainer.contract.world import Plan, WorldId
from ropeteam_trainer.data.decisions.plan import mix
from ropeteam_trainer.rank.agentlink import AgentLink
from ropeteam_trainer.strategies.exact import members as rules
from ropeteam_trainer.strategies.exact.admitting import Admitting
from ropeteam_trainer.strategies.exact.callbacks import Callbacks
from ropeteam_trainer.strategies.exact.decisions import Decisions
from ropeteam_trainer.strategies.exact.exchange import Exchange
from ropeteam_trainer.strategies.exact.positions import Position, sender_of_sums
from ropeteam_trainer.strategies.exact.sums import ReplicaLost

if TYPE_CHECKING:
    from tests.sim.exchange import Sum
    from tests.sim.world import World

LEAVES = 8
"""Micro-batches of a step."""
LINE_SECONDS = 45.0
STATE = torch.zeros(1, dtype=torch.uint8)


class StepRank(Peer):
    """A rank. `weights`: its parameters, as a number that each step makes of the last one."""

    def __init__(self, world: World, parent: Parent, plan: Plan, number: int) -> None:
        super().__init__(world, parent, plan, number)
        self.world, self.may_follow = world, bool(world.setup.follow)
        self._joined = self.first  # the newest world that it has joined
        link = cast(AgentLink, self)
        self.membership = rules.AgentMembership(link, self.first, self.replicas, 600.0, self.mates)
        self.decisions = Decisions(LEAVES, self.mates)
        self.presence = rules.Presence(self.replica, self.replicas, self.members)
        self.wires = Wires(self)
        begins_alone = self.first.begins_alone(number)
        me = rules.Replication(
            self.replica, self.replicas, self.membership, self.mates, self.may_follow, begins_alone
        )
        exchange = cast(Exchange, self.wires)
        self.admitting = Admitting(exchange, self.decisions.admission, (), me, Callbacks())
        self.weights, self.held = 0, tuple[int, ...]()
        """`held`: micro-batches whose gradients it has in this step."""
        self.retained: Sum | None = None
        self._total: tuple[int, Sum] | None = None  # an exchange, and its sum, which is not used yet
        self._dealt = rules.first_leaves(self.replica, self.replicas, LEAVES)
        if begins_alone:
            self._dealt = rules.leaves_of_members(self.members, self.replicas, LEAVES)[self.replica]
        self._dealt_once: dict[int, tuple[int, ...]] = {}
        self._alone = 0, plan.world_id  # step and world of its last save, if it is for all
        self._last_save, self._is_left_to_another, self._committed = 0, False, 0
        self._save_due = False

    @property
    def whole(self) -> bool:
        """No rank is missing, as far as it knows."""
        new = self.wires.newcomer
        return self.presence.is_whole and not (new and new.is_apart)

    @property
    def follows(self) -> bool:
        return self.admitting.follows

    @property
    def saves_as(self) -> WorldId:
        """While ranks are missing, by the name of a deputy, or that which the newest world gives."""
        line = ToRank() if self.whole else self.orders
        return line.saves_as or (line.live_world or self._joined).saves_as

    @property
    def settled(self) -> bool:
        return super().settled and self.whole and self.phase in ("", "compute", "sum", "complete")

    def has_sum(self, exchange: int) -> bool:
        return self._total is not None and self._total[0] == exchange

    # ---- a step

    def next_step(self) -> None:
        self.work = "train"
        self._compute(self._dealt_once.pop(self.step, self._dealt))

    def _compute(self, leaves: tuple[int, ...]) -> None:
        part = len(leaves) / len(rules.first_leaves(self.replica, self.replicas, LEAVES))
        rate = 0.8 + 0.4 * self._world.random.random()
        self.later(self._world.script.step_seconds * min(part, 2.0) * rate, self._computed, leaves)

    def _computed(self, leaves: tuple[int, ...]) -> None:
        if self.step + 1 == self._world.script.bug_at and LEAVES - 1 in leaves:
            self.raises("ValueError train.py:31", "ValueError: bad sample (train.py:31)")
            return
        code = zlib.crc32(f"{self.members_number} {self.step} {leaves}".encode())

        def add(are_same: bool) -> None:
            require(are_same, "mates compute the same micro-batches", self.number, self.step, leaves)
            self.held += leaves
            self._add()

        self.wait("compute", lambda: self.mates.are_same(code), add)

    def _add(self) -> None:
        self.decisions.admission.begin_exchange(self._have_caught_up)
        votes = (len(self.held) * vote for vote in self.decisions.admission.votes)
        self.part.add(self, (*votes, int(self._demands_save)))
        self.wait("sum", self._await_sum, self._complete)

    def _have_caught_up(self) -> bool:
        found = self.admitting.have_caught_up(self.step)
        following = self.decisions.admission.following
        steps = [cast(StepRank, new).step for new in following.connections.values()] if following else []
        near = not found or min(steps) >= self.step - 1
        require(near, "new replicas that are admitted are a step behind at most", self.step, steps)
        return found

    def _await_sum(self) -> Sum | None:
        """None: a replica is lost first."""
        if total := self.part.delivered(self):
            return total
        if self.gone & self.members or self.is_missing(self.members):
            return None
        raise Awaited

    def _complete(self, total: Sum | None) -> None:
        """Use the sum, if all mates have theirs."""
        self._total = (self.step, total) if total else None
        decide = self.decisions.is_complete
        used = partial(self._decided, total)
        self.wait("complete", lambda: decide(total.votes if total else None), used)

    def _decided(self, total: Sum | None, is_complete: bool) -> None:
        if not is_complete:
            self._world.checks.counts["sums that mates miss"] += total is not None
            self.wait("line", lambda: self.decisions.next_members(self), self._regroup)
            return
        assert total
        self.held, self.retained = (), total
        self.wait("lead", lambda: self.admitting.lead([STATE], self.step), lambda _: self._take(total))

    def _take(self, total: Sum) -> None:
        self.weights = mix(self.weights, self.step, *total.leaves)
        self.step += 1
        self.touch()
        self.group.taken(self)
        self._save_after_step()
        due, stop_at = self.decisions.admission.due, self.orders.stop_at
        stops = self.orders.pause and stop_at is not None and self.step >= stop_at
        if due and not (stops and due.has_caught_up):
            self.admit(due)
        else:
            self._proceed()

    def admit(self, arrival: rules.Arrival) -> None:
        raise NotImplementedError

    # ---- checkpoints

    def _save_after_step(self) -> None:
        script, admission = self._world.script, self.decisions.admission
        self._save_due |= self.step % script.every_steps == 0 and self.step < script.total_steps
        if not self.whole:
            if self.decisions.some_rank_is_late and self.presence.saves_alone(self.step):
                self._save_due = False
                if self.presence.is_lowest:
                    self.save_for_all()
                else:
                    self._last_save, self._is_left_to_another = self.step, True
        elif self._save_due and not self.writing and not admission.due:
            self._save_due = False
            self._alone = 0, self.plan.world_id
            self._last_save, self._is_left_to_another = self.step, False
            self.save()

    @property
    def _demands_save(self) -> bool:
        """While ranks are missing, also if the last save is not known to be committed."""
        is_due = self._save_due or self._is_broken
        return not self.whole and is_due and self.presence.is_lowest and self._has_committed

    @property
    def leaves_out_save(self) -> bool:
        """As far as this rank knows, when all are here again."""
        return self._save_due or (self._is_broken and self._has_committed and not self._is_left_to_another)

    @property
    def _is_broken(self) -> bool:
        self._committed = max(self._committed, self.orders.committed_step or 0)
        return self._last_save > self._committed

    @property
    def _has_committed(self) -> bool:
        """Whether its last save for all is committed, or the leading rank replaced."""
        step, world_id = self._alone
        return step <= max(self._committed, self.orders.committed_step or 0) or world_id != self.saves_as

    def save_for_all(self, then: Callable[[], None] = lambda: None) -> None:
        self._alone = self.step, self.saves_as
        self._last_save, self._is_left_to_another = self.step, False
        self.save(then, whole=True)

    def _proceed(self) -> None:
        """Begin the next step, or end: then wait for the others, if none is missing."""
        if self.step < self._world.script.total_steps:
            self.report()
            return
        self.work = "checkpoint"
        self.wait("leave", lambda: self.admitting.end(self.step), lambda _: self._end())

    def _end(self) -> None:
        def end(_: None) -> None:
            self.end()

        if self.whole:
            self.wait("end", self._await_end, end)
        else:
            self.end()

    def _await_end(self) -> None:
        if not self.group.are_at(self.step) and not self.is_missing(self.everyone):
            raise Awaited(LOOK_SECONDS)

    def _drain(self) -> None:
        """While ranks are missing one replica saves for all."""
        if self.whole:
            super()._drain()
            return
        self.waiting = self.drained = True
        if self.presence.saves_alone(self.step) and self.presence.is_lowest:
            self.save_for_all(lambda: self.send(FromRank(drained=self.step)))
        else:
            self.send(FromRank(drained=self.step))

    # ---- a replica is lost

    def after(self) -> rules.Members | None:
        """As Membership.after(): the agent's line says who is lost."""
        assert self.waiting_for

        def request() -> rules.Members | None:
            found = self.membership.after()
            if found is None and self.waited < LINE_SECONDS:
                raise Awaited(LINE_SECONDS + 1.0)
            return found

        return self.waiting_for.once(request)

    def have_joined(self, number: int) -> None:
        """As Membership.have_joined()."""
        self.membership.have_joined(number)

    def _regroup(self, found: rules.Members | None) -> None:
        if found is None:
            self.fail()
            return
        have_come = self.decisions.admission.knows(found.world_id)
        self.members_number = found.number
        self.members = found.replicas if have_come else found.replicas - found.newcomers
        self.part.publish(self, Position(self.step, self.held))
        self.wait("regroup", self._await_positions, self._begin_again)

    def _await_positions(self) -> dict[int, Position] | None:
        """None: another one is lost meanwhile."""
        assert self.waiting_for

        def request() -> dict[int, Position] | ReplicaLost:
            try:
                return self.part.positions(self)
            except ReplicaLost as lost:
                return lost

        once = self.waiting_for.once

        def regroup() -> dict[int, Position]:
            found = once(request)
            if isinstance(found, ReplicaLost):
                raise found
            return found

        try:
            return self.decisions.regrouped(regroup)
        except ReplicaLost:
            return None

    def _begin_again(self, positions: dict[int, Position] | None) -> None:
        if positions is None:
            self._complete(None)
            return
        if sender_of_sums(positions) == self.replica and self.retained is None:
            self.fail()  # it has just joined, and others need sums
            return
        self.decisions.admission.note_members(self.members_number)
        self.members, self.gone = frozenset(positions), set()
        self._dealt = rules.leaves_of_members(self.members, self.replicas, LEAVES)[self.replica]
        dealt = rules.leaves_of_begun_step(positions, self.replicas, LEAVES)[self.replica]
        most = max(position.done for position in positions.values())
        self.presence.note_lost(self.members, most)
        self._dealt_once = {}
        self._world.checks.counts["regroups"] += 1
        if self.step < most:
            self._dealt_once[most] = dealt
            source = sender_of_sums(positions)
            assert source is not None
            self.wait("whole", partial(self._await_sum_of, source), self._complete)
        else:
            self._compute(tuple(number for number in dealt if number not in self.held))

    def _await_sum_of(self, source: int) -> Sum | None:
        """The sum that others have. None: one is lost meanwhile."""
        peer = cast("StepRank | None", self.peer(source))
        if peer and peer.alive and self.reaches(peer) and peer.step >= self.step and peer.has_last(self.step):
            self._world.checks.counts["kept sums"] += 1
            return peer.retained
        if self.is_missing(self.members):
            return None
        raise Awaited(LOOK_SECONDS)

    def has_last(self, exchange: int) -> bool:
        return self.retained is not None and self.step == exchange + 1
