"""Replicas that continue in the same step after another one is lost."""

from __future__ import annotations

import gc
import socket
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.waiting import wait_until
from tests.trainer.replicathreads import (
    BUCKETS,
    FOREVER,
    STEPS,
    Gradients,
    Life,
    Model,
    Replica,
    World,
    micro_batches,
    trained_alone,
)

from ropeteam_trainer.contract.local import LiveWorld
from ropeteam_trainer.contract.peererrors import blames_a_peer
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.data.substitution import UntracedArgument
from ropeteam_trainer.partition.reductiontree import Node
from ropeteam_trainer.strategies.exact.exchange import Exchange
from ropeteam_trainer.strategies.exact.links import Header, Links
from ropeteam_trainer.strategies.exact.members import (
    Arrival,
    CannotTakeOver,
    Members,
    Replication,
    members_number,
)
from ropeteam_trainer.strategies.exact.positions import POSITION, Position
from ropeteam_trainer.strategies.exact.step import ExactStep
from ropeteam_trainer.strategies.exact.sums import NODE, SUM, BucketShape, ReplicaLost, as_bytes


def assert_exact(world: World, found: dict[int, Gradients]) -> None:
    """The gradients of all that live are those of all micro-batches, each of which one of them computed."""
    expected = trained_alone(world.leaves)
    for gradients in found.values():
        for mine, alone in zip(gradients, expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, alone, strict=True))
    for (step, number), by in world.computed.items():
        living = [replica for replica in by if replica in found]
        assert len({*living}) == len(living), f"step {step}, {number}: computed twice by one"
        if step < STEPS - 1:  # in the last one, those that have ended are gone like lost ones
            assert len(living) <= 1, f"step {step}, micro-batch {number}: replicas {living} have computed it"


@cache
def bytes_of(replicas: int, leaves: int) -> list[int]:
    """Bytes that each replica sends if none is lost."""
    world = World(replicas, leaves)
    assert_exact(world, world.train())
    assert not world.dead
    return [replica.sent_bytes for replica in world.all]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    replicas = draw(st.integers(2, 5))
    leaves = draw(st.integers(replicas, 9))
    some = st.sets(st.integers(0, replicas - 1), min_size=1, max_size=replicas - 1)
    return World(replicas, leaves, {victim: draw(lives(replicas, leaves, victim)) for victim in draw(some)})


@st.composite
def lives(draw: st.DrawFn, replicas: int, leaves: int, victim: int) -> Life:
    """Each ends within the first three steps, if no other does before."""
    most: dict[str, int] = {
        "sent_bytes": bytes_of(replicas, leaves)[victim] * (STEPS - 1) // STEPS,
        "sent_sums": (STEPS - 1) * BUCKETS * (replicas - 1) - 1,
        "computed": (STEPS - 1) * (leaves // replicas) - 1,
        "waits": STEPS - 2,
    }
    what = draw(st.sampled_from(["sent_bytes", "sent_sums", "sent_sums", "computed", "waits"]))
    kinds: dict[str, Any] = {what: draw(st.integers(0, most[what]))}
    return Life(**kinds, is_silent=draw(st.booleans()))


def test_whenever_replicas_die_the_others_end_the_same_step_with_the_sums_of_all_micro_batches() -> None:
    handed_over: list[Replica] = []
    deaths: list[int] = []

    @settings(max_examples=150, deadline=None)
    @given(worlds())
    def history(world: World) -> None:
        assert_exact(world, world.train())
        assert world.dead, "a replica has died"
        handed_over.extend(replica for replica in world.all if replica.exchange.handed_over)
        deaths.append(len(world.dead))

    history()
    assert max(deaths) > 1
    assert handed_over, "in some histories one replica had sums that another did not have"


@pytest.mark.parametrize("step", range(STEPS - 1))
@pytest.mark.parametrize("replicas", [3, 4, 5])
def test_sums_that_one_replica_alone_has_are_sent_to_the_others(replicas: int, step: int) -> None:
    """The last one dies after it has sent its last sum of a step to the first one only."""
    peers, last = replicas - 1, replicas - 1
    life = Life(sent_sums=(step * BUCKETS + BUCKETS - 1) * peers + 1)
    world = World(replicas, 8, {last: life}, buffer=None)
    life.before = lambda: world.until(lambda: world.all[0].done > step)
    assert_exact(world, world.train())
    assert world.dead == {last}
    assert [replica.exchange.handed_over for replica in world.all] == [0, *[1] * (peers - 1), 0]
    assert not any(len(by) > 1 for (at, _), by in world.computed.items() if at <= step)


def test_a_replica_that_was_sent_sums_computes_what_others_have_not_of_the_next_step() -> None:
    """After two losses that is another part than in later steps."""
    life = Life(sent_sums=(BUCKETS + BUCKETS - 1) * 2 + 1)
    world = World(4, 8, {3: Life(computed=0), 2: life}, buffer=None)
    life.before = lambda: world.until(lambda: world.all[0].done > 1)
    assert_exact(world, world.train())
    assert world.dead == {2, 3}
    assert world.all[1].exchange.handed_over == 1
    by_1 = [
        {number for (at, number), by in world.computed.items() if at == step and 1 in by} for step in (2, 3)
    ]
    assert by_1 == [{2, 3, 5, 7}, {2, 3, 6, 7}]


def test_a_replica_that_regroups_sends_no_more_of_the_sums_that_are_begun_again() -> None:
    """Replica 0 reads nothing until 2 regroups, because 1 has died."""
    world = World(3, 8, {1: Life(sent_sums=0)}, buffer=None)
    slow, _, other = world.all
    other.connections[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    reads_nothing = threading.Event()

    def read_nothing_until_the_other_regroups() -> None:
        if not reads_nothing.is_set():
            reads_nothing.set()
            wait_until("replica 2 regroups", lambda: other.exchange._world > 0)

    def compute_when_the_slow_one_reads_nothing() -> None:
        assert reads_nothing.wait(60)

    slow.on_wait = lambda: slow.links.run(read_nothing_until_the_other_regroups)
    other.on_compute = compute_when_the_slow_one_reads_nothing
    assert_exact(world, world.train())
    assert world.dead == {1}
    numbers = 0, members_number(world.world_id, 1)
    earlier, later = ([h for h in other.connections[0].begun if h.world == number] for number in numbers)
    last = [header.kind for header in earlier if header.bucket == earlier[-1].bucket]
    assert last == [NODE], "only the rest of a message that had begun: there are two nodes"
    assert later[0].kind == POSITION


def test_a_replica_that_needs_nothing_of_the_lost_one_begins_again_with_the_others() -> None:
    """Replica 1 dies when 0 has all of its sums, and 2 all but one. So 2 regroups, before it has sent its own
    sum to 0."""
    world = World(3, 8, {1: Life(sent_sums=2 * BUCKETS - 1)}, buffer=None)
    held = []

    def is_the_last_sum(header: Header) -> bool:
        is_last = (header.world, header.kind, header.bucket) == (0, SUM, BUCKETS - 1)
        held.extend([header] * is_last)
        return is_last

    world.all[2].connections[0].is_held = is_the_last_sum
    assert_exact(world, world.train())
    assert held
    assert world.dead == {1}
    assert [replica.exchange.handed_over for replica in world.all] == [0, 0, 0]


def test_all_compare_weights_in_the_same_steps_if_a_new_replica_is_admitted_by_one_of_them_only() -> None:
    """2 dies after it has sent the last sum of the vote to 0 alone. So 1 is sent that sum, and never admits
    the new replica, which reads nothing, and counts as lost."""
    vote, peers = 2, 2
    lives = {3: Life(computed=0), 2: Life()}
    world = World(4, 8, lives, buffer=None)
    lives[2].before = lambda: world.until(lambda: world.all[0].done > vote)
    new = LiveWorld(WorldId(1, 0, 2), "", 0, started=(3,), saves_as=WorldId(1, 0, 1))
    ends = []

    def come(replica: Replica) -> None:
        """Before the first micro-batch of the vote."""
        if replica.done == vote and not replica.exact.decisions.admission.arrival:
            mine, theirs = socket.socketpair()
            ends.append(theirs)
            world.world_id = new.world_id
            replica.exact.admitting.replicas_have_come(Arrival(new, {3: mine}))
            replica.life.sent_sums = (BUCKETS - 1) * peers + 1 if replica.number == 2 else FOREVER

    for replica in world.all:
        replica.on_compute = partial(come, replica)
    assert_exact(world, world.train())
    assert world.dead == {2, 3}
    assert len(ends) == 3
    assert [world.all[number].arrival is not None for number in (0, 1)] == [True, False]
    assert world.all[1].exchange.handed_over == 1


class Alone:
    """Membership of a replica that is left alone."""

    def after(self) -> Members:
        return Members(1, frozenset({0}))

    def have_joined(self, number: int) -> None:  # noqa: ARG002
        raise AssertionError("no replica comes")


def run_beside_a_lost_one(membership: Alone | None) -> None:
    """A step of the first of two replicas, which cannot compute the other's micro-batches."""
    mine, theirs = socket.socketpair()
    theirs.close()
    model = Model()
    exchanges: list[Exchange] = []

    def connect(shapes: Sequence[BucketShape]) -> Exchange:
        exchanges.append(Exchange(0, 2, 4, shapes))
        exchanges[0].use(Links({1: mine}, exchanges[0]))
        return exchanges[0]

    def no_more(*_: Any) -> Any:
        raise UntracedArgument("an argument was computed")

    exact = ExactStep([model], 4, 1, connect, "", None, Replication(0, 2, membership))
    own, batch = micro_batches(0, (0, 1), 4)
    try:
        exact.run(model.forward, batch, own, 0, no_more)
    finally:
        exact.close()


def test_a_replica_that_cannot_compute_the_micro_batches_of_a_lost_one_blames_that_one() -> None:
    with pytest.raises(CannotTakeOver, match=r"its micro-batches 2, 3: an argument was computed") as raised:
        run_beside_a_lost_one(Alone())
    assert blames_a_peer(str(raised.value))


def test_without_a_membership_the_first_loss_is_an_error() -> None:
    with pytest.raises(ReplicaLost, match="replica 1 is lost"):
        run_beside_a_lost_one(None)


def test_the_sums_of_a_step_that_a_replica_was_lost_in_are_freed_at_once() -> None:
    """Without the garbage collector, which may not run for hours."""
    mine, theirs = socket.socketpair()
    theirs.close()
    shape = BucketShape(4, torch.float32)
    exchange = Exchange(0, 2, 4, [shape])
    exchange.use(Links({1: mine}, exchange))
    result = shape.new()
    exchange.add(0, 0, {Node(0, 2): torch.zeros(4)}, result)
    freed = weakref.ref(result)
    gc.disable()
    try:
        with suppress(ReplicaLost):
            exchange.wait(0, 0)
        del result
        exchange.regroup(1, frozenset({0}), Position(0, (0, 1)))
        wait_until("the sums to be freed", lambda: freed() is None, 10)
    finally:
        gc.enable()
        exchange.close()


def test_of_what_is_withdrawn_a_message_that_has_begun_is_sent_as_it_was() -> None:
    mine, theirs = socket.socketpair()
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    shape = BucketShape(1 << 18, torch.float32)
    exchange = Exchange(0, 2, 2, [shape])
    links = Links({1: mine}, exchange)
    exchange.use(links)
    begun, next_one = torch.ones(shape.numel), torch.ones(shape.numel)
    sent: list[int] = []

    def send_and_withdraw() -> None:
        for number, values in enumerate((begun, next_one)):
            header = Header(NODE, 0, 0, 0, 1, number)
            links.send(1, header, as_bytes(values), partial(sent.append, number))
        assert sent == []
        links.withdraw()
        assert sent == [0, 1], "their memory may change"
        begun.zero_()

    links.call(send_and_withdraw)
    received = bytearray()
    theirs.settimeout(60)
    while len(received) < 40 + begun.nbytes:
        received += theirs.recv(1 << 16)
    links.call(lambda: None)
    exchange.close()
    assert theirs.recv(1) == b"", "there is no other message"
    theirs.close()
    values = torch.frombuffer(received, dtype=torch.float32, offset=40)
    assert bool((values == 1).all())


def test_a_replica_that_has_just_joined_ends_if_another_needs_sums_from_it() -> None:
    """One that has died since has sent it the state, but no sums. The other one begins them again."""
    world = World(3, 6, {2: Life(computed=0)})
    world.all[1].have_joined = lambda number: None  # type: ignore[method-assign]  # noqa: ARG005
    next_world = LiveWorld(WorldId(1, 0, 2), "", 0, (1,), WorldId(1, 0, 1))
    world.all[1].exact.join(next_world, 1)
    assert_exact(world, world.train())
    assert world.dead == {1, 2}
    assert "has just joined with its state, has no sums that others need" in world.all[1].gave_up
