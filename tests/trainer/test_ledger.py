"""The chief's decisions: which gradients count. Any order of requests, any restart, any mode."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import ParameterServer, ServerMode
from ropeteam_trainer.strategies.parameterserver import ledger as ledgers
from ropeteam_trainer.strategies.parameterserver.ledger import (
    Ledger,
    PushGrant,
    PushRequest,
    Rules,
    StepClosed,
)

SYNCHRONOUS = Rules(3)


def decided(
    ledger: Ledger, *requests: tuple[int, int]
) -> tuple[Ledger, list[tuple[PushRequest, ledgers.Decision]]]:
    answers: list[tuple[PushRequest, ledgers.Decision]] = []
    for worker, n in requests:
        ledger, given_now = ledgers.decide_requests(ledgers.with_request(ledger, PushRequest(worker, n)))
        answers += given_now
    return ledger, answers


def test_a_step_is_decided_when_all_have_requested_it() -> None:
    ledger, answers = decided(ledgers.new_ledger(SYNCHRONOUS), (2, 0), (0, 0))
    assert answers == []
    ledger, answers = decided(ledger, (1, 0))
    assert answers == [(PushRequest(worker, 0), PushGrant(0, 3)) for worker in (2, 0, 1)]
    assert ledger.step == 1


def test_with_backup_workers_late_ones_skip_to_the_open_step() -> None:
    rules = replace(SYNCHRONOUS, backup=1)
    ledger, answers = decided(ledgers.new_ledger(rules), (0, 0), (1, 0), (0, 1), (1, 1), (2, 0))
    assert answers == [
        (PushRequest(0, 0), PushGrant(0, 2)),
        (PushRequest(1, 0), PushGrant(0, 2)),
        (PushRequest(0, 1), PushGrant(1, 2)),
        (PushRequest(1, 1), PushGrant(1, 2)),
        (PushRequest(2, 0), StepClosed(2)),
    ]
    assert ledger.dropped == 2
    assert ledger.clocks[2] == 2


def test_an_answer_is_remembered() -> None:
    ledger, _ = decided(ledgers.new_ledger(SYNCHRONOUS), (0, 0), (1, 0), (2, 0))
    _, answers = decided(ledgers.quiescing(ledger), (1, 0))
    assert answers == [(PushRequest(1, 0), PushGrant(0, 3))]


def test_who_has_left_is_not_waited_for() -> None:
    ledger, _ = decided(ledgers.new_ledger(SYNCHRONOUS), (0, 0), (1, 0))
    ledger, released = ledgers.decide_requests(ledgers.without_worker(ledger, 2))
    assert [answer for _, answer in released] == [PushGrant(0, 2), PushGrant(0, 2)]
    assert not ledger.all_finished
    assert ledgers.without_worker(ledgers.without_worker(ledger, 0), 1).all_finished
    assert ledgers.with_worker(ledger, 2).active == (0, 1, 2)


def test_a_bound_makes_fast_workers_wait() -> None:
    ledger = ledgers.new_ledger(Rules(2, synchronous=False, bound=1))
    for n in (0, 1):
        ledger, answers = decided(ledger, (0, n))
        assert answers == [(PushRequest(0, n), PushGrant(n, 1))]
        ledger = ledgers.with_clock(ledger, 0, n + 1)
    ledger, answers = decided(ledger, (0, 2))
    assert answers == []
    ledger, answers = decided(ledger, (1, 0))
    ledger, released = ledgers.decide_requests(ledgers.with_clock(ledger, 1, 1))
    assert released == ((PushRequest(0, 2), PushGrant(2, 1)),)
    assert ledger.max_ahead == 1


def test_servers_quiesce_by_themselves_and_wait_for_pushes_in_flight() -> None:
    ledger = ledgers.new_ledger(Rules(2, save_every=2))
    ledger, _ = decided(ledger, (0, 0), (1, 0))
    assert not ledger.quiescing
    ledger = ledgers.with_clock(ledgers.with_clock(ledger, 0, 1), 1, 1)
    ledger, _ = decided(ledger, (0, 1), (1, 1))
    assert ledger.quiescing
    assert not ledger.is_quiescent
    ledger = ledgers.with_clock(ledgers.with_clock(ledger, 0, 2), 1, 2)
    assert ledger.is_quiescent
    assert ledger.progress == 2
    ledger, answers = decided(ledger, (0, 2), (1, 2))
    assert answers == []
    _, released = ledgers.decide_requests(ledgers.resumed(ledger))
    assert len(released) == 2


def test_a_checkpoint_of_other_workers_makes_all_go_on_from_its_step() -> None:
    assert ledgers.new_ledger(SYNCHRONOUS, (7, 8, 9), 8).clocks == (7, 8, 9)
    assert ledgers.new_ledger(SYNCHRONOUS, (7, 8), 8).clocks == (8, 8, 8)


def test_rules_of_a_manifest() -> None:
    bounded = ParameterServer(mode=ServerMode.BOUNDED_STALENESS, staleness=3)
    assert ledgers.rules_of(ParameterServer(backup_workers=1), 4, 10) == Rules(4, True, 1, None, 10)
    assert ledgers.rules_of(bounded, 4, None) == Rules(4, False, 0, 3)
    assert ledgers.rules_of(replace(bounded, staleness=0), 4, None) == Rules(4)
    assert ledgers.rules_of(ParameterServer(mode=ServerMode.ASYNCHRONOUS), 4, None) == Rules(4, False)


@st.composite
def all_rules(draw: st.DrawFn) -> Rules:
    workers = draw(st.integers(1, 4))
    if draw(st.booleans()):
        return Rules(workers, True, draw(st.integers(0, workers - 1)), None, draw(st.sampled_from([None, 2])))
    return Rules(workers, False, 0, draw(st.sampled_from([None, 1, 2])), draw(st.sampled_from([None, 2])))


@given(all_rules(), st.data())
def test_whatever_happens_each_gradient_counts_once_and_bounds_hold(
    rules: Rules, data: st.DataObject
) -> None:
    """Workers that request, push, die and come again, in any order; the chief may die at any moment, too."""
    ledger = ledgers.new_ledger(rules)
    clocks = [0] * rules.workers
    granted: dict[tuple[int, int], PushGrant] = {}
    answered: dict[int, ledgers.Decision] = {}
    for _ in range(data.draw(st.integers(0, 60))):
        worker = data.draw(st.integers(0, rules.workers - 1))
        if data.draw(st.integers(0, 9)) == 0:  # the worker dies, or the chief: its pending requests are lost
            answered.pop(worker, None)
            clocks[worker] = ledger.clocks[worker]
            ledger = codec.decode(Ledger, codec.encode(replace(ledger, waiting=())))
        elif worker in answered:
            answer = answered.pop(worker)
            clocks[worker] = answer.n + 1 if isinstance(answer, PushGrant) else answer.to
            ledger = ledgers.with_clock(ledger, worker, clocks[worker])
        else:
            ledger = ledgers.with_request(ledger, PushRequest(worker, clocks[worker]))
        if ledger.is_quiescent:
            ledger = ledgers.resumed(ledger)
        ledger, given_now = ledgers.decide_requests(ledger)
        for request, answer in given_now:
            answered[request.worker] = answer
            if isinstance(answer, PushGrant):
                assert answer.n == request.n
                assert granted.setdefault((request.worker, request.n), answer) == answer
    if rules.bound is not None:
        assert ledger.max_ahead <= rules.bound
    if rules.synchronous:
        for step in range(ledger.step):
            taken = [worker for worker, n in granted if n == step]
            assert len(taken) == rules.workers - rules.backup
    assert all(done <= clock or rules.synchronous for done, clock in zip(ledger.clocks, clocks, strict=True))
