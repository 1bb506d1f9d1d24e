"""The admission of new replicas by those that train: with the state of this step, for which all wait, or
after new ones have followed the others (following.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import torch
from torch import nn

from ropeteam_trainer.contract.local import LiveWorld
from ropeteam_trainer.strategies.exact.callbacks import Callbacks
from ropeteam_trainer.strategies.exact.decisions import Admission
from ropeteam_trainer.strategies.exact.equality import flat_copy, flat_view, unsaved_buffers
from ropeteam_trainer.strategies.exact.exchange import Exchange
from ropeteam_trainer.strategies.exact.following import FOLLOWED, STATE, behind, most_behind
from ropeteam_trainer.strategies.exact.members import Arrival, Replication, replicas_of_world
from ropeteam_trainer.strategies.exact.sums import ReplicaLost

State = Callable[[bool], Sequence[torch.Tensor]]
"""The parts of the state, flat tensors on the CPU. Given: whether training continues while they are sent."""
_ALIVE_SECONDS = 5.0
"""Interval in which a replica that waits for its state shows that it lives."""
_END_SECONDS = 10.0
"""Time for new replicas to make the last steps of the others."""


class Admitting:
    """Of one replica: as one that trains, and before as one that is new, if it is."""

    def __init__(
        self,
        exchange: Exchange,
        admission: Admission,
        parts: Sequence[nn.Module],
        replicas: Replication,
        callbacks: Callbacks,
    ) -> None:
        self._exchange, self._admission, self._parts = exchange, admission, parts
        self._replica, self._replicas = replicas.replica, replicas.replicas
        self._may_follow, self._mates, self._callbacks = replicas.follow, replicas.mates, callbacks
        self._begun_at = 0
        """Number of exchanges that were done when new replicas began to follow."""

    def replicas_are_lost(self, replicas: Callable[[], Iterable[int]]) -> None:
        """End all waits for these replicas. Not in the training's thread."""
        self._exchange.drop(replicas)

    def replicas_have_come(self, arrival: Arrival) -> None:
        """Connect to new replicas, and vote for them from the next run on. Not in the training's thread."""
        self._exchange.connect(arrival.connections)
        self._admission.arrival = arrival
        self._exchange.look_again()

    def nobody_comes(self) -> None:
        """No new replica of an earlier world comes any more. Not in the training's thread."""
        self._admission.arrival = None
        self._exchange.look_again()

    def admit(self, arrival: Arrival, done: int, state: State) -> bool:
        """Admit new replicas after so many exchanges, or have them follow first. The lowest of the others
        sends them the state. Returns whether they are admitted."""
        new, sent = arrival.connections, list[torch.Tensor]()
        members, leads = self.members_of(arrival.world), self._leads(arrival)
        if leads and not arrival.has_caught_up:
            flat = flat_copy if self._may_follow else flat_view
            sent = [*state(self._may_follow), *map(flat, unsaved_buffers(self._parts))]
        if not self._may_follow:
            self._exchange.admit(arrival.number, members, new, sent)
        elif arrival.has_caught_up:
            notes = [torch.empty(0, dtype=torch.uint8)] if leads else []
            self._exchange.admit(arrival.number, members, new, notes, admitted_at=done)
        else:
            self._admission.follow()
            self._begun_at = done
            self._exchange.lead(new, STATE, arrival.number, sent)
            return False
        return True

    def members_of(self, world: LiveWorld) -> frozenset[int]:
        """Replicas that train once all that this world starts have joined."""
        return replicas_of_world(world, self._mates, self._replicas)

    def _leads(self, arrival: Arrival) -> bool:
        """Whether this replica sends new ones what they need: the lowest of the others does."""
        return self._replica == min(self.members_of(arrival.world) - {*arrival.connections})

    def lead(self, sums: Sequence[torch.Tensor], done: int) -> None:
        """Send the sums of an exchange, before which so many were done, to new replicas that follow. The
        lowest of the others does."""
        following = self._admission.following
        if following is None:
            return
        new = following.connections
        if self._leads(following):
            self._exchange.lead(new, FOLLOWED, following.number, [*map(flat_copy, sums)], done)
        most = most_behind(done - self._begun_at, sum(each.nbytes for each in sums))
        self._await_progress(following, done, most, self._begun_at, self._exchange.seconds)

    def have_caught_up(self, done: int) -> bool:
        """Whether new replicas that follow have the state, and are behind by one exchange at most."""
        following = self._admission.following
        progress = self._exchange.progress
        return (
            following is not None
            and following.connections.keys() <= progress.keys()
            and behind(progress, following.connections, done, self._begun_at) <= 1
        )

    def end(self, done: int) -> None:
        """After the last exchange: let new replicas that follow end too, if they are sent all they need."""
        if following := self._admission.following:
            self._await_progress(following, done, 0, 0, _END_SECONDS)

    def _await_progress(
        self, following: Arrival, done: int, most: int, begun_at: int, seconds: float
    ) -> None:
        """Wait until new replicas are behind by so many exchanges at most, others have come in their place,
        or one is lost: one of the members too, which the next exchange will notice. A new one that is not
        there in time is dropped, for it may hang."""
        new, progress = following.connections, self._exchange.progress

        def is_over() -> bool:
            return self._admission.following is not following or behind(progress, new, done, begun_at) <= most

        with suppress(ReplicaLost), self._callbacks.waiting():
            self._exchange.wait_for(is_over, new, seconds)
            if not is_over():
                self._exchange.drop(lambda: new)

    # ---- of a new replica

    @property
    def follows(self) -> bool:
        """Whether this replica is new, and follows the others before it is a member."""
        new = self._exchange.newcomer
        return new is not None and new.follows

    def receive_state(
        self, places: Callable[[memoryview], Sequence[torch.Tensor]], alive: Callable[[], None]
    ) -> None:
        """Receive the state, however long that takes. places: called with its index; returns flat tensors on
        the CPU for the other parts, but for buffers that are in no state_dict: those are set. Returns once
        all mates have theirs. alive: called now and then meanwhile. Raises ReplicaLost."""
        new = self._exchange.newcomer
        assert new is not None
        self._await_newcomer(lambda: new.index is not None, alive)
        assert new.index is not None
        buffers = unsaved_buffers(self._parts)
        flat_buffers = [flat_view(buffer) for buffer in buffers]
        self._exchange.receive_into([*places(new.index), *flat_buffers])
        self._await_newcomer(lambda: not new.awaits_state, alive)
        for buffer, flat in zip(buffers, flat_buffers, strict=True):
            buffer.copy_(flat.view(buffer.shape))
        with self._callbacks.waiting():
            self._mates.highest([0])

    def _await_newcomer(self, has_come: Callable[[], bool], alive: Callable[[], None]) -> None:
        """Wait for what this replica, which is new, is sent."""
        new = self._exchange.newcomer
        assert new is not None
        while not has_come():
            alive()
            self._exchange.wait_for(has_come, [new.source], _ALIVE_SECONDS)

    def is_member_after(self, done: int) -> bool:
        """Whether this replica, which follows others, is a member after so many exchanges. Returns once it
        is, or the sums of the next one have come, or no more come: then the last step may be done."""
        new = self._exchange.newcomer
        assert new is not None
        with suppress(ReplicaLost), self._callbacks.waiting():
            self._exchange.wait_for(lambda: new.sums.are_here(done) or new.admitted_at == done, [new.source])
        new.follows = new.admitted_at != done
        return not new.follows

    def followed_sums(self, done: int) -> list[torch.Tensor]:
        """The sums of the exchange after so many, once they have come. Raises ReplicaLost."""
        new = self._exchange.newcomer
        assert new is not None
        with self._callbacks.waiting():
            self._exchange.wait_for(lambda: new.sums.are_here(done), [new.source])
        return new.sums.take(done)
