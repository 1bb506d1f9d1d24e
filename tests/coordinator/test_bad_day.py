"""The promises of membership on bad days: honest agents; faults, replacements and reboots in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from lab.coordinator.reports import CLEAN, KILLED, SIGKILL, agent, raised
from tests.coordinator.timeline import Timeline

from ropeteam_trainer.contract.messages import AgentReport, RankPhase, RankReport
from ropeteam_trainer.contract.world import Plan, ProcessExit, WorldId
from ropeteam_trainer.coordinator.membership import step as membership

SLOTS = st.integers(0, 1)
ABORTED = ProcessExit(None, 6, reached_end=True)
APPLIED = ProcessExit(0, None, killed=True)
ENDS = st.sampled_from([SIGKILL, KILLED, raised(), ABORTED, CLEAN, APPLIED])
BUDGET = 1


class Watched(Timeline):
    """Looks at each plan in the instant in which it is published."""

    watch: Callable[[], None]

    def event(self, event: membership.Event) -> None:
        super().event(event)
        self.watch()


class BadDay(RuleBasedStateMachine):
    """Two slots. Agents apply orders when scheduled; a replaced pod is a ghost whose ranks live on unseen."""

    @initialize(feature_level=st.integers(0, 2), limited=st.booleans())
    def begin(self, feature_level: int, limited: bool) -> None:
        self.film = Watched(feature_level=feature_level)
        self.film.watch = self.world_ids_grow_and_a_plan_has_every_slot
        self.film.desired = replace(self.film.desired, allowance=BUDGET if limited else -1)
        self.limited, self.boot = limited, 0
        self.plans: dict[WorldId, Plan] = {}
        self.ends: dict[WorldId, dict[int, ProcessExit]] = {}
        self.ghosts: dict[int, AgentReport] = {}
        """By slot: a former pod that may still run ranks, without proof of its end."""
        self.charged: set[str] = set()
        self.film.agents = {slot: agent(slot) for slot in (0, 1)}
        self.film.desires()

    # ---- honest agents

    @rule()
    def a_quiet_while(self) -> None:
        """Agents that left are replaced, all apply orders, and backoffs pass."""
        for slot, report in list(self.film.agents.items()):
            if report.terminating:
                self.a_pod_is_replaced(slot, proof=True)
            self.film.reports(slot, applied=False)
        self.film.applies_orders()
        self.film.later(3)
        self.film.applies_orders()

    @rule(step=st.integers(1, 50))
    def a_checkpoint_is_due(self, step: int) -> None:
        for slot in (0, 1):
            self.ranks_make_steps(slot, step)
            self.a_shard_is_written(slot, step)

    @rule(slot=SLOTS)
    def a_gang_is_struck(self, slot: int) -> None:
        self.ranks_end(slot, SIGKILL)
        self.a_quiet_while()

    @rule()
    def a_gang_ends_well_or_nearly(self) -> None:
        self.ranks_end(0, CLEAN)
        self.ranks_end(1, ABORTED)

    @rule(slot=SLOTS)
    def an_agent_applies_orders(self, slot: int) -> None:
        self.film._apply_orders(slot)
        self.film.reports(slot)

    @rule(slot=SLOTS)
    def an_agent_repeats_itself(self, slot: int) -> None:
        self.film.reports(slot, applied=self.film._seen.get(slot) == self.film.orders(slot))

    @rule(slot=SLOTS, step=st.integers(1, 50))
    def ranks_make_steps(self, slot: int, step: int) -> None:
        ranks = self.film.agents[slot].ranks
        self.film.reports(slot, applied=False, ranks=tuple(_moved(rank, step) for rank in ranks))

    @rule(slot=SLOTS, how=ENDS)
    def ranks_end(self, slot: int, how: ProcessExit) -> None:
        report = self.film.agents[slot]
        if report.plan and not report.stopped:
            dead = tuple(replace(rank, phase=RankPhase.EXITED, exit=how) for rank in report.ranks)
            self.ends.setdefault(report.plan.world_id, {}).update({rank.rank: how for rank in dead})
            self.film.reports(slot, applied=False, ranks=dead, stopped=True)

    @rule(slot=SLOTS, step=st.integers(1, 50))
    def a_shard_is_written(self, slot: int, step: int) -> None:
        report = self.film.agents[slot]
        if report.plan and not report.stopped:
            self.film.saves(step, slot)

    @rule(slot=SLOTS)
    def a_pod_terminates(self, slot: int) -> None:
        self.film.reports(slot, applied=False, terminating=True)

    # ---- the operator, time, ourselves

    @rule(slot=SLOTS, proof=st.booleans())
    def a_pod_is_replaced(self, slot: int, proof: bool) -> None:
        old = self.film.agents[slot]
        if not proof and not old.stopped:
            self.ghosts[slot] = old
        gone = slot not in self.ghosts
        new = old.incarnation + 1
        self.film.desires_slot(
            slot, incarnation=new, pod_uid=f"pod-{slot}-{new}", previous_pod_fenced=gone, terminating=False
        )
        self.film.agents[slot] = agent(slot, new)
        self.film._seen.pop(slot, None)

    @precondition(lambda self: self.ghosts)
    @rule()
    def previous_pods_have_ended(self) -> None:
        self.ghosts.clear()
        for slot in (0, 1):
            self.film.desires_slot(slot, previous_pod_fenced=True)

    @rule(drain=st.booleans())
    def the_operator_changes_its_mind(self, drain: bool) -> None:
        self.film.desires(drain=drain)

    @rule()
    def the_operator_saves_what_was_charged(self) -> None:
        if self.film.phase != "Failed":
            self.film.desires(**self._accounted())

    @rule(seconds=st.sampled_from([0.1, 1.1, 6.0, 61.0]), slept=st.booleans())
    def time_passes(self, seconds: float, slept: bool) -> None:
        if slept:
            self.film.now += seconds
            self.film.event(membership.Tick())
        else:
            self.film.silent = {0, 1}
            self.film.later(seconds)
            self.film.silent = set()

    @precondition(lambda self: self.boot < 3 and self.film.phase not in ("Failed", "Complete"))
    @rule()
    def the_coordinator_reboots(self) -> None:
        known, accounted = self.film.report.lineage, self._accounted()
        self.boot += 1
        self.film.reboots(self.boot)
        self.film._seen.clear()
        self.film.desires(lineage=known, **accounted)

    def _accounted(self) -> dict[str, object]:
        self.note_charges()
        left = BUDGET - len(self.charged) if self.limited else -1
        return {"allowance": left, "charged_incidents": tuple(sorted(self.charged))}

    # ---- the promises

    @invariant()
    def note_charges(self) -> None:
        """Not a promise: the operator's memory of settled incidents."""
        settled = (incident for incident in self.film.report.incidents if incident.final)
        self.charged |= {incident.id for incident in settled if incident.charged}

    @invariant()
    def the_budget_is_never_overdrawn(self) -> None:
        if self.limited and len(self.charged) > BUDGET:
            assert self.film.phase == "Failed"

    def world_ids_grow_and_a_plan_has_every_slot(self) -> None:
        world = self.film.state.world
        if world is None:
            return
        plan = world.plan
        if plan.world_id not in self.plans:
            assert all(plan.world_id > world_id for world_id in self.plans)
            assert [member.slot for member in plan.members] == [0, 1]
            self.plans[plan.world_id] = plan
            self._nothing_older_may_live(plan)
        assert self.plans[plan.world_id] == plan, "a world has one plan"

    def _nothing_older_may_live(self, plan: Plan) -> None:
        for report in self.film.agents.values():
            assert report.stopped, f"{report.plan} lives on while {plan.world_id} starts"
        assert self.film.feature_level >= 2 or not self.ghosts, "a former pod may still write"

    @invariant()
    def one_plan_is_ordered(self) -> None:
        orders = [self.film.orders(slot) for slot in (0, 1)]
        assert len({each.plan for each in orders if each and each.plan}) <= 1

    @invariant()
    def completion_takes_all_ranks(self) -> None:
        world = self.film.state.world
        if world is None or self.film.phase not in ("Completing", "Complete"):
            return
        ends = self.ends[world.plan.world_id]
        assert sorted(ends) == [0, 1]
        assert CLEAN in ends.values()
        assert set(ends.values()) <= {CLEAN, ABORTED}

    @invariant()
    def the_lineage_grows_by_grants_of_worlds_that_ran(self) -> None:
        lineage = self.film.report.lineage
        assert all(ref.world_id in self.plans and ref.digest == f"digest-{ref.step}" for ref in lineage)
        assert [ref.step for ref in lineage] == sorted({ref.step for ref in lineage}, reverse=True)
        grant, world = self.film.state.grant, self.film.state.world
        if grant:
            assert world is not None
            assert grant.ref.world_id == world.plan.world_id
            assert [file.name for file in grant.files] == ["rank-0.pt", "rank-1.pt"]

    @invariant()
    def there_is_always_a_reason_and_a_next_look(self) -> None:
        report = self.film.report
        assert report.why
        assert (report.failure is not None) == (self.film.phase == "Failed")
        wake = membership.wake_at(self.film.state, self.film.now)
        assert wake is not None
        assert wake > self.film.now


def _moved(rank: RankReport, step: int) -> RankReport:
    return rank if rank.exit else replace(rank, phase=RankPhase.RUNNING, step=step, steps_here=step)


BadDay.TestCase.settings = settings(
    max_examples=100, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestBadDay = BadDay.TestCase
