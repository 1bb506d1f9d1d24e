"""The exchange of gradients: real connections between replicas that live in one process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.waiting import wait_until

from ropeteam_trainer.contract.peererrors import blames_a_peer
from ropeteam_trainer.partition.reductiontree import Node, children, equal_parts, maximal_nodes
from ropeteam_trainer.strategies.exact.exchange import NODE, SUM, BucketShape, Exchange, ReplicaLost
from ropeteam_trainer.strategies.exact.links import Header, Links


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
    numel, header = 12_000, 32
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
        (Header(NODE, 1, 2, 4, 0), 16, "a message about bucket 1 of 1"),
        (Header(NODE, 0, 2, 4, 0), 12, "12 bytes for a slice of 16"),
        (Header(SUM, 0, 0, 4, 0), 16, "a message of kind 2 that was not due"),
        (Header(3, 0, 0, 4, 0), 16, "a message of kind 3 that was not due"),
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
    numbers = (header.kind, header.bucket, header.begin, header.end)
    long = (header.step, size)
    return b"".join(n.to_bytes(4, "little") for n in numbers) + b"".join(
        n.to_bytes(8, "little") for n in long
    )


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
