"""Progress of the current world: taken from each accepted report, monotone, until the next plan.

Promise: what was reported once stays known (the death of an agent withdraws nothing).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ropeteam_trainer.coordinator.membership import commits, groups, incidents
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.events import Moment, ReportReceived, pod_of
from ropeteam_trainer.coordinator.membership.state.ranks import ranks_of_member
from ropeteam_trainer.coordinator.membership.state.slots import member_pod
from ropeteam_trainer.coordinator.membership.state.state import CoordinatorState, with_world


def record_reports(
    state: CoordinatorState, received: Iterable[ReportReceived], at: Moment
) -> CoordinatorState:
    """The state after these accepted reports (`slots.is_accepted`), whose facts slotindex.py has recorded.

    Order: feature level, launcher and commits of any accepted report -> the current world's progress, by
    reports of its members -> its recovery stages. Once it is known from which step the world resumed, lost
    steps are counted.
    """
    known = state.world.base if state.world else None
    ours = []
    for each in received:
        report = each.report
        feature_level, launcher = (
            max(state.feature_level, report.feature_level),
            report.launcher or state.launcher,
        )
        if (feature_level, launcher) != (state.feature_level, state.launcher):
            state = replace(state, feature_level=feature_level, launcher=launcher)
        state = commits.record_commits(state, report, at)
        if state.world and member_pod(state.world, report.slot) == pod_of(report):
            ours.append(each)
    if not ours:
        return state
    state = _record_member_reports(state, ours, at)
    if state.is_world_live:
        state = _record_stages(state, at)
    if known is None and state.world and state.world.base is not None:
        state = incidents.count_lost_steps(state, state.world.base)
    return state


def _record_member_reports(
    state: CoordinatorState, received: list[ReportReceived], at: Moment
) -> CoordinatorState:
    """The state with the world's fields after reports of its members' pods. Only agents that report this
    world (`here`) count for its progress. Dead slots count as quiesced only after the world was withdrawn,
    and once the agent has applied that: before, it may still start the plan."""
    world = state.world
    assert world is not None
    here = [each.report for each in received if world.has_ranks_of(each.report)]
    stopped = slotset.of(each.report.slot for each in received if each.report.stopped)
    applied = slotset.of(each.report.slot for each in received if each.applied)
    dead = slotset.NONE if state.is_world_live else stopped & (applied | state.facts.dead)
    highest = max((rank.step for report in here for rank in report.ranks), default=0)
    first = slotset.first(state.member_slots)
    known = (
        groups.merged_groups(world.groups, here) if any(report.groups for report in here) else world.groups
    )
    for report in here:
        if report.slot == first:
            state = replace(state, progress=report.progress)
    return with_world(
        state,
        confirmed=world.confirmed | slotset.of(report.slot for report in here),
        step=max(world.step, highest),
        step_at=at.now if highest > world.step else world.step_at,
        ended_at=at.now if world.ended_at is None and state.facts.clean else world.ended_at,
        groups=known,
        reporting_groups=world.reporting_groups
        | slotset.of(report.slot for report in here if report.reports_groups),
        grouped_at=at.now if known and world.grouped_at is None else world.grouped_at,
        quiesced=world.quiesced | dead,
        acknowledged_pause=world.acknowledged_pause
        | (applied if world.paused_at is not None else slotset.NONE),
    )


def record_dead_slots(state: CoordinatorState) -> CoordinatorState:
    """The state with `quiesced` set to the slots whose ranks are all dead, as the plan is withdrawn: nothing
    is left to stop there. An agent that has not reported this plan does not count: the plan may be on its way
    to it."""
    return with_world(state, quiesced=state.facts.dead)


def _record_stages(state: CoordinatorState, at: Moment) -> CoordinatorState:
    """The state after stages that all members have reached: ranks started, first step. `base` of a world that
    restored nothing is the step of the leading rank before its first one here."""
    world = state.world
    assert world is not None
    if world.started_at is None and slotindex.has_all_members(state, state.facts.started):
        state = incidents.record_stage(with_world(state, started_at=at.now), "started", at)
    if not world.stepped and slotindex.has_all_members(state, _stepped_slots(state)):
        state = incidents.record_stage(with_world(state, stepped=True), "first_step", at)
    lead = ranks_of_member(state, state.config.lead_slot) if world.base is None else None
    first = lead.reports[0] if lead else None
    if first is not None and first.steps_here > 0:
        state = commits.record_fresh_start(state, first.step - first.steps_here)
    return state


def _stepped_slots(state: CoordinatorState) -> slotset.Slots:
    """Slots whose ranks have all made a step in this world. With parameter servers preserved ranks may have
    ended well before it began; they count too, once any rank exited cleanly."""
    may_have_ended = state.config.servers > 0 and state.facts.clean
    return state.facts.stepped_or_ended if may_have_ended else state.facts.stepped
