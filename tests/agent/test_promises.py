"""The machine's promises, tried with orders of events that nobody would list."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import booleans, integers, sampled_from, sets
from tests.agent.life import Life, a_plan

from ropeteam_trainer.agent.machine.effects import Exit, KillRanks, StartRanks
from ropeteam_trainer.agent.machine.events import LinkLost, LinkUp, OrdersReceived, RankExited, Terminated
from ropeteam_trainer.contract.messages import Orders
from ropeteam_trainer.contract.world import ProcessExit, WorldId

SOME_RANKS = sets(integers(0, 3), max_size=2).map(lambda ranks: tuple(sorted(ranks)))


class AgentDay(RuleBasedStateMachine):
    """Any orders, any deaths, any silence. `living` is what the outside does with the effects."""

    def __init__(self) -> None:
        super().__init__()
        self.life = Life()
        self.living: set[tuple[WorldId, int]] = set()
        self.released = False
        self.answered_at = self.life.now

    def carry_out(self) -> None:
        for effect in self.life.did:
            match effect:
                case StartRanks(plan=plan, ranks=ranks):
                    assert self.life.state.orders.plan == plan, (
                        "only the plan of the latest orders is started"
                    )
                    started = {(plan.started_in(0), rank) for rank in ranks}
                    assert not started & self.living, "a rank would live twice"
                    assert {of for of, _ in self.living} <= {plan.started_in(0)}, (
                        "ranks that two worlds started would live together"
                    )
                    if plan.started_in(0) != plan.world_id:
                        assert {*ranks} <= {*plan.started}, "ranks that live on are not started again"
                    self.living |= started
                case KillRanks(world_id, ranks):
                    assert all((world_id, rank) in self.living for rank in ranks)
                case Exit(code):
                    assert not self.living, "an exit leaves nobody behind"
                    assert (code == 0) <= self.released, "exit 0 only on release"

    @rule(n=integers(2, 4), started_in=integers(1, 3))
    def orders_that_keep_ranks(self, n, started_in):
        """Ranks live on if they are those of the plan, else they end."""
        before = self.life.state
        if (before.term, before.boot) > (1, 0) or started_in >= n:
            return
        self.ordered_to_keep(WorldId(1, 0, n), WorldId(1, 0, started_in))

    @precondition(lambda self: self.living and self.life.state.term)
    @rule(started=SOME_RANKS, lost=SOME_RANKS)
    def orders_that_start_lost_ranks_again(self, started, lost):
        """Ranks that are lost, or that the plan starts, end alone."""
        state, world = self.life.state, self.life.state.world
        was_killing = world.killing
        n = world.plan.world_id.n + 1
        self.ordered_to_keep(WorldId(state.term, state.boot, n), world.started_in, started=started, lost=lost)
        world, may_live = self.life.state.world, self.life.state.desired_plan is not None
        if may_live and not was_killing and self.life.state.exit_code is None:
            ended = {
                rank for effect in self.life.did if isinstance(effect, KillRanks) for rank in effect.ranks
            }
            assert ended <= {*started, *lost}
            assert not world.killing

    def ordered_to_keep(self, world_id, started_in, started=(), lost=()):
        plan = a_plan(world_id.n, world_id=world_id, started=started)
        preserved = replace(plan.members[0], started_in=started_in)
        plan = replace(plan, members=(preserved, *plan.members[1:]))
        self.life.receives(OrdersReceived(Orders(world_id.term, world_id.boot, 1, plan, lost=lost)))
        self.carry_out()
        self.answered_at = self.life.now
        world = self.life.state.world
        if self.living and not world.killing:
            assert {world_id for world_id, _ in self.living} == {started_in}

    @rule(term=integers(1, 2), boot=integers(0, 1), n=integers(0, 3), release=booleans(), leave=booleans())
    def orders(self, term, boot, n, release, leave):
        before = self.life.state
        is_stale = (term, boot) < (before.term, before.boot)
        release = release and n == 0
        self.released |= release and not is_stale
        plan = a_plan(n, world_id=WorldId(term, boot, n)) if n else None
        self.life.receives(OrdersReceived(Orders(term, boot, 1, plan, release=release, leave=leave)))
        self.carry_out()
        if is_stale:
            assert self.life.state.orders is before.orders, "a lower term is refused"
        else:
            self.answered_at = self.life.now

    @rule(event=sampled_from([LinkUp(), LinkLost(), LinkLost(), Terminated()]))
    def happens(self, event):
        self.life.receives(event)
        self.carry_out()

    @rule(seconds=sampled_from([0.1, 3.0, 50.0, 130.0]))
    def time_passes(self, seconds):
        self.life.unanswered(seconds)
        self.carry_out()
        if self.life.now - self.answered_at >= 120:
            assert self.is_killing(), "no answer for fenceSeconds: ranks are killed"

    @rule(ago=sampled_from([0.0, 1.0, 60.0, 119.0, 500.0]))
    def an_answer_comes(self, ago):
        """To a report that was sent so long ago, however long it was under way."""
        self.life.answered(self.life.now - ago)
        self.carry_out()
        self.answered_at = max(self.answered_at, self.life.now - ago)

    @precondition(lambda self: self.living)
    @rule(signal=sampled_from([None, 9, 11]), data=integers(0, 9))
    def a_rank_dies(self, signal, data):
        world_id, rank = sorted(self.living)[data % len(self.living)]
        self.living.discard((world_id, rank))
        self.life.receives(RankExited(world_id, rank, ProcessExit(None if signal else 0, signal)))
        self.carry_out()

    def is_killing(self) -> bool:
        world = self.life.state.world
        return not self.living or world.killing

    @invariant()
    def the_report_is_true(self):
        assert self.life.report.stopped == (not self.living)


AgentDay.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
test_a_bad_day_of_an_agent = AgentDay.TestCase
