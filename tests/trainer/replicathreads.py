"""Replicas of one model that train, each in a thread, over real connections, until they die."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Any

import torch
from torch import nn

from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.data.decisions.plan import Leaf
from ropeteam_trainer.strategies.exact.exchange import Exchange
from ropeteam_trainer.strategies.exact.links import Header, Links
from ropeteam_trainer.strategies.exact.members import (
    Arrival,
    CannotTakeOver,
    Members,
    Replication,
    first_leaves,
    members_number,
)
from ropeteam_trainer.strategies.exact.step import ExactStep
from ropeteam_trainer.strategies.exact.sums import SUM, BucketShape, ReplicaLost
from ropeteam_trainer.strategies.model.microbatch import ModelArguments

STEPS, WIDTH, BUCKETS = 5, 9_000, 3
"""Buckets: of the two types of parameters, and of the numbers that are no gradients."""
FOREVER = 1 << 60
_HEADER = struct.Struct("<IQIIIQQ")
_SECONDS = 60
Gradients = list[list[torch.Tensor]]
"""Of all parameters, by step."""


class Killed(Exception):
    """The replica has died."""


class Model(nn.Module):
    """A model whose gradients depend on its weights, and have many different bits."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Parameter(torch.linspace(-1, 1, WIDTH))
        self.narrow = nn.Parameter(torch.linspace(-1, 1, 11).bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.wide).square().mean() + (x[:, :11].bfloat16() * self.narrow).square().mean().float()


def sample(step: int, leaf: int) -> torch.Tensor:
    """A micro-batch's only one. It begins with the micro-batch's number."""
    values = torch.randn(WIDTH, generator=torch.Generator().manual_seed(100 * step + leaf))
    values[0] = leaf
    return values


def micro_batches(step: int, numbers: Sequence[int], leaves: int) -> tuple[list[Leaf], ModelArguments]:
    samples = torch.stack([sample(step, number) for number in numbers])
    return [Leaf(number, (number,), 1 / leaves) for number in numbers], ModelArguments((samples,), {})


@cache
def trained_alone(leaves: int) -> Gradients:
    """Gradients of one replica, which computes all micro-batches."""
    model = Model()
    exact = ExactStep([model], leaves, 1, lambda s: Exchange(0, 1, leaves, s), "", None, Replication())
    return [trained_step(model, exact, model.forward, step, leaves, range(leaves)) for step in range(STEPS)]


def trained_step(
    model: Model,
    exact: ExactStep,
    compute: Callable[..., torch.Tensor],
    step: int,
    leaves: int,
    numbers: Sequence[int],
) -> list[torch.Tensor]:
    own, batch = micro_batches(step, numbers, leaves)
    exact.run(compute, batch, own, step, lambda missing, _: micro_batches(step, missing, leaves))
    gradients = []
    for parameter in model.parameters():
        assert parameter.grad is not None
        gradients.append(parameter.grad.clone())
        parameter.data -= 0.1 * parameter.grad
        parameter.grad.zero_()  # as a script may: others may need the sums still
    return gradients


@dataclass
class Life:
    """Work of a replica before it dies: that ends it which is done first."""

    sent_bytes: int = FOREVER
    sent_sums: int = FOREVER
    """Messages with the sum of a slice."""
    computed: int = FOREVER
    """Micro-batches."""
    waits: int = FOREVER
    is_silent: bool = False
    """Whether its connections stay open, as if its node were off: others learn of it otherwise."""
    before: Callable[[], None] = lambda: None
    """Called before it dies."""


class Mortal(socket.socket):
    """A connection of a replica."""

    replica: Replica
    begun: list[Header]
    """Messages that were sent, the last one perhaps not to its end."""
    left = 0
    """Bytes of the last one that are still to be sent."""
    is_held: Callable[[Header], bool] = staticmethod(lambda _: False)
    """Whether a message is not taken, as if its peer read nothing."""

    def send(self, data: Any, *flags: int) -> int:
        life, begins = self.replica.life, self.left == 0
        *fields, size = _HEADER.unpack(data) if begins else (0,)
        is_sum = begins and fields[0] == SUM
        if begins and self.is_held(Header(*fields)):
            raise BlockingIOError
        if life.sent_bytes <= 0 or (is_sum and life.sent_sums <= 0):
            self.replica.die()
        if self.replica.is_dead:
            raise ConnectionResetError("killed")
        count = super().send(memoryview(data)[: life.sent_bytes], *flags)
        if begins:
            self.begun.append(Header(*fields))
            self.left = _HEADER.size + size
        self.left -= count
        life.sent_bytes -= count
        life.sent_sums -= is_sum
        self.replica.sent_bytes += count
        return count


class Watched(Exchange):
    handed_over = 0
    """How often it was sent sums that another had."""

    def sums_of_another(self, exchange: int) -> list[torch.Tensor]:
        sums = super().sums_of_another(exchange)
        self.handed_over += 1
        return sums


@dataclass
class World:
    """All replicas, and what is known of them."""

    replicas: int
    leaves: int
    lives: Mapping[int, Life] = field(default_factory=dict)
    buffer: int | None = 4096
    """Bytes that a connection takes before its peer reads them. None: many."""

    def __post_init__(self) -> None:
        self.world_id = WorldId(1, 0, 1)
        self.dead: set[int] = set()
        self.ended: set[int] = set()
        """Replicas that have done their last step."""
        self.computed: dict[tuple[int, int], list[int]] = {}
        """Replicas that have computed a micro-batch, by step and number."""
        self.changed = threading.Condition()
        self.all = [Replica(self, number) for number in range(self.replicas)]
        ends: list[dict[int, Mortal]] = [{} for _ in self.all]
        for one, other in combinations(range(self.replicas), 2):
            for mine, theirs, end in zip((one, other), (other, one), socket.socketpair(), strict=True):
                mortal = ends[mine][theirs] = Mortal(fileno=end.detach())
                mortal.replica, mortal.begun = self.all[mine], []
                if self.buffer:
                    mortal.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.buffer)
        for replica, connections in zip(self.all, ends, strict=True):
            replica.begin(connections)

    @property
    def gone(self) -> frozenset[int]:
        return frozenset(self.dead | self.ended)

    def until(self, holds: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(holds, _SECONDS)

    @contextmanager
    def change(self) -> Iterator[None]:
        with self.changed:
            yield
            self.changed.notify_all()

    def train(self) -> dict[int, Gradients]:
        """Gradients of the replicas that live to the end."""
        found = {}
        with ThreadPoolExecutor(self.replicas) as pool:
            futures = [pool.submit(replica.train) for replica in self.all]
            for number, future in enumerate(futures):
                with suppress(Killed):
                    found[number] = future.result()
        for replica in self.all:
            replica.exact.close()
        assert found.keys() == {*range(self.replicas)} - self.dead
        return found


class Replica:
    """One replica. Also the Membership of its steps."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.life = world.lives.get(number, Life())
        self.sent_bytes = 0
        self.done = 0
        """Steps."""
        self.gave_up = ""
        """Reason for which it has ended by itself."""
        self.on_wait: Callable[[], None] = lambda: None
        """Called before each wait for others."""
        self.on_compute: Callable[[], None] = lambda: None
        """Called before each micro-batch."""
        self.model = Model()
        self.arrival: Arrival | None = None
        """New replicas that it has admitted."""
        self._last = 0

    def begin(self, connections: Mapping[int, Mortal]) -> None:
        self.connections, world = connections, self.world

        def connect(shapes: Sequence[BucketShape]) -> Exchange:
            assert len(shapes) == BUCKETS
            self.exchange = Watched(self.number, world.replicas, world.leaves, shapes, _SECONDS)
            self.links = Links(connections, self.exchange)
            self.exchange.use(self.links)
            return self.exchange

        replication = Replication(self.number, world.replicas, self)
        self.exact = ExactStep([self.model], world.leaves, 1, connect, "", None, replication)
        self.exact.callbacks.waiting = self._waiting

    @property
    def is_dead(self) -> bool:
        return self.number in self.world.dead

    def train(self) -> Gradients:
        own = first_leaves(self.number, self.world.replicas, self.world.leaves)
        gradients = []
        try:
            for step in range(STEPS):
                run = trained_step(self.model, self.exact, self._compute(step), step, self.world.leaves, own)
                gradients.append(run)
                if due := self.exact.decisions.admission.due:
                    self.exact.admit(due, lambda _: [])
                    self.arrival = due
                with self.world.change():
                    self.done += 1
        except ReplicaLost:
            assert self.is_dead
            raise Killed from None
        except CannotTakeOver as error:
            self.gave_up = str(error)
            self.die()
            raise Killed from None
        with self.world.change():
            if self.is_dead:
                raise Killed
            self.world.ended.add(self.number)
        self.exact.close()
        return gradients

    def die(self) -> None:
        """In any of its threads."""
        if self.is_dead:
            return
        self.life.before()
        with self.world.change():
            self.world.dead.add(self.number)
            dead = frozenset(self.world.dead)
        self.exchange.failed(ReplicaLost("killed"))
        if self.life.is_silent:
            for other in self.world.all:
                if other.number not in self.world.gone:
                    other.exact.admitting.replicas_are_lost(lambda: dead)
        else:
            for end in self.connections.values():
                with suppress(OSError):  # it may be closed
                    end.shutdown(socket.SHUT_RDWR)

    def _compute(self, step: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def compute(x: torch.Tensor) -> torch.Tensor:
            self._spend("computed")
            self.on_compute()
            with self.world.change():
                self.world.computed.setdefault((step, int(x[0, 0])), []).append(self.number)
            loss: torch.Tensor = self.model(x)
            return loss

        return compute

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._spend("waits")
        self.on_wait()
        yield

    def _spend(self, what: str) -> None:
        left = getattr(self.life, what)
        if left == 0:
            self.die()
        if self.is_dead:
            raise Killed
        setattr(self.life, what, left - 1)

    # ---- Membership

    def after(self) -> Members | None:
        """The members without all that are gone, as soon as another one is."""
        self.world.until(lambda: self.is_dead or len(self.world.gone) > self._last)
        if self.is_dead:
            raise Killed
        with self.world.changed:
            gone = self.world.gone
        self._last = len(gone)
        number = members_number(self.world.world_id, self._last)
        return Members(number, frozenset(range(self.world.replicas)) - gone)

    def have_joined(self, number: int) -> None:
        assert number == members_number(self.world.world_id, have_joined=True)
