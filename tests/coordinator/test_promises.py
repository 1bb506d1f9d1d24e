"""The promises of membership, against any order of events: honest agents on bad days, and messages that make no sense."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ropeteam_trainer.contract.desired import Desired
from ropeteam_trainer.contract.messages import AgentReport, RankPhase
from ropeteam_trainer.contract.world import Epoch, Plan, ProcessExit
from ropeteam_trainer.coordinator import membership
from tests.coordinator.film import CLEAN, KILLED, SIGKILL, Film, agent, config, raised

SLOTS = st.integers(0, 1)
ENDS = st.sampled_from([SIGKILL, KILLED, raised(), ProcessExit(None, 6, reached_end=True), CLEAN])


class BadDay(RuleBasedStateMachine):
    """Two agents that obey when they are scheduled, pods that are lost, a coordinator that reboots."""

    @initialize(rung=st.integers(0, 2), allowance=st.sampled_from([-1, 3]))
    def begin(self, rung: int, allowance: int) -> None:
        self.film = Film(rung=rung)
        self.film.wish = replace(self.film.wish, allowance=allowance)
        self.plans: dict[Epoch, Plan] = {}
        self.completed: Epoch | None = None
        self.boot = 0
        for slot in (0, 1):
            self.film.agents[slot] = agent(slot)
        self.film.desires()

    @rule(slot=SLOTS)
    def an_agent_obeys_and_reports(self, slot: int) -> None:
        self.film._obey(slot)
        self.film.says(slot, term=1)

    @rule(slot=SLOTS, applied=st.booleans())
    def an_agent_repeats_itself(self, slot: int, applied: bool) -> None:
        self.film.says(slot, applied=applied and self.film._seen.get(slot) == self.film.orders(slot))

    @rule(slot=SLOTS, step=st.integers(1, 50))
    def ranks_make_steps(self, slot: int, step: int) -> None:
        ranks = self.film.agents[slot].ranks
        moved = tuple(replace(r, phase=RankPhase.RUNNING, step=step, steps_here=step) for r in ranks if not r.exit)
        if moved:
            self.film.says(slot, applied=False, ranks=moved)

    @rule(slot=SLOTS, how=ENDS)
    def ranks_end(self, slot: int, how: ProcessExit) -> None:
        report = self.film.agents[slot]
        if report.plan and not report.stopped:
            dead = tuple(replace(r, phase=RankPhase.EXITED, exit=r.exit or how) for r in report.ranks)
            self.film.says(slot, applied=False, ranks=dead, stopped=True)

    @rule(step=st.integers(1, 50))
    def checkpoints_are_written(self, step: int) -> None:
        for slot, report in list(self.film.agents.items()):
            if report.plan and not report.stopped:
                self.film.saves(step, *([slot] if slot else [0]))

    @rule(slot=SLOTS, gone=st.booleans())
    def a_pod_is_replaced(self, slot: int, gone: bool) -> None:
        incarnation = self.film.wish.slots[str(slot)].incarnation + 1
        self.film.desires_slot(
            slot, incarnation=incarnation, pod_uid=f"pod-{slot}-{incarnation}", old_pod_gone=gone, deleting=False
        )
        self.film.agents[slot] = agent(slot, incarnation)
        self.film._seen.pop(slot, None)

    @rule(slot=SLOTS)
    def a_pod_is_asked_to_leave(self, slot: int) -> None:
        self.film.says(slot, applied=False, leaving=True)

    @rule(drain=st.booleans(), deleting=st.booleans())
    def the_operator_changes_its_mind(self, drain: bool, deleting: bool) -> None:
        self.film.desires_slot(1, deleting=deleting)
        self.film.desires(drain=drain)

    @rule(seconds=st.sampled_from([0.1, 1.1, 6.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.film.now += seconds
        self.film.event(membership.Tick())

    @precondition(lambda self: self.boot < 3)
    @rule()
    def the_coordinator_reboots(self) -> None:
        self.boot += 1
        known = self.film.report.lineage
        self.film.reboots(self.boot)
        self.film.desires(lineage=known)

    @invariant()
    def epochs_grow_and_a_plan_has_every_slot(self) -> None:
        if not hasattr(self, "film") or self.film.state.world is None:
            return
        plan = self.film.state.world.plan
        if plan.epoch not in self.plans and self.film.state.running:
            assert all(plan.epoch > epoch for epoch in self.plans), "epochs grow strictly"
            self.plans[plan.epoch] = plan
        assert self.plans.get(plan.epoch, plan) == plan, "an epoch has one plan"
        assert [member.slot for member in plan.members] == [0, 1]

    @invariant()
    def one_world_may_live(self) -> None:
        """At most one plan is ordered; an agent that still runs an older one belongs to no current plan."""
        if not hasattr(self, "film"):
            return
        film = self.film
        ordered = {o.plan.epoch for slot in (0, 1) if (o := film.orders(slot)) and o.plan}
        assert len(ordered) <= 1
        for epoch in ordered:
            for report in film.agents.values():
                if not report.stopped and report.plan:
                    assert report.plan.epoch == epoch, "ranks of an older world live beside a newer plan"

    @invariant()
    def completion_is_final(self) -> None:
        if not hasattr(self, "film"):
            return
        if self.completed:
            assert self.film.phase in ("Completing", "Complete", "Waiting", "Forming", "Stopping", "Running")
        if self.film.phase == "Complete":
            world = self.film.state.world
            assert world is not None
            assert self.completed in (None, world.plan.epoch)
            self.completed = world.plan.epoch

    @invariant()
    def the_lineage_is_of_our_own_epochs(self) -> None:
        if hasattr(self, "film"):
            lineage = self.film.report.lineage
            assert all(ref.epoch in self.plans for ref in lineage)
            assert [ref.step for ref in lineage] == sorted({ref.step for ref in lineage}, reverse=True)
            grant = self.film.state.grant
            assert grant is None or grant.ref.epoch in self.plans

    @invariant()
    def there_is_always_a_reason(self) -> None:
        if hasattr(self, "film"):
            report = self.film.report
            assert report.why
            assert (report.failure is not None) == (report.phase.value == "Failed")
            wake = membership.wake_at(self.film.state, self.film.now)
            assert wake is not None
            assert wake > self.film.now


BadDay.TestCase.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestBadDay = BadDay.TestCase


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_sequence_of_valid_messages_is_taken(data: st.DataObject) -> None:
    """Nonsense from authenticated peers: every projection still answers."""
    now, state = 0.0, membership.initial(config(), boot=data.draw(st.integers(0, 1)), now=0.0)
    for _ in range(data.draw(st.integers(1, 12))):
        now += data.draw(st.sampled_from([0.0, 0.5, 6.0, 100.0]))
        event = data.draw(_EVENTS)
        state = membership.step(state, event, now, int(now * 1000))
        assert membership.job_report(state, now).why
        for slot in range(-1, 4):
            membership.orders(state, slot, now)
        if isinstance(event, membership.ReportReceived):
            membership.reply(state, event.report, now)


_EPOCHS = st.builds(Epoch, st.integers(0, 2), st.integers(0, 1), st.integers(0, 2))
_REPORTS = st.from_type(AgentReport).map(
    lambda report: replace(report, job_uid="job-uid", contract=1, slot=report.slot % 3, incarnation=report.incarnation % 2)
)
_DESIRED = st.from_type(Desired).map(lambda desired: replace(desired, term=1))
_EVENTS = st.one_of(
    st.builds(membership.ReportReceived, _REPORTS, st.booleans()),
    st.builds(membership.DesiredReceived, _DESIRED),
    st.just(membership.Tick()),
)
