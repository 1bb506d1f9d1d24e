"""The fence: when a rank that nobody can reach is dead, for all legal lostSeconds and fenceSeconds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.life import Life

from ropeteam_trainer.agent.machine.effects import KillRanks
from ropeteam_trainer.agent.machine.events import LinkLost, LinkUp, OrdersReceived, Tick
from ropeteam_trainer.contract.config import Timeouts
from ropeteam_trainer.contract.fence import (
    CLOCK_SHARE,
    KILL_SECONDS,
    TICK_SECONDS,
    answer_seconds,
    longest_life,
    renew_seconds,
)
from ropeteam_trainer.contract.messages import Orders

LEGAL = st.integers(2, 600).flatmap(
    lambda lost: st.tuples(st.just(lost), st.integers(max(10, lost + 1), 3600))
)
"""lostSeconds and fenceSeconds, as the API takes them."""
HAPPENS = st.lists(
    st.sampled_from(("LinkUp", "LinkLost", "late answer", "stale orders", "tick")), max_size=20
)


@settings(max_examples=200, deadline=None)
@given(LEGAL, HAPPENS, st.floats(0, 1000))
def test_whatever_the_link_does_no_rank_outlives_the_last_answer_by_more_than_the_bound(legal, events, late):
    lost, fence = legal
    life = Life(timeouts=Timeouts(lost=lost, fence=fence)).running().ordered(term=2)
    answered, killed = life.now, []
    for event in events:  # all of them without effect
        life.now += fence / 21
        match event:
            case "LinkUp" | "LinkLost":
                life.receives(LinkUp() if event == "LinkUp" else LinkLost())
            case "late answer":
                life.answered(answered - late)
            case "stale orders":
                life.receives(OrdersReceived(Orders(1, 7, 1)))
            case _:
                life.unanswered(0)
    assert not [did for did in life.all if isinstance(did, KillRanks)], "not before its time"
    life.now = answered + fence
    life.unanswered(TICK_SECONDS)
    killed = [did for did in life.all if isinstance(did, KillRanks)]
    assert [kill.ranks for kill in killed] == [(0, 1)]
    slow = (life.now - answered) / (1 - CLOCK_SHARE / 2)  # the agent's clock goes slow, the other one's fast
    assert (slow + KILL_SECONDS / 2) * (1 + CLOCK_SHARE / 2.1) < longest_life(fence)


@given(LEGAL)
def test_on_a_quiet_link_that_is_well_the_newest_answer_is_never_as_old_as_lost_seconds(legal):
    """A report with every lease, at a turn of the loop; one that finds nothing new is answered now and
    then."""
    lost, fence = legal
    now = spoke = answered = 0.0
    for _ in range(30):
        now += renew_seconds(lost) + TICK_SECONDS
        assert now - answered < lost + 2 * TICK_SECONDS
        assert now - answered < fence
        if now - spoke >= answer_seconds(lost):
            spoke = answered = now


def test_fence_seconds_begin_with_the_report_that_was_answered_not_with_its_answer():
    life = Life(timeouts=Timeouts(fence=20)).running()
    requested = life.now
    life.unanswered(15).answered(requested)
    assert life.unanswered(4).state.fenced is False
    assert life.unanswered(1).did_a(KillRanks).ranks == (0, 1)


def test_a_machine_that_was_suspended_for_longer_than_fence_seconds_fences_at_its_first_look():
    """The monotonic clock of one machine was paused, and others count on."""
    life = Life(timeouts=Timeouts(fence=20)).running()
    assert life.receives(Tick(asleep=19.9)).did_no(KillRanks)
    life.now += TICK_SECONDS
    assert life.receives(Tick(asleep=19.9)).did_a(KillRanks).ranks == (0, 1)


def test_an_answer_from_before_a_suspension_is_as_old_as_that():
    life = Life(timeouts=Timeouts(fence=20)).running()
    assert life.state.orders
    answer = OrdersReceived(life.state.orders, age=1000.0)  # the first thing that it reads when it wakes up
    assert life.receives(answer, Tick(asleep=1000.0)).did_a(KillRanks).ranks == (0, 1)


def test_an_unchanged_answer_changes_no_orders():
    life = Life().running().ordered(lineage=())
    before = life.state.orders
    life.answered(life.now)
    assert life.state.orders == before
    assert life.did == ()


def test_an_answer_of_a_coordinator_that_does_not_count_reports_counts_from_when_it_came():
    life = Life(timeouts=Timeouts(fence=20)).running().unanswered(15)
    life.receives(OrdersReceived(Orders(1, 0, 2, life.state.orders.plan))).unanswered(19)
    assert not life.state.fenced


def test_a_fenced_agent_requests_its_orders_again_and_a_mere_answer_starts_nothing():
    life = Life(timeouts=Timeouts(fence=20)).running().unanswered(20)
    assert life.report.applied_orders == 0
    life.answered(life.now)
    assert life.state.fenced
    assert not life.ordered().state.fenced
