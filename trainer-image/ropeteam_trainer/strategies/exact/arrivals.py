"""New replicas that take the places of lost ones, while the others train on.

The agent sends the others the world that starts them. Each of the others opens a listener, and writes its
address into the store of that world; each new one connects to all others, and to the new ones before it.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from ropeteam_trainer.contract.local import LiveWorld, ToRank
from ropeteam_trainer.contract.strategy import StrategyError
from ropeteam_trainer.rank.mates import Mates
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.strategies.exact.admitting import Admitting
from ropeteam_trainer.strategies.exact.exchange import Exchange
from ropeteam_trainer.strategies.exact.joining import (
    accepted,
    address_of,
    connected,
    listener_at,
    own_address,
    set_time_limit,
)
from ropeteam_trainer.strategies.exact.links import Links
from ropeteam_trainer.strategies.exact.members import Arrival, WorldsOfJob, replicas_of_world
from ropeteam_trainer.strategies.exact.sums import BucketShape, ReplicaLost
from ropeteam_trainer.system.notice import notice

_POLL_SECONDS = 0.2
"""Interval in which a newer world is noticed."""
_RETRY_SECONDS, _STORE_SECONDS = 1.0, 5
_SECRET, _COMPUTES = "secret", "computes"


class Reception:
    """Threads of a replica: one ends its waits for lost replicas, one connects it to new ones."""

    def __init__(
        self, worlds: WorldsOfJob, mates: Mates, computes: str, seconds: int, admitting: Admitting
    ) -> None:
        """computes: description of what this replica computes with. seconds: time limit of collectives."""
        self._link, self._mates, self._computes = worlds.link, mates, computes
        self._seconds, self._admitting = seconds, admitting
        self._first = worlds.first
        self._world = None if worlds.first.begins_alone(mates.rank) else worlds.first.world_id
        """Newest world whose new replicas have connected, or need not any more. None: none is."""
        self._connected = self._world
        """Newest world whose new replicas are connected to this one."""
        self._seen = ToRank()
        """Newest line whose losses are noted."""
        for run in (self._note_losses, self._connect_to_new):
            threading.Thread(target=run, name="ropeteam-members", daemon=True).start()

    def _note_losses(self) -> None:
        while line := self._link.wait_until(lambda line: line != self._seen, None):
            self._seen = line
            self._admitting.replicas_are_lost(self._lost)

    def _lost(self) -> frozenset[int]:
        """Replicas that are lost, as far as the agent knows: also those that the newest world starts again,
        until the new ones are connected."""
        line, world = self._link.newest, self._newest_world(self._link.newest)
        started = world.started if world.world_id != self._connected else ()
        return self._mates.replicas_of({*line.lost, *started, *world.absent})

    def _newest_world(self, line: ToRank) -> LiveWorld:
        return line.live_world or self._first

    def _connect_to_new(self) -> None:
        while line := self._link.wait_until(
            lambda line: self._newest_world(line).world_id != self._world, None
        ):
            world = self._newest_world(line)
            if not world.started:
                self._world = self._connected = world.world_id
                self._admitting.nobody_comes()
                continue
            try:
                connections = self._connections(world)
            except (OSError, dist.DistError, RuntimeError) as error:
                notice(f"the ranks that world {world.world_id} has started cannot join yet: {error}")
                time.sleep(_RETRY_SECONDS)
                continue
            self._world = world.world_id
            if connections is not None:
                self._connected = world.world_id
                self._admitting.replicas_have_come(Arrival(world, connections))
                self._admitting.replicas_are_lost(self._lost)

    def _connections(self, world: LiveWorld) -> dict[int, socket.socket] | None:
        """Connections to all replicas that the world starts. None: it has ended. Raises OSError, and errors
        of the store."""
        store = _store_of(world, _STORE_SECONDS)
        host = own_address(world.store_host, world.store_port)
        started = self._mates.replicas_of(world.started)
        with ExitStack() as stack:
            listener = stack.enter_context(listener_at(host, len(started)))
            secret = _shared_secret(store)
            store.set(_COMPUTES, self._computes)
            store.set(_place(self._mates.rank), address_of(listener))
            return _awaited(
                listener,
                secret,
                started,
                self._seconds,
                lambda: self._newest_world(self._link.newest) == world,
            )


def begin_alone(
    replica: int, replicas: int, leaves: int, seconds: int, shapes: Sequence[BucketShape]
) -> Exchange:
    """Exchange of a replica that all others join later. seconds: time limit of waits."""
    exchange = Exchange(replica, replicas, leaves, shapes, seconds)
    exchange.use(Links({}, exchange), members=frozenset({replica}))
    return exchange


def join_living_replicas(
    world: World,
    mates: Mates,
    first: LiveWorld,
    leaves: int,
    computes: str,
    follows: bool,
    shapes: Sequence[BucketShape],
) -> Exchange:
    """Exchange of a new rank with those of its part in the other replicas, which train meanwhile. follows:
    whether it follows them before it is a member."""
    (replica,), replicas = mates.replicas_of([world.rank]), world.size // len(mates.ranks)
    exchange = Exchange(replica, replicas, leaves, shapes, world.timeout_seconds)
    members = replicas_of_world(first, mates, replicas)
    exchange.expect_state(min(members - mates.replicas_of(first.started)), follows)
    found = _connections_of_newcomer(first, mates, members, computes, world.timeout_seconds)
    exchange.use(Links(found, exchange), Arrival(first, found).number, members)
    return exchange


def _connections_of_newcomer(
    world: LiveWorld, mates: Mates, members: frozenset[int], computes: str, seconds: int
) -> dict[int, socket.socket]:
    """Connections of a new replica to all other members. Raises StrategyError if it computes with something
    else, and ReplicaLost."""
    store = _store_of(world, seconds)
    host = own_address(world.store_host, world.store_port)
    deadline = time.monotonic() + seconds
    (replica,), started = mates.replicas_of([mates.rank]), mates.replicas_of(world.started)
    with listener_at(host, len(members)) as listener:
        store.set(_place(mates.rank), address_of(listener))
        others = [each for each in sorted(members) if each not in started or each < replica]
        at = {each: store.get(_place(mates.rank_in(each))).decode() for each in others}
        theirs = store.get(_COMPUTES).decode()
        if theirs != computes:
            raise StrategyError(
                "spec.strategy.sync: Exact needs ranks that compute the same bits, but the others have "
                f"{theirs} and this rank has {computes}; use equal nodes and images, or sync AllReduce"
            )
        secret = _shared_secret(store)
        found = {each: connected(address, secret, replica, deadline) for each, address in at.items()}
        for connection in found.values():
            set_time_limit(connection, seconds)
        later = [each for each in started if each > replica]
        found |= _awaited(listener, secret, later, seconds, lambda: True) or {}
    return found


def _awaited(
    listener: socket.socket,
    secret: str,
    replicas: Iterable[int],
    seconds: int,
    is_needed: Callable[[], bool],
) -> dict[int, socket.socket] | None:
    """Connections of these replicas, once all have come. None: they are not needed any more."""
    found: dict[int, socket.socket] = {}
    awaited = {*replicas}
    listener.settimeout(_POLL_SECONDS)
    while awaited:
        if not is_needed():
            for connection in found.values():
                connection.close()
            return None
        try:
            number, connection = accepted(listener, secret, awaited)
        except ReplicaLost:
            continue
        set_time_limit(connection, seconds)
        found[number] = connection
        awaited.discard(number)
    return found


def _store_of(world: LiveWorld, seconds: int) -> PrefixStore:
    tcp = TCPStore(world.store_host, world.store_port, is_master=False, timeout=timedelta(seconds=seconds))
    return PrefixStore("ropeteam/replicas", tcp)


def _shared_secret(store: PrefixStore) -> str:
    """Secret of all replicas in this store: that of the first."""
    return bytes(store.compare_set(_SECRET, "", secrets.token_hex(16))).decode()


def _place(replica: int) -> str:
    return f"replica/{replica}"
