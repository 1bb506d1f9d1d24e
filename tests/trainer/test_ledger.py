"""The chief's decisions: which gradients count. Any order of requests, any restart, any mode."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import ParameterServer, ServerMode
from ropeteam_trainer.strategies.parameterserver import ledger as judging
from ropeteam_trainer.strategies.parameterserver.ledger import Ask, Ledger, Push, Rules, Skip

SYNCHRONOUS = Rules(3)


def decided(ledger: Ledger, *requests: tuple[int, int]) -> tuple[Ledger, list[tuple[Ask, judging.Answer]]]:
    answers: list[tuple[Ask, judging.Answer]] = []
    for worker, n in requests:
        ledger, given_now = judging.answers(judging.ask(ledger, Ask(worker, n)))
        answers += given_now
    return ledger, answers


def test_a_step_is_decided_when_all_have_requested_it() -> None:
    ledger, answers = decided(judging.opened(SYNCHRONOUS), (2, 0), (0, 0))
    assert answers == []
    ledger, answers = decided(ledger, (1, 0))
    assert answers == [(Ask(worker, 0), Push(0, 3)) for worker in (2, 0, 1)]
    assert ledger.step == 1


def test_with_backup_workers_late_ones_skip_to_the_open_step() -> None:
    rules = replace(SYNCHRONOUS, backup=1)
    ledger, answers = decided(judging.opened(rules), (0, 0), (1, 0), (0, 1), (1, 1), (2, 0))
    assert answers == [
        (Ask(0, 0), Push(0, 2)),
        (Ask(1, 0), Push(0, 2)),
        (Ask(0, 1), Push(1, 2)),
        (Ask(1, 1), Push(1, 2)),
        (Ask(2, 0), Skip(2)),
    ]
    assert ledger.dropped == 2
    assert ledger.clocks[2] == 2


def test_an_answer_is_remembered() -> None:
    ledger, _ = decided(judging.opened(SYNCHRONOUS), (0, 0), (1, 0), (2, 0))
    _, answers = decided(judging.cut(ledger), (1, 0))
    assert answers == [(Ask(1, 0), Push(0, 3))]


def test_who_has_left_is_not_waited_for() -> None:
    ledger, _ = decided(judging.opened(SYNCHRONOUS), (0, 0), (1, 0))
    ledger, released = judging.answers(judging.leave(ledger, 2))
    assert [answer for _, answer in released] == [Push(0, 2), Push(0, 2)]
    assert not ledger.over
    assert judging.leave(judging.leave(ledger, 0), 1).over
    assert judging.join(ledger, 2).active == (0, 1, 2)


def test_a_bound_makes_fast_workers_wait() -> None:
    ledger = judging.opened(Rules(2, synchronous=False, bound=1))
    for n in (0, 1):
        ledger, answers = decided(ledger, (0, n))
        assert answers == [(Ask(0, n), Push(n, 1))]
        ledger = judging.done(ledger, 0, n + 1)
    ledger, answers = decided(ledger, (0, 2))
    assert answers == []
    ledger, answers = decided(ledger, (1, 0))
    ledger, released = judging.answers(judging.done(ledger, 1, 1))
    assert released == ((Ask(0, 2), Push(2, 1)),)
    assert ledger.ahead == 1


def test_servers_quiesce_by_themselves_and_wait_for_pushes_in_flight() -> None:
    ledger = judging.opened(Rules(2, save_every=2))
    ledger, _ = decided(ledger, (0, 0), (1, 0))
    assert not ledger.cut
    ledger = judging.done(judging.done(ledger, 0, 1), 1, 1)
    ledger, _ = decided(ledger, (0, 1), (1, 1))
    assert ledger.cut
    assert not ledger.quiet
    ledger = judging.done(judging.done(ledger, 0, 2), 1, 2)
    assert ledger.quiet
    assert ledger.progress == 2
    ledger, answers = decided(ledger, (0, 2), (1, 2))
    assert answers == []
    _, released = judging.answers(judging.resume(ledger))
    assert len(released) == 2


def test_a_checkpoint_of_other_workers_makes_all_go_on_from_its_step() -> None:
    assert judging.opened(SYNCHRONOUS, (7, 8, 9), 8).clocks == (7, 8, 9)
    assert judging.opened(SYNCHRONOUS, (7, 8), 8).clocks == (8, 8, 8)


def test_rules_of_a_manifest() -> None:
    bounded = ParameterServer(mode=ServerMode.BOUNDED_STALENESS, staleness=3)
    assert judging.rules(ParameterServer(backup_workers=1), 4, 10) == Rules(4, True, 1, None, 10)
    assert judging.rules(bounded, 4, None) == Rules(4, False, 0, 3)
    assert judging.rules(replace(bounded, staleness=0), 4, None) == Rules(4)
    assert judging.rules(ParameterServer(mode=ServerMode.ASYNCHRONOUS), 4, None) == Rules(4, False)


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
    ledger = judging.opened(rules)
    clocks = [0] * rules.workers
    granted: dict[tuple[int, int], Push] = {}
    answered: dict[int, judging.Answer] = {}
    for _ in range(data.draw(st.integers(0, 60))):
        worker = data.draw(st.integers(0, rules.workers - 1))
        if data.draw(st.integers(0, 9)) == 0:  # the worker dies, or the chief: its pending requests are lost
            answered.pop(worker, None)
            clocks[worker] = ledger.clocks[worker]
            ledger = codec.decode(Ledger, codec.encode(replace(ledger, waiting=())))
        elif worker in answered:
            answer = answered.pop(worker)
            clocks[worker] = answer.n + 1 if isinstance(answer, Push) else answer.to
            ledger = judging.done(ledger, worker, clocks[worker])
        else:
            ledger = judging.ask(ledger, Ask(worker, clocks[worker]))
        if ledger.quiet:
            ledger = judging.resume(ledger)
        ledger, given_now = judging.answers(ledger)
        for request, answer in given_now:
            answered[request.worker] = answer
            if isinstance(answer, Push):
                assert answer.n == request.n
                assert granted.setdefault((request.worker, request.n), answer) == answer
    if rules.bound is not None:
        assert ledger.ahead <= rules.bound
    if rules.synchronous:
        for step in range(ledger.step):
            taken = [worker for worker, n in granted if n == step]
            assert len(taken) == rules.workers - rules.backup
    assert all(done <= clock or rules.synchronous for done, clock in zip(ledger.clocks, clocks, strict=True))
