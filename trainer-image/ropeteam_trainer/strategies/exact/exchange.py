"""The exchange of gradients with the other replicas, also after one of them is lost, or a new one has come.

sums.py adds them, among members that have a number. When a replica is lost, the others regroup(), each when
it has to wait for the lost one: they are the next members, and send each other how many sums they have, and
for which leaves they have gradients of the next one. That one is then begun again, with the lost replica's
leaves dealt among them.
One may have a sum that others do not have, but never two, because none is complete without the nodes of all.
Others are sent it whole, by the lowest replica that has it. Messages among earlier members are dropped,
those among later ones are left unread until this replica is one of them.

Example: replica 2 of three dies after it has sent the sum of its slice to replica 0, but not to replica 1.

    0: has sum 7, computes its leaves of 8    1: waits for sum 7     2: dead
    0: waits for sum 8, regroups              1: regroups
    0: position 8, sends sum 7 to 1           1: position 7, receives sum 7, steps, computes its leaves of 8
    both add their leaves of 8, and those of replica 2

A new replica connects to all others (connect()). At the end of a step that all of them choose, they
admit() it, and the lowest sends it the state of the training. Until it has that, or while it follows, others
that regroup() continue without it: it answers with no position, and ends.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from ropeteam_trainer.partition.reductiontree import Node
from ropeteam_trainer.strategies.exact.following import (
    ADMITTED,
    PROGRESS,
    STATE,
    Newcomer,
    WholeSums,
)
from ropeteam_trainer.strategies.exact.links import Header, Links
from ropeteam_trainer.strategies.exact.positions import (
    POSITION,
    Position,
    most_bytes,
    sender_of_sums,
    with_state,
)
from ropeteam_trainer.strategies.exact.sums import BucketShape, ReplicaLost, WorldSums, as_bytes, to_raise

WHOLE = 3
"""Kind of the message with the whole sum of a bucket."""


class Exchange:
    """Sums of the gradients of `replicas`, of which this is number `replica`. `leaves` of the tree.

    Order in each step: add() for each bucket once, then wait() for each, then keep(). After ReplicaLost:
    regroup(), sums_of_another() if this replica's position is behind, or add() and wait() again. Without
    connections (one replica, or a dry run) the nodes of this replica are all that is added.
    """

    def __init__(
        self, replica: int, replicas: int, leaves: int, shapes: Sequence[BucketShape], seconds: int = 600
    ) -> None:
        """seconds: time limit of waits."""
        self._replica, self._leaves, self._shapes, self.seconds = replica, leaves, shapes, seconds
        self._replicas = self._first_members = frozenset(range(replicas))
        self._links: Links | None = None
        self._world = 0
        """Number of the present members."""
        self._sums: WorldSums | None = None
        """Of the present members. None: they are not known yet, but for their positions."""
        self._gone: dict[int, Exception] = {}
        """Replicas that are lost."""
        self._retained: list[torch.Tensor] = []
        """Sums of all buckets in the last complete exchange."""
        self._expected: frozenset[int] = frozenset()
        """Replicas whose positions are awaited."""
        self._positions: dict[int, dict[int, Position]] = {}
        """By number of the members, and replica."""
        self._wholes = WholeSums(shapes)
        self.newcomer: Newcomer | None = None
        """None: this replica was there from the begin."""
        self.progress: dict[int, int] = {}
        """Number of exchanges that each new replica which follows this one has done."""
        self._changed = threading.Condition()
        """Guards what is awaited, and is notified of changes."""

    def use(self, links: Links, world: int = 0, members: frozenset[int] | None = None) -> None:
        """Exchange over these connections, whose Receiver this is, as one of these members; None: of all
        replicas. world: their number. Not called for a single replica."""
        self._links, self._world = links, world
        self._first_members = members or self._first_members
        self._sums = self._sums_of(world, self._first_members, links)
        links.start()

    def add(self, step: int, bucket: int, nodes: Mapping[Node, torch.Tensor], result: torch.Tensor) -> None:
        """As WorldSums.add()."""
        if self._sums is not None:
            self._sums.add(step, bucket, nodes, result)
            return
        for values in nodes.values():
            result.copy_(values)

    def wait(self, step: int, bucket: int) -> None:
        """As WorldSums.wait()."""
        if self._sums is not None:
            self._sums.wait(step, bucket, self.seconds)

    def keep(self, results: Sequence[torch.Tensor]) -> None:
        """Keep a copy of the sums of all buckets, for replicas without one when this is lost: the script
        may change gradients."""
        if not self._retained:
            self._retained = [shape.new() for shape in self._shapes]
        for retained, result in zip(self._retained, results, strict=True):
            retained.copy_(result)

    @property
    def has_sums(self) -> bool:
        """Whether there are sums that could be sent to others."""
        return bool(self._retained)

    # ---- a replica is lost

    def regroup(self, world: int, members: Iterable[int], mine: Position) -> dict[int, Position]:
        """Continue with the members that are left. Returns the positions of those that have state: they are
        the members from now on. What was added in this exchange may be changed, and is to be added again.
        Raises ReplicaLost if another one is lost meanwhile, also after the time limit."""
        links, chosen = self._links, frozenset(members)
        assert links is not None
        links.run(lambda: self._enter(world, chosen, mine, links))
        self._wait_for(lambda: self._world == world and self._sums is not None, world, chosen)
        return with_state(self._positions[world])

    def sums_of_another(self, exchange: int) -> list[torch.Tensor]:
        """The sums of all buckets in the exchange after this replica's position, from one that has them.
        Raises ReplicaLost, as regroup()."""
        assert self._sums is not None
        self._wait_for(lambda: self._wholes.are_here(exchange), self._world, self._sums.members)
        return self._wholes.take(exchange)

    def drop(self, replicas: Callable[[], Iterable[int]]) -> None:
        """End the connections to these replicas, if they are lost without a sign, as by a node that is off.
        Called in the thread of the connections."""
        links = self._links
        assert links is not None

        def drop_all() -> None:
            for replica in replicas():
                links.drop(replica, "the coordinator counts it as lost")

        links.run(drop_all)

    # ---- a replica has come

    def connect(self, newcomers: Mapping[int, socket.socket]) -> None:
        """Serve the connections to new replicas. Returns once that is done."""
        links = self._links
        assert links is not None

        def add() -> None:
            for replica in newcomers:
                links.drop(replica, "it was started again")
            with self._changed:
                for replica in newcomers:
                    self._gone.pop(replica, None)
                    self.progress.pop(replica, None)
            links.add(newcomers)

        links.call(add)

    def admit(
        self,
        world: int,
        members: Iterable[int],
        newcomers: Mapping[int, socket.socket],
        state: Sequence[torch.Tensor],
        admitted_at: int | None = None,
    ) -> None:
        """Continue with these members from the next exchange, and send the new ones the state: tensors on
        the CPU, which may change again when this returns. newcomers: as they were given to connect(); one
        that has been replaced since is lost. admitted_at: new ones have followed, and are members after so
        many exchanges."""
        kind, done = (STATE, 0) if admitted_at is None else (ADMITTED, admitted_at)
        links, chosen = self._links, frozenset(members)
        assert links is not None

        def enter() -> None:
            sums = self._begin_world(world, chosen, links)
            for replica, connection in newcomers.items():
                if not links.serves(replica, connection):
                    sums.end_waits({replica: ReplicaLost(f"replica {replica} was started again")})
            links.resume()

        links.call(enter)
        links.wait(self.lead(newcomers, kind, world, state, done))

    def expect_state(self, source: int, follows: bool = False) -> None:
        """This replica is new, as in Newcomer(). Called before use()."""
        self.newcomer = Newcomer(source, self._shapes, follows)

    def receive_into(self, places: Sequence[torch.Tensor]) -> None:
        """Receive the state of a new replica into these tensors, as Newcomer.receive_into()."""
        links, new = self._links, self.newcomer
        assert links is not None
        assert new is not None
        links.run(lambda: new.receive_into([*map(as_bytes, places)]))
        links.run(links.resume)

    def wait_for(
        self, is_there: Callable[[], bool], replicas: Iterable[int], seconds: float | None = None
    ) -> None:
        """Wait for messages of these replicas, and of members. Raises ReplicaLost. seconds: as for
        _wait_for()."""
        is_member = self.newcomer is None or not self.newcomer.is_apart
        members = self._sums.members if self._sums and is_member else ()
        self._wait_for(is_there, self._world, {*replicas, *members}, seconds)

    def look_again(self) -> None:
        """Have wait_for() look again whether what it waits for is there."""
        with self._changed:
            self._changed.notify_all()

    def lead(
        self,
        newcomers: Mapping[int, socket.socket],
        kind: int,
        world: int,
        values: Sequence[torch.Tensor],
        done: int = 0,
    ) -> threading.Event:
        """Send new replicas a message for each of these tensors on the CPU, which must not change before the
        returned event: all is sent, or never will be. One that has been replaced since gets none. world:
        number of the members with them. done: exchanges before."""
        assert self._links is not None
        messages = (
            (Header(kind, world, number, 0, len(values), done), as_bytes(each))
            for number, each in enumerate(values)
        )
        return self._links.send_all(newcomers, messages)

    def report_progress(self, done: int) -> None:
        """Send the others the number of exchanges that this replica, which follows them, has done."""
        links = self._links
        assert links is not None

        def send() -> None:
            for peer in self._first_members - {self._replica}:
                links.send(peer, Header(PROGRESS, self._world, 0, 0, 0, done), memoryview(b""))
            links.resume()

        links.run(send)

    def close(self) -> None:
        if self._links is not None:
            self._links.close()

    # ---- messages, in the thread of the connections

    def buffer(self, peer: int, header: Header, size: int) -> memoryview | None:
        """As Receiver.buffer()."""
        if header.kind == PROGRESS:
            return memoryview(bytearray(size))
        if header.kind == POSITION:
            if size > most_bytes(self._leaves):
                raise ValueError(f"it sent a position of {size} bytes")
        elif header.world >= self._world:
            if header.world > self._world or self._sums is None:
                return None
            if header.kind == WHOLE:
                return self._wholes.buffer(header, size)
            if header.kind not in Newcomer.KINDS:
                return self._sums.buffer(peer, header, size)
            if self.newcomer is None:
                raise ValueError("it sent state, which was not due")
            return self.newcomer.buffer(header, size)
        return memoryview(bytearray(size))

    def received(self, peer: int, header: Header, payload: memoryview) -> None:
        """As Receiver.received()."""
        if header.kind == POSITION:
            self._note_position(header.world, peer, Position.of(header, payload))
        elif header.kind == PROGRESS:
            with self._changed:
                self.progress[peer] = header.step
                self._changed.notify_all()
        elif header.world != self._world or self._sums is None:
            pass  # among earlier members
        elif header.kind == WHOLE:
            with self._changed:
                self._wholes.received(header)
                self._changed.notify_all()
        elif header.kind in Newcomer.KINDS and self.newcomer:
            with self._changed:
                self.newcomer.received(header, payload)
                self._changed.notify_all()
        else:
            self._sums.received(peer, header)

    def lost(self, peer: int, reason: str) -> None:
        """As Receiver.lost()."""
        text = f"Connection closed by peer: replica {peer} is lost in the exchange of gradients: {reason}"
        self._end_waits({peer: ReplicaLost(text)})

    def failed(self, error: Exception) -> None:
        """As Receiver.failed()."""
        self._end_waits(dict.fromkeys(self._replicas, error))

    def _sums_of(self, world: int, members: Iterable[int], links: Links) -> WorldSums:
        return WorldSums(world, self._replica, members, self._leaves, self._shapes, links)

    def _begin_world(self, world: int, members: frozenset[int], links: Links) -> WorldSums:
        """Add with these members from now on."""
        sums = self._sums_of(world, members, links)
        with self._changed:
            self._world, self._sums = world, sums
            self._positions = {later: at for later, at in self._positions.items() if later >= world}
            self._changed.notify_all()
        sums.end_waits(self._gone)
        if (later := max(self._positions, default=0)) > world:
            sums.end_waits(dict.fromkeys(members, _continued(later)))
        return sums

    def _enter(self, world: int, chosen: frozenset[int], mine: Position, links: Links) -> None:
        """Drop what the last members had begun, and send this replica's position to the next ones."""
        links.withdraw()
        with self._changed:
            self._wholes = WholeSums(self._shapes)
            self._world, self._sums, self._expected = world, None, chosen
        for peer in chosen - {self._replica}:
            links.send(peer, *mine.message(world))
        self._note_position(world, self._replica, mine)
        links.resume()

    def _note_position(self, world: int, replica: int, position: Position) -> None:
        """Record a position. The first among later members ends all waits among these: its sender adds
        nothing here any more. The last one shows who has to send sums."""
        links = self._links
        assert links is not None
        with self._changed:
            is_first = world not in self._positions
            positions = self._positions.setdefault(world, {})
            positions[replica] = position
            self._changed.notify_all()
        if world > self._world:
            if self._sums is not None:
                self._sums.end_waits(dict.fromkeys(self._sums.members, _continued(world)))
            if is_first and self.newcomer and self.newcomer.is_apart:
                self.newcomer.has_declined = True
                for peer in self._first_members - {self._replica}:
                    links.send(peer, *Position(-1).message(world))
        elif world == self._world and self._sums is None and positions.keys() >= self._expected:
            members = with_state({member: positions[member] for member in self._expected})
            self._positions[world] = members
            self._begin_world(world, frozenset(members), links)
            self._send_sums(members, links)
            links.resume()

    def _send_sums(self, positions: Mapping[int, Position], links: Links) -> None:
        """Send the last sums to replicas without them, if this is the one that does."""
        if self._replica != sender_of_sums(positions):
            return
        for peer, position in positions.items():
            if position.done < positions[self._replica].done:
                for bucket, retained in enumerate(self._retained):
                    header = Header(WHOLE, self._world, bucket, 0, self._leaves, position.done)
                    links.send(peer, header, as_bytes(retained))

    # ---- waits

    def _end_waits(self, gone: Mapping[int, Exception]) -> None:
        with self._changed:
            self._gone |= gone
            self._changed.notify_all()
        if self._sums is not None:
            self._sums.end_waits(gone)

    def _wait_for(
        self, is_there: Callable[[], bool], world: int, members: Iterable[int], seconds: float | None = None
    ) -> None:
        """Wait for what members send. Raises the reason if one of them is lost first, or continues with
        later members. seconds: return after these; None: raise ReplicaLost after the time limit."""

        def reasons() -> list[Exception]:
            lost = [reason for member, reason in self._gone.items() if member in members]
            return lost + [_continued(later) for later in self._positions if later > world]

        with self._changed:
            self._changed.wait_for(lambda: is_there() or reasons(), seconds or self.seconds)
            if is_there() or (seconds and not reasons()):
                return
            late = ReplicaLost(
                f"Connection closed by peer: replicas did not regroup within {self.seconds} s, the timeout "
                "of init()"
            )
            raise to_raise([*reasons(), late][0])


def _continued(world: int) -> ReplicaLost:
    return ReplicaLost(f"Connection closed by peer: another replica continues without this one ({world})")
