"""A new replica that takes the place of a lost one: real connections between replicas in one process."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from typing import Any

import pytest
import torch

from ropeteam_trainer.partition.reductiontree import Node
from ropeteam_trainer.strategies.exact.admitting import Admitting
from ropeteam_trainer.strategies.exact.callbacks import Callbacks
from ropeteam_trainer.strategies.exact.decisions import Admission
from ropeteam_trainer.strategies.exact.exchange import Exchange
from ropeteam_trainer.strategies.exact.links import Links
from ropeteam_trainer.strategies.exact.members import Replication
from ropeteam_trainer.strategies.exact.positions import Position
from ropeteam_trainer.strategies.exact.sums import BucketShape, ReplicaLost

SHAPE = BucketShape(10, torch.float32)
ALL, LIVING = (0, 1, 2), (0, 2)
AFTER_LOSS, WITH_NEW, AFTER_NEXT_LOSS = 1, 10, 20
"""Numbers of the members."""


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Results, or ReplicaLost."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
    return [future.exception() or future.result() for future in futures]


class Job:
    """Replicas 0 and 2 of three, which have continued without 1, and a new one in its place that is connected
    to them and waits for its state."""

    def __init__(self, follows: bool = False) -> None:
        """follows: whether the new one follows the others first."""
        self.exchanges = {number: Exchange(number, 3, 3, [SHAPE], 60) for number in ALL}
        ends = dict(zip(LIVING, socket.socketpair(), strict=True))
        for number in LIVING:
            lost, theirs = socket.socketpair()
            theirs.close()
            links = Links({2 - number: ends[number], 1: lost}, self.exchanges[number])
            self.exchanges[number].use(links)
        self.connections: dict[int, socket.socket] = {}
        """From the living replicas to the newest new one."""
        position = Position(0, (0,)), Position(0, (2,))
        self.regroup(AFTER_LOSS, LIVING, position)
        to_new: dict[int, socket.socket] = {}
        for number in LIVING:
            mine, to_new[number] = socket.socketpair()
            self.connect(number, mine)
        self.new = self.exchanges[1]
        self.new.expect_state(0, follows)
        self.new.use(Links(to_new, self.new), WITH_NEW)

    def connect(self, number: int, connection: socket.socket) -> None:
        self.connections[number] = connection
        self.exchanges[number].connect({1: connection})

    def admit(self, number: int, world: int = WITH_NEW, state: Sequence[torch.Tensor] = ()) -> None:
        """A living replica admits the new one, to which it is connected now."""
        self.exchanges[number].admit(world, ALL, {1: self.connections[number]}, state)

    def regroup(self, world: int, members: Sequence[int], positions: Sequence[Position]) -> list[Any]:
        calls: list[Callable[[], Any]] = [
            lambda n=number, p=position: self.exchanges[n].regroup(world, members, p)  # type: ignore[misc]
            for number, position in zip(LIVING, positions, strict=True)
        ]
        return at_once(*calls)

    def add(self, step: int, nodes: dict[int, Node]) -> list[torch.Tensor]:
        """The sums of a step, as each replica has them: leaf n counts 10 to the power of n."""
        results = {number: SHAPE.new() for number in nodes}
        for number, node in nodes.items():
            values = torch.full((SHAPE.numel,), float(sum(10**leaf for leaf in range(*node))))
            self.exchanges[number].add(step, 0, {node: values}, results[number])
        for number in nodes:
            self.exchanges[number].wait(step, 0)
        return [*results.values()]

    def close(self) -> None:
        for exchange in self.exchanges.values():
            exchange.close()


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job()
    yield made
    made.close()


def receive_state(
    new: Exchange, alive: Callable[[], None] = lambda: None, others: Sequence[torch.Tensor] = ()
) -> memoryview:
    """The first part of the state; the others are received into these tensors."""
    indices = []

    def places(index: memoryview) -> Sequence[torch.Tensor]:
        indices.append(index)
        return others

    Admitting(new, Admission(), [], Replication(), Callbacks()).receive_state(places, alive)
    (index,) = indices
    return index


def nodes(*bounds: tuple[int, int, int]) -> dict[int, Node]:
    return {number: Node(begin, end) for number, begin, end in bounds}


def assert_whole(sums: list[torch.Tensor]) -> None:
    assert all(bool((values == 111).all()) for values in sums)


def test_a_new_replica_is_sent_the_state_and_adds_from_then_on(job: Job) -> None:
    assert_whole(job.add(0, nodes((0, 0, 2), (2, 2, 3))))
    parts = [torch.arange(5, dtype=torch.uint8), torch.empty(0), torch.randn(1 << 20)]
    calls, others = [], [torch.ones_like(part) for part in parts[1:]]
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(receive_state, job.new, lambda: calls.append("alive"), others)
        job.admit(0, state=parts)
        job.admit(2)
        index = received.result()
    assert calls, "it shows that it lives"
    assert bytes(index) == parts[0].numpy().tobytes()
    assert all(map(torch.equal, others, parts[1:]))
    assert_whole(job.add(1, nodes((0, 0, 1), (1, 1, 2), (2, 2, 3))))


def test_what_a_new_replica_adds_before_others_admit_it_is_read_when_they_do(job: Job) -> None:
    job.add(0, nodes((0, 0, 2), (2, 2, 3)))
    job.admit(0, state=[torch.ones(3)])
    receive_state(job.new)
    result = SHAPE.new()
    job.new.add(1, 0, {Node(1, 2): torch.full((SHAPE.numel,), 10.0)}, result)
    early = SHAPE.new()
    job.exchanges[0].add(1, 0, {Node(0, 1): torch.ones(SHAPE.numel)}, early)
    job.admit(2)
    assert_whole(job.add(1, nodes((2, 2, 3))))
    job.new.wait(1, 0)
    job.exchanges[0].wait(1, 0)
    assert_whole([result, early])


def test_others_that_lose_a_replica_continue_without_a_new_one_that_has_no_state(job: Job) -> None:
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(receive_state, job.new)
        mine = Position(1, (0, 1)), Position(1, (2,))
        found = job.regroup(AFTER_NEXT_LOSS, ALL, mine)
        assert found == [dict(zip(LIVING, mine, strict=True))] * 2
        with pytest.raises(ReplicaLost, match="another replica continues without this one"):
            received.result()
    assert_whole(job.add(1, nodes((0, 0, 2), (2, 2, 3))))


def test_a_new_replica_ends_if_the_one_that_sends_its_state_does(job: Job) -> None:
    job.exchanges[0].close()
    with pytest.raises(ReplicaLost, match="replica 0 is lost"):
        receive_state(job.new)


def test_a_new_replica_that_is_lost_before_it_is_admitted_is_replaced_by_the_next(job: Job) -> None:
    """Where its node is off, its connections do not end by themselves."""
    before = job.new
    job.exchanges[1] = job.new = Exchange(1, 3, 3, [SHAPE], 60)
    to_new: dict[int, socket.socket] = {}
    for number in LIVING:
        mine, to_new[number] = socket.socketpair()
        job.connect(number, mine)
    with pytest.raises(ReplicaLost, match="replica 0 is lost"):
        receive_state(before)
    before.close()
    job.new.expect_state(0)
    job.new.use(Links(to_new, job.new), WITH_NEW + 1)
    assert_whole(job.add(0, nodes((0, 0, 2), (2, 2, 3))))
    for number in LIVING:
        job.admit(number, WITH_NEW + 1, [torch.ones(2)] if number == 0 else ())
    assert len(receive_state(job.new)) == torch.ones(2).nbytes
    assert_whole(job.add(1, nodes((0, 0, 1), (1, 1, 2), (2, 2, 3))))


def test_one_that_was_replaced_after_all_had_chosen_to_admit_it_is_lost(job: Job) -> None:
    chosen = job.connections[0]
    mine, theirs = socket.socketpair()
    with theirs:
        job.connect(0, mine)
        job.exchanges[0].admit(WITH_NEW, ALL, {1: chosen}, [])
        job.exchanges[0].add(0, 0, {Node(0, 2): torch.ones(SHAPE.numel)}, SHAPE.new())
        with pytest.raises(ReplicaLost, match="replica 1 was started again"):
            job.exchanges[0].wait(0, 0)


def test_the_state_comes_too_late_once_others_continue_without_a_new_replica(job: Job) -> None:
    """For them a replica without state is no member."""
    exchange = job.exchanges[2]
    with ThreadPoolExecutor(1) as pool:
        alone = pool.submit(exchange.regroup, AFTER_NEXT_LOSS, ALL, Position(0, (2,)))
        with pytest.raises(ReplicaLost, match="another replica continues without this one"):
            receive_state(job.new)
        job.admit(0, state=[torch.ones(3)])
        with pytest.raises(ReplicaLost, match="another replica continues without this one"):
            receive_state(job.new)
        job.exchanges[0].regroup(AFTER_NEXT_LOSS, ALL, Position(0, (0, 1)))
        assert sorted(alone.result()) == [*LIVING]


@pytest.mark.parametrize("others", [[torch.ones(3)], [torch.ones(3)] * 3, [torch.ones(3), torch.ones(5)]])
def test_state_that_does_not_fit_the_new_replica_ends_it(job: Job, others: list[torch.Tensor]) -> None:
    parts = [torch.ones(1), torch.ones(3), torch.ones(4)]
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(receive_state, job.new, others=others)
        job.admit(0, state=parts)
        with pytest.raises(ReplicaLost, match="it sent other state than this rank has"):
            received.result()


def test_the_state_may_change_once_a_new_replica_is_admitted(job: Job) -> None:
    parts = [torch.ones(1), torch.ones(1 << 20), torch.ones(1 << 20)]
    others = [torch.zeros_like(part) for part in parts[1:]]
    with ThreadPoolExecutor(2) as pool:
        admitted = pool.submit(job.admit, 0, state=parts)
        with pytest.raises(Late):
            admitted.result(0.2)
        received = pool.submit(receive_state, job.new, others=others)
        admitted.result()
        for part in parts:
            part.zero_()
        received.result()
    assert all(bool((part == 1).all()) for part in others)


def test_no_state_is_awaited_by_those_that_send_it_once_the_new_replica_is_lost(job: Job) -> None:
    with ThreadPoolExecutor(1) as pool:
        admitted = pool.submit(job.admit, 0, state=[torch.ones(1), torch.ones(1 << 20)])
        with pytest.raises(Late):
            admitted.result(0.2)
        job.exchanges[0].drop(lambda: [1])
        admitted.result()
