"""The exchange of one rank, as the shipped admission of new replicas calls it (exact/admitting.py).

Messages to a new replica arrive in order, each after a while; what dies meanwhile has not sent the rest. They
are noted by the shipped Newcomer, so that it judges what is there, what was not due, and what comes too late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from tests.sim.peers import LOOK_SECONDS
from tests.sim.promise import require
from tests.sim.waiting import Awaited

from ropeteam_trainer.strategies.exact.following import ADMITTED, FOLLOWED, MOST_BEHIND, STATE, Newcomer
from ropeteam_trainer.strategies.exact.links import Header
from ropeteam_trainer.strategies.exact.sums import BucketShape, ReplicaLost

if TYPE_CHECKING:
    from tests.sim.exchange import Sum
    from tests.sim.steps import StepRank

SHAPE = BucketShape(1, torch.uint8)
"""Of a sum: its content is beside it."""
SECONDS = 4.0
"""Time limit of waits for new replicas."""


class Wires:
    """Of one rank."""

    def __init__(self, rank: StepRank) -> None:
        self._rank = rank
        self.seconds = SECONDS
        self.newcomer: Newcomer | None = None
        self.progress: dict[int, int] = {}
        self.state: tuple[int, int] | None = None
        """That it was sent: step and weights."""
        self.sums: dict[int, Sum] = {}
        """That it was sent, by exchange."""
        self.sent: dict[int, set[int]] = {}
        """Exchanges whose sums it has sent to each new replica."""
        self._free_at: dict[int, float] = {}
        """When the last message to each replica has arrived."""

    # ---- of one that trains

    def connect(self, newcomers: Iterable[int]) -> None:
        for replica in newcomers:
            self.progress.pop(replica, None)
            self.sent.pop(replica, None)

    def admit(
        self,
        world: int,
        members: Iterable[int],
        newcomers: Mapping[int, Any],
        state: Sequence[torch.Tensor],
        admitted_at: int | None = None,
    ) -> None:
        rank = self._rank
        rank.members_number, rank.members = world, frozenset(members)
        rank.gone = {replica for replica, new in newcomers.items() if rank.peers.get(replica) is not new}
        kind, done = (STATE, 0) if admitted_at is None else (ADMITTED, admitted_at)
        self.lead(newcomers, kind, world, state, done)

    def lead(
        self,
        newcomers: Mapping[int, Any],
        kind: int,
        world: int,
        values: Sequence[torch.Tensor],
        done: int = 0,
    ) -> None:
        def send() -> None:
            for replica, new in newcomers.items() if values else ():
                if self._rank.peers.get(replica) is new:
                    self._send(cast("StepRank", new), Header(kind, world, 0, 0, len(values), done))

        waiting = self._rank.waiting_for
        waiting.once(send) if waiting else send()

    def _send(self, new: StepRank, header: Header) -> None:
        rank = self._rank
        clock, random = rank.world.clock, rank.world.random
        if header.kind == FOLLOWED:
            self.sent.setdefault(new.replica, set()).add(header.step)
        content = (rank.step, rank.weights) if header.kind == STATE else rank.retained
        longest = 3.0 if header.kind == STATE and rank.may_follow else 0.35
        at = max(clock.now, self._free_at.get(new.replica, 0.0)) + longest * (0.1 + 0.9 * random.random())
        self._free_at[new.replica] = at
        clock.after(at - clock.now, self._arrive, new, header, content)

    def _arrive(self, new: StepRank, header: Header, content: Any) -> None:
        if not self._rank.alive or not new.alive:
            return
        if not self._rank.reaches(new):
            self._rank.world.clock.after(LOOK_SECONDS, self._arrive, new, header, content)
            return
        new.wires.receive(header, content)
        new.look_soon()

    def wait_for(
        self, is_there: Callable[[], bool], replicas: Iterable[int], seconds: float | None = None
    ) -> None:
        rank = self._rank
        is_member = self.newcomer is None or not self.newcomer.is_apart
        among = frozenset(replicas) | (rank.members if is_member else frozenset())
        if is_there():
            return
        if rank.is_missing(among):
            raise ReplicaLost
        if seconds is not None and rank.waited >= seconds and is_member:
            return
        raise Awaited(LOOK_SECONDS)

    def drop(self, replicas: Callable[[], Iterable[int]]) -> None:
        """A new replica that follows is left behind."""
        for replica in {*replicas()} & {*self._rank.peers}:
            new = cast("StepRank", self._rank.peers[replica])
            source = self._source_of(new)
            sent = source is None or new.step in source.wires.sent.get(replica, ())
            require(new.phase != "follow" or sent, "a new replica is sent each sum", new.number, new.step)
        self._rank.world.checks.counts["left behind"] += 1
        self._rank.drop(frozenset(replicas()))

    def _source_of(self, new: StepRank) -> StepRank | None:
        """The one that leads it. None: it is gone."""
        newcomer = new.wires.newcomer
        found = new.peer(newcomer.source) if newcomer else None
        return cast("StepRank", found) if found and found.alive else None

    # ---- of a new one

    def expect_state(self, source: int, follows: bool) -> None:
        self.newcomer = Newcomer(source, [SHAPE], follows)

    def receive_into(self, places: Sequence[torch.Tensor]) -> None:
        """The state is one message, the index."""
        assert not places

    def receive(self, header: Header, content: Any) -> None:
        """A message of the source. Those among earlier members are dropped."""
        new = self.newcomer
        assert new is not None
        if header.world != self._rank.members_number:
            return
        payload = new.buffer(header, 1)
        assert payload is not None
        new.received(header, payload)
        if header.kind == STATE:
            self.state = content
        elif header.kind == FOLLOWED:
            self.sums[header.step] = content
            most = len(self.sums)
            require(most <= MOST_BEHIND + 1, "sums of 16 steps are kept for a new replica", most)

    def report_progress(self, done: int) -> None:
        rank = self._rank
        for peer in (cast("StepRank", each) for each in rank.peers.values()):
            seconds = 0.05 * rank.world.random.random()
            rank.world.clock.after(seconds, self._note_progress, peer, done)

    def _note_progress(self, peer: StepRank, done: int) -> None:
        rank = self._rank
        if peer.alive and peer.peers.get(rank.replica) is rank and peer.reaches(rank):
            peer.wires.progress[rank.replica] = max(done, peer.wires.progress.get(rank.replica, 0))
            peer.look_soon()
        elif peer.alive and rank.alive and peer.peers.get(rank.replica) is rank:
            rank.world.clock.after(LOOK_SECONDS, self._note_progress, peer, done)
