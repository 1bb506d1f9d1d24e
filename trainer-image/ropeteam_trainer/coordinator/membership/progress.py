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
from ropeteam_trainer.coordinator.membership.state.state import State, with_world


def absorb(state: State, received: Iterable[ReportReceived], at: Moment) -> State:
    """The state after these accepted reports."""
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
        state = commits.absorb(state, report, at)
        if state.world and member_pod(state.world, report.slot) == pod_of(report):
            ours.append(each)
    if not ours:
        return state
    state = _note_members(state, ours, at)
    if state.running:
        state = _note_stages(state, at)
    if known is None and state.world and state.world.base is not None:
        state = incidents.count_lost_steps(state, state.world.base)
    return state


def _note_members(state: State, received: list[ReportReceived], at: Moment) -> State:
    world = state.world
    assert world is not None
    here = [each.report for each in received if world.has(each.report)]
    stopped = slotset.of(each.report.slot for each in received if each.report.stopped)
    applied = slotset.of(each.report.slot for each in received if each.applied)
    dead = slotset.NONE if state.running else stopped & (applied | state.facts.dead)
    highest = max((rank.step for report in here for rank in report.ranks), default=0)
    first = world.plan.members[0].slot
    known = groups.absorb(world.groups, here) if any(report.groups for report in here) else world.groups
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
    )


def note_dead(state: State) -> State:
    """Note, as the plan is withdrawn, the slots that need no stopping: all their ranks are dead already.

    A report without the plan proves nothing here: the plan may still be on its way to that agent.
    """
    return with_world(state, quiesced=state.facts.dead)


def _note_stages(state: State, at: Moment) -> State:
    world = state.world
    assert world is not None
    if world.started_at is None and slotindex.all_members(state, state.facts.started):
        state = incidents.record_stage(with_world(state, started_at=at.now), "started", at)
    if not world.stepped and slotindex.all_members(state, _stepped(state)):
        state = incidents.record_stage(with_world(state, stepped=True), "first_step", at)
    lead = ranks_of_member(state, state.config.lead_slot) if world.base is None else None
    first = lead.reports[0] if lead else None
    if first is not None and first.steps_here > 0:
        state = commits.settle_fresh_start(state, first.step - first.steps_here)
    return state


def _stepped(state: State) -> slotset.Slots:
    """Slots whose ranks have all made a step. With parameter servers some preserved ranks may have ended well
    already, and count too."""
    may_have_ended = state.config.servers > 0 and state.facts.clean
    return state.facts.stepped_or_ended if may_have_ended else state.facts.stepped
