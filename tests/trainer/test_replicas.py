"""The exchange of gradients: real connections between replicas that live in one process."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.waiting import wait_until

from ropeteam_trainer.contract.peererrors import blames_a_peer
from ropeteam_trainer.partition.reductiontree import Node, children, equal_parts, maximal_nodes
from ropeteam_trainer.strategies.exact import joining
from ropeteam_trainer.strategies.exact.exchange import WHOLE, Exchange
from ropeteam_trainer.strategies.exact.following import STATE
from ropeteam_trainer.strategies.exact.links import Header, Links
from ropeteam_trainer.strategies.exact.positions import POSITION, Position
from ropeteam_trainer.strategies.exact.sums import NODE, SUM, BucketShape, ReplicaLost


class Replicas:
    """All replicas of a job, with one bucket of each type, connected by socket pairs."""

    def __init__(self, count: int, leaves: int, numel: int = 7) -> None:
        self.shapes = [BucketShape(numel, torch.float32), BucketShape(numel, torch.bfloat16)]
        self.exchanges = [Exchange(replica, count, leaves, self.shapes) for replica in range(count)]
        self.sockets: list[dict[int, socket.socket]] = [{} for _ in range(count)]
        for one, other in combinations(range(count), 2):
            self.sockets[one][other], self.sockets[other][one] = socket.socketpair()
        if count > 1:
            for exchange, connections in zip(self.exchanges, self.sockets, strict=True):
                exchange.use(Links(connections, exchange))

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *_: object) -> None:
        for exchange in self.exchanges:
            exchange.close()


def node_sum(values: list[torch.Tensor], node: Node) -> torch.Tensor:
    """By the definition of the tree."""
    if node.end - node.begin == 1:
        return values[node.begin]
    left, right = children(node)
    return node_sum(values, left) + node_sum(values, right)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_sum_is_that_of_the_tree_to_the_last_bit(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    more = data.draw(st.lists(st.integers(0, count - 1), max_size=20))
    where = data.draw(st.permutations([*range(count), *more]))  # each has a leaf
    leaves = len(where)
    numel = data.draw(st.integers(1, 9))
    generator = torch.Generator().manual_seed(leaves)
    with Replicas(count, leaves, numel) as all_replicas:
        for step in range(2):
            gradients = [
                [torch.randn(numel, generator=generator).to(shape.dtype) for _ in range(leaves)]
                for shape in all_replicas.shapes
            ]
            results = []
            for replica, exchange in enumerate(all_replicas.exchanges):
                nodes = maximal_nodes([n for n in range(leaves) if where[n] == replica], leaves)
                for bucket, values in enumerate(gradients):
                    result = torch.empty_like(values[0])
                    results.append((exchange, bucket, result))
                    exchange.add(step, bucket, {node: node_sum(values, node) for node in nodes}, result)
            for exchange, bucket, result in results:
                exchange.wait(step, bucket)
                assert torch.equal(result, node_sum(gradients[bucket], Node(0, leaves)))


class Counted(socket.socket):
    """Counts what it sends."""

    sent = 0

    def send(self, data: memoryview, *flags: int) -> int:  # type: ignore[override]
        count = super().send(data, *flags)
        self.sent += count
        return count


@pytest.mark.parametrize(("replicas", "leaves"), [(2, 8), (4, 8), (3, 8), (3, 6)])
def test_bytes_on_the_wire_are_those_of_a_ring_and_one_part_for_each_further_node(
    replicas: int, leaves: int
) -> None:
    numel, header = 12_000, 40
    shape = BucketShape(numel, torch.float32)
    exchanges = [Exchange(replica, replicas, leaves, [shape]) for replica in range(replicas)]
    connections: list[dict[int, Counted]] = [{} for _ in range(replicas)]
    for one, other in combinations(range(replicas), 2):
        ends = socket.socketpair()
        connections[one][other], connections[other][one] = (Counted(fileno=end.detach()) for end in ends)
    with ExitStack() as stack:
        for exchange, mine in zip(exchanges, connections, strict=True):
            exchange.use(Links(mine, exchange))
            stack.callback(exchange.close)
        counts = []
        for replica, exchange in enumerate(exchanges):
            nodes = maximal_nodes(equal_parts(leaves, replicas)[replica], leaves)
            counts.append(len(nodes))
            exchange.add(0, 0, {node: torch.ones(numel) for node in nodes}, torch.empty(numel))
        for exchange in exchanges:
            exchange.wait(0, 0)
        for nodes_sent, mine in zip(counts, connections, strict=True):
            sent = sum(connection.sent for connection in mine.values())
            part = 4 * numel * (replicas - 1) / replicas
            assert sent == part * (nodes_sent + 1) + header * (replicas - 1) * (nodes_sent + 1)


@pytest.fixture
def two() -> Iterator[tuple[Exchange, socket.socket]]:
    """A replica of two, and the other end of its connection."""
    mine, theirs = socket.socketpair()
    exchange = Exchange(0, 2, 4, [BucketShape(8, torch.float32)])
    exchange.use(Links({1: mine}, exchange))
    yield exchange, theirs
    exchange.close()
    theirs.close()


def test_a_replica_that_is_lost_ends_all_waits_and_is_blamed(two: tuple[Exchange, socket.socket]) -> None:
    exchange, theirs = two
    exchange.add(0, 0, {Node(0, 2): torch.ones(8)}, torch.empty(8))
    theirs.close()
    with pytest.raises(ReplicaLost, match="replica 1 is lost in the exchange of gradients") as raised:
        exchange.wait(0, 0)
    assert blames_a_peer(str(raised.value))
    with pytest.raises(ReplicaLost):
        exchange.wait(1, 0)


@pytest.mark.parametrize(
    ("header", "size", "reason"),
    [
        (Header(NODE, 0, 1, 2, 4, 0), 16, "a message about bucket 1 of 1"),
        (Header(NODE, 0, 0, 2, 4, 0), 12, "12 bytes for a slice of 16"),
        (Header(SUM, 0, 0, 0, 4, 0), 16, "a message of kind 2 that was not due"),
        (Header(9, 0, 0, 0, 4, 0), 16, "a message of kind 9 that was not due"),
        (Header(POSITION, 7, 0, 0, 0, 0), 28, "a position of 28 bytes"),
        (Header(WHOLE, 0, 1, 0, 4, 0), 32, "the sum of bucket 1, which was not due"),
        (Header(WHOLE, 0, 0, 0, 4, 0), 28, "28 bytes for a sum of 32"),
        (Header(STATE, 0, 0, 0, 1, 0), 8, "it sent state, which was not due"),
    ],
)
def test_a_message_that_cannot_be_ends_the_connection_with_the_reason(
    two: tuple[Exchange, socket.socket], header: Header, size: int, reason: str
) -> None:
    exchange, theirs = two
    theirs.sendall(struct_of(header, size))
    assert wait_until("the connection ends", lambda: theirs.recv(1) == b"")
    with pytest.raises(ReplicaLost, match=reason):
        exchange.wait(0, 0)


def struct_of(header: Header, size: int) -> bytes:
    return struct.pack("<IQIIIQQ", *header, size)


def test_a_slow_replica_is_sent_what_was_added_and_not_what_it_became() -> None:
    """The result may be changed as soon as wait() returns."""
    numel = 4 << 20
    shape = BucketShape(numel, torch.float32)
    exchanges = [Exchange(replica, 2, 2, [shape]) for replica in range(2)]
    ends = socket.socketpair()
    results = [torch.empty(numel) for _ in exchanges]
    for replica, exchange in enumerate(exchanges):
        exchange.use(Links({1 - replica: ends[replica]}, exchange))
    for replica, exchange in enumerate(exchanges):
        exchange.add(0, 0, {Node(replica, replica + 1): torch.ones(numel)}, results[replica])
    exchanges[0].wait(0, 0)
    results[0].zero_()
    exchanges[1].wait(0, 0)
    assert bool((results[1] == 2).all())
    for exchange in exchanges:
        exchange.close()


def test_nodes_are_those_of_the_call() -> None:
    """The next step begins as soon as the last bucket is complete, and forgets them."""
    shape = BucketShape(3, torch.float32)
    exchanges = [Exchange(replica, 2, 2, [shape]) for replica in range(2)]
    with ExitStack() as stack:
        all_links = [
            Links({1 - replica: end}, exchanges[replica]) for replica, end in enumerate(socket.socketpair())
        ]
        for exchange, links in zip(exchanges, all_links, strict=True):
            exchange.use(links)
            stack.callback(exchange.close)
            links.run(lambda: time.sleep(0.1))
        results = [torch.empty(3) for _ in exchanges]
        for replica, exchange in enumerate(exchanges):
            nodes = {Node(replica, replica + 1): torch.ones(3)}
            exchange.add(0, 0, nodes, results[replica])
            nodes.clear()
        for exchange, result in zip(exchanges, results, strict=True):
            exchange.wait(0, 0)
            assert bool((result == 2).all())


class Peers:
    """A replica of three, and the other ends of its connections, in which a test writes."""

    def __init__(self) -> None:
        self.exchange = Exchange(0, 3, 3, [BucketShape(3, torch.float32)])
        ends = {number: socket.socketpair() for number in (1, 2)}
        self.theirs = {number: end[1] for number, end in ends.items()}
        self.exchange.use(Links({number: end[0] for number, end in ends.items()}, self.exchange))

    def sends(self, number: int) -> None:
        """Send its node, then its slice of the sum: one number each."""
        for header in (Header(NODE, 0, 0, number, number + 1, 0), Header(SUM, 0, 0, 0, 3, 0)):
            self.theirs[number].sendall(struct_of(header, 4) + bytes(4))

    def close(self) -> None:
        self.exchange.close()
        for end in self.theirs.values():
            end.close()


@pytest.fixture
def peers() -> Iterator[Peers]:
    made = Peers()
    yield made
    made.close()


def test_a_replica_that_ends_after_its_last_step_is_not_lost(peers: Peers) -> None:
    peers.exchange.add(0, 0, {Node(0, 1): torch.ones(3)}, torch.empty(3))
    peers.sends(1)
    peers.theirs[1].close()
    wait_until("the end is noticed", lambda: 1 in peers.exchange._gone)
    peers.sends(2)
    peers.exchange.wait(0, 0)
    with pytest.raises(ReplicaLost, match="replica 1 is lost"):
        peers.exchange.wait(1, 0)


def test_two_replicas_that_end_at_once_end_the_wait_once(peers: Peers) -> None:
    peers.exchange.add(0, 0, {Node(0, 1): torch.ones(3)}, torch.empty(3))
    for end in peers.theirs.values():
        end.close()
    with pytest.raises(ReplicaLost):
        peers.exchange.wait(0, 0)
    wait_until("both ends are noticed", lambda: len(peers.exchange._gone) == 2)


def test_a_connection_that_ends_while_another_one_is_read_ends_that_one_alone(peers: Peers) -> None:
    """Both have sent a message that was too early. What stands behind the first, the position that was
    awaited, has the second read to its end."""
    links, early = peers.exchange._links, Header(NODE, 3, 0, 1, 2, 0)
    assert links is not None
    position = struct_of(Header(POSITION, 4, 0, 0, 0, 0), 8) + bytes(8)
    peers.theirs[1].sendall(struct_of(early, 4) + bytes(4) + position)
    peers.theirs[2].sendall(struct_of(early, 4) + bytes(4))
    peers.theirs[2].close()
    wait_until("both wait", lambda: all(peer.waits for peer in links._peers.values()))
    assert peers.exchange.regroup(4, (0, 1), Position(0)) == {0: Position(0), 1: Position(0)}
    wait_until("the end is noticed", lambda: 2 in peers.exchange._gone)
    assert [*peers.exchange._gone] == [2]


def test_a_replica_that_sends_nothing_in_time_is_named() -> None:
    mine, theirs = socket.socketpair()
    exchange = Exchange(0, 2, 2, [BucketShape(2, torch.float32)], seconds=0)
    exchange.use(Links({1: mine}, exchange))
    exchange.add(0, 0, {Node(0, 1): torch.ones(2)}, torch.empty(2))
    with pytest.raises(ReplicaLost, match=r"no gradients came from replicas 1 within 0 s") as raised:
        exchange.wait(0, 0)
    assert blames_a_peer(str(raised.value))
    exchange.close()
    theirs.close()


def test_a_child_that_was_forked_does_not_keep_the_connections(peers: Peers) -> None:
    """A worker of a DataLoader may outlive its rank."""
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    try:
        peers.exchange.close()
        assert wait_until("the connection ends", lambda: peers.theirs[1].recv(1) == b"")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(60)
        yield made


def test_only_awaited_replicas_with_the_secret_are_accepted(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(joining, "_HANDSHAKE_SECONDS", 0.2)
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    open_ones: list[socket.socket] = [socket.create_connection(listener.getsockname())]  # says nothing

    def connect(secret: str, number: int) -> None:
        with suppress(ReplicaLost):
            open_ones.append(joining.connected(address, secret, number, 0.0))

    def connect_all() -> None:
        for secret, number in (("other", 2), ("secret", 7), ("secret", 2)):
            connect(secret, number)

    thread = threading.Thread(target=connect_all)
    thread.start()
    number, connection = joining.accepted(listener, "secret", {1, 2})
    thread.join()
    assert number == 2
    for each in (connection, *open_ones):
        each.close()
    refused = capfd.readouterr().err
    for reason in ("timed out", "its peer does not have this job's secret", "replica 7 is not awaited"):
        assert f"a connection to this replica was refused: {reason}" in refused


def test_replicas_that_do_not_come_are_named(listener: socket.socket) -> None:
    listener.settimeout(0.01)
    with pytest.raises(ReplicaLost, match="replicas 1, 2 did not connect in time") as raised:
        joining.accepted(listener, "secret", {2, 1})
    assert blames_a_peer(str(raised.value))


def test_a_replica_that_cannot_be_reached_is_blamed(listener: socket.socket) -> None:
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    with pytest.raises(ReplicaLost, match=f"the replica at {address} cannot be reached") as raised:
        joining.connected(address, "secret", 1, time.monotonic() + 60)
    assert blames_a_peer(str(raised.value))


def test_a_replica_that_was_dropped_connects_again(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica on a busy machine may be slow for the two seconds that it has."""
    monkeypatch.setattr(joining, "_RETRY_SECONDS", 0.0)
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(joining.connected, address, "secret", 1, time.monotonic() + 60)
        listener.accept()[0].close()
        number, accepted = joining.accepted(listener, "secret", {1})
        connecting.result().close()
    accepted.close()
    assert number == 1
