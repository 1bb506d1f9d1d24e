"""One order of additions, wherever the leaves are."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeteam_trainer.partition.reductiontree import (
    Node,
    children,
    equal_parts,
    leaf,
    maximal_nodes,
    most_buffers,
    parent_and_sibling,
    redealt,
)

COUNTS = st.one_of(st.sampled_from([1, 2, 6, 8, 10, 16, 24]), st.integers(1, 200))
Sums = dict[Node, str]


def add(sums: Sums, node: Node, text: str, leaves: int) -> None:
    """As a replica adds: a new sum joins its sibling while that is there."""
    while node != Node(0, leaves):
        parent, sibling = parent_and_sibling(node, leaves)
        if sibling not in sums:
            break
        other = sums.pop(sibling)
        text = f"({text}+{other})" if node < sibling else f"({other}+{text})"
        node = parent
    sums[node] = text


def whole(leaves: int) -> str:
    """The tree as a formula, by its definition."""

    def formula(node: Node) -> str:
        if node.end - node.begin == 1:
            return str(node.begin)
        return "({}+{})".format(*map(formula, children(node)))

    return formula(Node(0, leaves))


def total(owned: Iterable[tuple[int, ...]], leaves: int) -> str:
    """The sum as replicas with these leaves compute it: each its own part, then one of them all parts."""
    everything: Sums = {}
    for numbers in owned:
        mine: Sums = {}
        for number in numbers:
            add(mine, leaf(number), str(number), leaves)
        assert tuple(sorted(mine)) == maximal_nodes(numbers, leaves)
        for node, text in mine.items():
            add(everything, node, text, leaves)
    assert list(everything) == [Node(0, leaves)]
    return everything[Node(0, leaves)]


def test_a_tree_of_six_leaves_is_that_of_the_docstring() -> None:
    assert whole(6) == "(((0+1)+(2+3))+(4+5))"
    assert maximal_nodes([0, 1, 2], 6) == (Node(0, 2), Node(2, 3))
    assert maximal_nodes([3, 4, 5], 6) == (Node(3, 4), Node(4, 6))
    assert redealt({0: (0, 1), 2: (4, 5)}, 6) == {0: (0, 1, 2), 2: (3, 4, 5)}


@given(st.data())
def test_any_split_of_any_number_of_leaves_adds_in_the_same_order(data: st.DataObject) -> None:
    leaves = data.draw(COUNTS)
    replicas = data.draw(st.integers(1, 9))
    where = data.draw(st.lists(st.integers(0, replicas - 1), min_size=leaves, max_size=leaves))
    owned = tuple(tuple(n for n in range(leaves) if where[n] == replica) for replica in range(replicas))
    assert total(owned, leaves) == whole(leaves)


@given(st.data())
def test_any_history_of_losses_adds_in_the_same_order(data: st.DataObject) -> None:
    leaves, replicas = data.draw(COUNTS), data.draw(st.integers(1, 9))
    owned = dict(enumerate(map(tuple, equal_parts(leaves, replicas))))
    while len(owned) > 1 and data.draw(st.booleans()):
        lost = data.draw(st.sets(st.sampled_from(sorted(owned)), min_size=1, max_size=len(owned) - 1))
        left = {replica: numbers for replica, numbers in owned.items() if replica not in lost}
        owned = redealt(left, leaves)
        assert owned.keys() == left.keys()
        assert sorted(n for numbers in owned.values() for n in numbers) == list(range(leaves))
        assert all({*left[replica]} <= {*owned[replica]} for replica in left), "what is computed is kept"
        counts = [len(numbers) for numbers in owned.values()]
        most = max(map(len, left.values()))
        assert max(counts) - min(counts) <= 1 or max(counts) == most
        assert total(owned.values(), leaves) == whole(leaves)


@given(st.data())
def test_all_replicas_take_over_the_same_leaves_as_neighbours(data: st.DataObject) -> None:
    """Any of the leaves may be computed already, by any replica, as inside a step."""
    leaves, replicas = data.draw(COUNTS), data.draw(st.integers(1, 9))
    by = data.draw(st.lists(st.integers(0, replicas), min_size=leaves, max_size=leaves))
    have = {replica: [n for n in range(leaves) if by[n] == replica] for replica in range(replicas)}
    order = data.draw(st.permutations(range(replicas)))
    found = redealt({replica: have[replica][::-1] for replica in order}, leaves)
    assert found == redealt(have, leaves), "wherever it is computed, and from whatever order"
    orphans = [n for n in range(leaves) if by[n] == replicas]
    taken = [n for replica in range(replicas) for n in found[replica] if by[n] == replicas]
    assert taken == orphans, "in order, each replica a run of them"
    assert all([*numbers] == sorted(numbers) for numbers in found.values())


def test_the_replica_with_the_fewest_takes_over_first() -> None:
    assert redealt({0: (0, 1, 2), 1: (), 3: (5,)}, 6) == {0: (0, 1, 2), 1: (3, 4), 3: (5,)}
    assert redealt({0: (0,), 1: (1,)}, 3) == {0: (0, 2), 1: (1,)}, "of two with as many, the lower"


def test_nobody_takes_over_from_all() -> None:
    with pytest.raises(ValueError, match="all replicas are lost"):
        redealt({}, 2)


@given(COUNTS)
def test_a_contiguous_part_is_few_nodes_and_an_aligned_one_is_one(leaves: int) -> None:
    depth = (leaves - 1).bit_length()
    for begin in range(0, leaves, 3):
        for end in range(begin + 1, leaves + 1, 5):
            nodes = maximal_nodes(range(begin, end), leaves)
            assert len(nodes) <= max(1, 2 * depth)
            assert all(left.end == right.begin for left, right in pairwise(nodes))
    for size in (1 << power for power in range(depth)):
        for begin in range(0, leaves - size + 1, size):
            assert maximal_nodes(range(begin, begin + size), leaves) == (Node(begin, begin + size),)


@given(COUNTS)
def test_leaves_in_order_need_a_buffer_for_each_level_only(leaves: int) -> None:
    depth = (leaves - 1).bit_length()
    assert most_buffers(range(leaves), leaves) <= max(1, depth)
    for replicas in (1, 2, 4, 8):
        if leaves % replicas == 0 and leaves.bit_count() == 1:
            parts = equal_parts(leaves, replicas)
            size = (leaves // replicas - 1).bit_length()
            assert [most_buffers(part, leaves) for part in parts] == [max(1, size)] * replicas


def test_a_part_that_no_node_begins_needs_more_buffers() -> None:
    assert most_buffers(range(21, 42), 64) == 6
