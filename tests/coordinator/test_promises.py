"""Total: any sequence of messages that decode is taken, whatever nonsense trusted peers make of them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.coordinator.reports import JOB_UID, config

from ropeteam_trainer.contract.desired import Desired, SlotDesired
from ropeteam_trainer.contract.messages import AgentReport, Problem, RankPhase, RankReport, Shard, StoreOffer
from ropeteam_trainer.contract.world import CheckpointRef, FailReason, Member, Plan, ProcessExit, WorldId
from ropeteam_trainer.coordinator.membership import step as membership

SMALL = st.integers(0, 3)
UIDS = st.sampled_from(["a", "b", ""])
WORLD_IDS = st.builds(WorldId, st.just(1), st.integers(0, 1), SMALL)
REFS = st.builds(CheckpointRef, SMALL, WORLD_IDS, UIDS)
EXITS = st.builds(
    ProcessExit,
    st.sampled_from([None, 0, 1, 42]),
    st.sampled_from([None, 6, 9]),
    *[st.booleans() for _ in range(5)],
    fingerprint=UIDS,
)
MEMBERS = st.builds(
    Member, st.integers(0, 2), st.integers(1, 2), UIDS, st.just("10.0.0.1"), st.integers(0, 2)
)
PLANS = st.one_of(
    st.builds(Plan, WORLD_IDS, SMALL, st.lists(MEMBERS, max_size=3).map(tuple), st.just("h"), st.just(1)),
    st.builds(
        lambda world_id, uids: Plan(
            world_id, 1, tuple(Member(slot, 1, uid, "h", 1) for slot, uid in enumerate(uids)), "h", 1
        ),
        WORLD_IDS,
        st.tuples(UIDS, UIDS),
    ),
)
RANKS = st.builds(RankReport, st.integers(-1, 2), st.sampled_from(RankPhase), SMALL, SMALL, st.none() | EXITS)
SHARDS = st.builds(Shard, st.integers(-1, 2), WORLD_IDS, SMALL, st.just(()))
REPORTS = st.builds(
    AgentReport,
    slot=st.integers(-1, 2),
    incarnation=st.integers(0, 2),
    pod_uid=UIDS,
    address=st.just("10.0.0.1"),
    job_uid=st.just(JOB_UID),
    term=st.sampled_from([0, 1, 1, 1, 1, 1, 1, 2]),
    feature_level=SMALL,
    plan=st.none() | PLANS,
    stopped=st.booleans(),
    ranks=st.lists(RANKS, max_size=3).map(tuple),
    store=st.none() | st.builds(StoreOffer, WORLD_IDS, st.just("h"), st.just(1)),
    shards=st.lists(SHARDS, max_size=3).map(tuple),
    committed=st.none() | REFS,
    granted=st.none() | REFS,
    restored=st.none() | REFS,
    terminating=st.booleans(),
    completed=st.none() | WORLD_IDS,
    problem=st.none() | st.just(Problem(FailReason.INVALID_SPEC, "x")),
)
FIELDS = st.builds(SlotDesired, st.integers(0, 2), UIDS, st.booleans(), st.booleans())
DESIRED = st.builds(
    Desired,
    generation=SMALL,
    attempt=SMALL,
    term=st.sampled_from([1, 1, 1, 2]),
    slots=st.dictionaries(st.sampled_from(["0", "1", "2", "x"]), FIELDS, min_size=1),
    drain=st.booleans(),
    allowance=st.integers(-2, 2),
    lineage=st.lists(REFS, max_size=2).map(tuple),
)
EVENTS = st.one_of(
    st.builds(membership.ReportReceived, REPORTS, st.booleans()),
    st.builds(membership.DesiredReceived, DESIRED),
    st.just(membership.Tick()),
)
STEPS = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 6.0, 100.0]), EVENTS), max_size=25)


def answers(state: membership.CoordinatorState, event: membership.Event, now: float) -> None:
    """Every projection of the state answers."""
    report = membership.job_report(state, now)
    assert report.why not in ("", report.phase.value)
    assert (report.failure is None) == (report.phase.value != "Failed")
    for slot in range(-1, 4):
        membership.orders_for_slot(state, slot, now)
    if isinstance(event, membership.ReportReceived):
        membership.orders_for_sender(state, event.report, now)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS, st.integers(0, 1))
def test_any_sequence_of_valid_messages_is_taken(steps: list[tuple[float, membership.Event]], boot: int):
    now, state = 0.0, membership.initial_state(config(), boot, 0.0)
    for pause, event in steps:
        now += pause
        state = membership.step(state, event, now, int(now * 1000))
        answers(state, event, now)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS)
def test_nonsense_upon_a_running_world_is_taken(steps: list[tuple[float, membership.Event]]):
    now, state = 0.0, membership.initial_state(config(), 0, 0.0)
    slots = {str(slot): SlotDesired(1, "a") for slot in (0, 1)}
    events: list[membership.Event] = [membership.DesiredReceived(Desired(0, 0, 1, slots, allowance=5))]
    for slot in (0, 1):
        report = AgentReport(slot, 1, "a", "10.0.0.1", JOB_UID, 1, store=StoreOffer(WorldId(1, 0, 1), "h", 1))
        events.append(membership.ReportReceived(report))
    for event in events:
        state = membership.step(state, event, now, 0)
    assert state.world is not None
    plan = state.world.plan
    for pause, event in steps:
        now += pause
        if isinstance(event, membership.ReportReceived):
            report = replace(event.report, plan=plan, pod_uid="a", incarnation=1, term=1)
            event = membership.ReportReceived(report, event.applied)
        state = membership.step(state, event, now, int(now * 1000))
        answers(state, event, now)
