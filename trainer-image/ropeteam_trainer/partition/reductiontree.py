"""The fixed tree along which the gradients of a step are added, and the replicas' leaves. Pure.

The last bits of a sum of floating-point numbers depend on the order of its additions. Here the order is that
of one binary tree over the micro-batches 0..V-1 of a step, its leaves, whatever the number of replicas: a
replica adds what it can of the tree, and sends the sums that it ends with, its maximal nodes. A node is split
after the largest power of two below its size, as in RFC 6962. So parts of a power of two of leaves are nodes
themselves, and cost no more bytes than in any other reduction. redealt() is for recoveries within a step.

Example: V = 6, three replicas with leaves 0-1, 2-3 and 4-5; one of them is lost, and 2 goes to the first, 3
to the last. Both times the sum is ((0 + 1) + (2 + 3)) + (4 + 5).

            [0, 6)                  replica   leaves   sends
           /      \\                  0         0 1      [0, 2)
       [0, 4)    [4, 6)              1         2 3      [2, 4)
       /    \\     / \\                2         4 5      [4, 6)
   [0, 2) [2, 4) 4   5               ---------------------------------
    / \\    / \\                       0         0 1 2    [0, 2) [2, 3)
   0   1  2   3                      2         3 4 5    [3, 4) [4, 6)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple


class Node(NamedTuple):
    """Sum of the leaves begin..end-1. A leaf is a node of one."""

    begin: int
    end: int


def leaf(number: int) -> Node:
    return Node(number, number + 1)


def children(node: Node) -> tuple[Node, Node]:
    """The two nodes whose sum a node is. node: not a leaf."""
    middle = node.begin + (1 << (node.end - node.begin - 1).bit_length() - 1)
    return Node(node.begin, middle), Node(middle, node.end)


@lru_cache(maxsize=1 << 16)
def parent_and_sibling(node: Node, leaves: int) -> tuple[Node, Node]:
    """Parent of a node in the tree of so many leaves, and the parent's other child. node: not the root."""
    parent = Node(0, leaves)
    while True:
        left, right = children(parent)
        if node == left:
            return parent, right
        if node == right:
            return parent, left
        parent = left if node.end <= left.end else right


def maximal_nodes(owned: Iterable[int], leaves: int) -> tuple[Node, ...]:
    """The largest nodes that consist of `owned` leaves alone, from left to right: all that a replica with
    these has to send."""
    return tuple(_maximal_below(Node(0, leaves), frozenset(owned)))


def _maximal_below(node: Node, owned: frozenset[int]) -> Iterator[Node]:
    have = sum(number in owned for number in range(*node))
    if have == node.end - node.begin:
        yield node
    elif have:
        for child in children(node):
            yield from _maximal_below(child, owned)


def equal_parts(leaves: int, replicas: int) -> tuple[range, ...]:
    """Leaves of each replica, in order; the numbers differ by at most one."""
    return tuple(range(leaves * n // replicas, leaves * (n + 1) // replicas) for n in range(replicas))


def most_buffers(owned: Iterable[int], leaves: int) -> int:
    """Sums that a replica holds at most while it adds these leaves in ascending order, the gradients of the
    present leaf not counted."""
    sums: set[Node] = set()
    most = 0
    for number in sorted(owned):
        node = leaf(number)
        while node != Node(0, leaves):
            parent, sibling = parent_and_sibling(node, leaves)
            if sibling not in sums:
                break
            sums.discard(sibling)
            node = parent
        sums.add(node)
        most = max(most, len(sums))
    return most


def redealt(owned: Mapping[int, Collection[int]], leaves: int) -> dict[int, tuple[int, ...]]:
    """Leaves of each replica in `owned` once those that none of them has are taken over: neighbours by
    number, each the next one of the replica that has the fewest. The same on all replicas. Raises ValueError
    if there is no replica."""
    if not owned:
        raise ValueError("all replicas are lost")
    result = {replica: sorted(numbers) for replica, numbers in owned.items()}
    orphans = sorted({*range(leaves)}.difference(*owned.values()))
    counts = {replica: len(numbers) for replica, numbers in owned.items()}
    for _ in orphans:
        counts[min(counts, key=lambda replica: (counts[replica], replica))] += 1
    for replica in sorted(result):
        missing = counts[replica] - len(result[replica])
        result[replica] = sorted(result[replica] + orphans[:missing])
        orphans = orphans[missing:]
    return {replica: tuple(numbers) for replica, numbers in result.items()}
