"""A new replica that follows the others: real connections between replicas in one process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late

import pytest
import torch
from lab.waiting import wait_until
from tests.trainer.test_newcomers import AFTER_NEXT_LOSS, ALL, LIVING, WITH_NEW, Job, receive_state

from ropeteam_trainer.contract.local import LiveWorld
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.strategies.exact.admitting import Admitting
from ropeteam_trainer.strategies.exact.callbacks import Callbacks
from ropeteam_trainer.strategies.exact.decisions import Admission
from ropeteam_trainer.strategies.exact.following import (
    ADMITTED,
    FOLLOWED,
    MOST_BEHIND,
    MOST_BYTES,
    STATE,
    behind,
    most_behind,
)
from ropeteam_trainer.strategies.exact.members import Arrival, Replication
from ropeteam_trainer.strategies.exact.positions import Position
from ropeteam_trainer.strategies.exact.sums import ReplicaLost

DONE = 5
"""Exchanges that are done when the new replica begins to follow."""
NEITHER = torch.empty(0, dtype=torch.uint8)


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job(follows=True)
    yield made
    made.close()


def admitting(job: Job, number: int) -> Admitting:
    """Of one replica; one of the others has its arrival."""
    replication = Replication(number, 3, follow=True)
    made = Admitting(job.exchanges[number], Admission(), [], replication, Callbacks())
    if number in LIVING:
        world = LiveWorld(WorldId(0, 0, 0), "", 1, (1,), WorldId(0, 0, 0))
        made._admission.arrival = arrival = Arrival(world, {1: job.connections[number]})
        made._admission._following = arrival
    return made


def send_state(job: Job) -> None:
    new = {1: job.connections[0]}
    job.exchanges[0].lead(new, STATE, WITH_NEW, [torch.ones(3)])
    assert len(receive_state(job.new)) == torch.ones(3).nbytes


def admit(job: Job, number: int) -> None:
    notes = [NEITHER] if number == 0 else []
    job.exchanges[number].admit(WITH_NEW, ALL, {1: job.connections[number]}, notes, admitted_at=DONE)


def test_it_is_a_member_once_it_is_admitted_and_has_all_sums_before(job: Job) -> None:
    send_state(job)
    new, leading = admitting(job, 1), admitting(job, 0)
    following = leading._admission.following
    assert following is not None
    sums = [torch.full((10,), 7.0)]
    job.exchanges[0].lead({1: job.connections[0]}, FOLLOWED, WITH_NEW, sums, DONE - 1)
    admit(job, 0)
    admit(job, 2)
    assert not new.is_member_after(DONE - 1)
    assert torch.equal(new.followed_sums(DONE - 1)[0], sums[0])
    assert new.is_member_after(DONE)


def test_others_that_lose_a_replica_continue_without_one_that_follows(job: Job) -> None:
    send_state(job)
    mine = Position(1, (0, 1)), Position(1, (2,))
    found = job.regroup(AFTER_NEXT_LOSS, ALL, mine)
    assert found == [dict(zip(LIVING, mine, strict=True))] * 2
    admit(job, 0)
    new = admitting(job, 1)
    assert not new.is_member_after(DONE), "it was admitted too late"
    with pytest.raises(ReplicaLost, match="another replica continues without this one"):
        new.followed_sums(DONE)


def test_one_that_is_admitted_regroups_with_the_others_before_it_knows_it(job: Job) -> None:
    send_state(job)
    admit(job, 0)
    admit(job, 2)
    newcomer = job.new.newcomer
    assert newcomer is not None
    assert wait_until("it is admitted", lambda: newcomer.admitted_at == DONE)
    positions = [Position(DONE, (0,)), Position(DONE, (1,)), Position(DONE, (2,))]
    with ThreadPoolExecutor(len(LIVING)) as pool:
        others = [
            pool.submit(job.exchanges[number].regroup, AFTER_NEXT_LOSS, ALL, positions[number])
            for number in LIVING
        ]
        positions_of = job.new._positions
        assert wait_until("theirs come", lambda: positions_of.get(AFTER_NEXT_LOSS, {}).keys() == {*LIVING})
        found = job.new.regroup(AFTER_NEXT_LOSS, ALL, positions[1])
        assert [found, *(other.result() for other in others)] == [dict(enumerate(positions))] * 3


def test_the_others_wait_for_one_that_is_too_far_behind(job: Job) -> None:
    send_state(job)
    leading = admitting(job, 0)
    leading._begun_at = DONE
    most = next(n for n in range(MOST_BEHIND) if n + 1 > most_behind(n + 1, 40))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(leading.lead, [torch.ones(10)], DONE + most).result(60)
        late = pool.submit(leading.lead, [torch.ones(10)], DONE + most + 1)
        with pytest.raises(Late):
            late.result(0.2)
        assert not leading.have_caught_up(DONE + most + 1)
        job.new.report_progress(DONE + 1)
        late.result(60)
        job.new.report_progress(DONE + most + 1)
        assert wait_until("it catches up", lambda: leading.have_caught_up(DONE + most + 1))


def test_at_the_end_the_others_wait_until_it_has_all_sums(job: Job) -> None:
    """The connections are closed then, and what is still to be sent is dropped."""
    leading = admitting(job, 0)
    leading._begun_at = DONE
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(leading.end, DONE + 1)
        with pytest.raises(Late):
            end.result(0.2)
        job.new.report_progress(DONE + 1)
        end.result(60)


def test_at_the_end_they_wait_for_one_that_has_no_state_yet(job: Job) -> None:
    leading = admitting(job, 0)
    leading._begun_at = DONE
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(leading.end, DONE)
        with pytest.raises(Late):
            end.result(0.2)
        job.new.report_progress(DONE)
        end.result(60)


def test_they_wait_no_more_once_another_one_has_come_in_its_place(job: Job) -> None:
    """The other one has reported nothing, and is sent the state at the end of the step only."""
    leading = admitting(job, 0)
    leading._begun_at = DONE
    following = leading._admission.following
    assert following is not None
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(leading.lead, [torch.ones(10)], DONE + MOST_BEHIND)
        with pytest.raises(Late):
            waits.result(0.2)
        mine, theirs = socket.socketpair()
        leading.replicas_have_come(Arrival(following.world, {1: mine}))
        waits.result(10)
    leading.lead([torch.ones(10)], DONE + MOST_BEHIND + 1)
    assert not leading.have_caught_up(DONE)
    theirs.close()


def test_one_that_hangs_is_dropped(job: Job) -> None:
    send_state(job)
    leading = admitting(job, 0)
    leading._begun_at = DONE
    job.exchanges[0].seconds = 0.1  # type: ignore[assignment]
    leading.lead([torch.ones(10)], DONE + MOST_BEHIND)
    with pytest.raises(ReplicaLost, match="replica 0 is lost"):
        job.new.wait_for(lambda: False, [0])


def test_they_do_not_wait_for_one_that_is_lost(job: Job) -> None:
    leading = admitting(job, 0)
    leading._begun_at = DONE
    job.new.close()
    leading.lead([torch.ones(10)], DONE + MOST_BEHIND)


def test_the_progress_of_the_one_before_does_not_count(job: Job) -> None:
    """The next one has no state yet."""
    leading = admitting(job, 0)
    job.new.report_progress(DONE)
    assert wait_until("it catches up", lambda: leading.have_caught_up(DONE))
    job.exchanges[0].connect({1: job.connections[0].dup()})
    assert not leading.have_caught_up(DONE)


def test_one_that_is_slower_than_the_others_may_be_less_and_less_behind() -> None:
    assert [most_behind(n, 40) for n in (0, 3, 4, 63, 64, 999)] == [16, 16, 15, 1, 0, 0]


def test_the_sums_of_many_exchanges_take_no_more_than_their_limit_or_those_of_one() -> None:
    sizes = MOST_BYTES // 16, MOST_BYTES // 15, MOST_BYTES // 3, MOST_BYTES, MOST_BYTES + 1
    assert [most_behind(0, size) for size in sizes] == [16, 15, 3, 1, 1]
    assert [most_behind(n, MOST_BYTES // 3) for n in (4, 8, 12, 16)] == [2, 1, 0, 0]


@pytest.mark.parametrize("lost", [False, True])
def test_one_that_has_come_itself_notices_the_loss_of_another_while_it_waits(job: Job, lost: bool) -> None:
    send_state(job)
    admit(job, 0)
    newcomer = job.new.newcomer
    assert newcomer is not None
    assert wait_until("it is admitted", lambda: not newcomer.is_apart)
    if lost:
        job.exchanges[2].close()
        with pytest.raises(ReplicaLost, match="replica 2 is lost"):
            job.new.wait_for(lambda: False, [0])
    else:
        job.new.wait_for(lambda: False, [0], 0.01)


def test_behind_is_the_slowest_but_not_further_than_where_it_began() -> None:
    assert behind({0: 7, 1: 9}, {0, 1}, 10, 5) == 3
    assert behind({0: 7, 1: 9}, {1}, 10, 5) == 1
    assert behind({}, {1}, 10, 8) == 2


@pytest.mark.parametrize("kind", [STATE, ADMITTED])
def test_it_takes_no_state_and_no_admission_that_is_too_late(job: Job, kind: int) -> None:
    newcomer = job.new.newcomer
    assert newcomer is not None
    job.regroup(AFTER_NEXT_LOSS, ALL, (Position(1, (0, 1)), Position(1, (2,))))
    assert wait_until("it has declined", lambda: newcomer.has_declined)
    job.exchanges[0].lead({1: job.connections[0]}, kind, WITH_NEW, [NEITHER], DONE)
    job.exchanges[0].lead({1: job.connections[0]}, FOLLOWED, WITH_NEW, [torch.ones(10)], DONE)
    assert wait_until("what was sent has come", lambda: newcomer.sums.are_here(DONE))
    assert newcomer.awaits_state
    assert newcomer.admitted_at is None
