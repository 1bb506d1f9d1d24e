"""How far the current world came: taken from each accepted report, monotone, until the next plan.

Promise: what was seen once stays seen (an agent that dies takes nothing back).
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.contract.messages import AgentReport
from ropeteam_trainer.coordinator import commits, incidents, roll, slots
from ropeteam_trainer.coordinator.state import Moment, State, crew_of, member_pod, pod_of, with_world


def absorb(state: State, report: AgentReport, applied: bool, at: Moment) -> State:
    """What an accepted agent tells."""
    known = state.world.base if state.world else None
    rung, launcher = max(state.rung, report.rung), report.launcher or state.launcher
    if (rung, launcher) != (state.rung, state.launcher):
        state = replace(state, rung=rung, launcher=launcher)
    state = commits.absorb(state, report, at)
    if state.world is None or member_pod(state.world, report.slot) != pod_of(report):
        return state
    state = _note_member(state, report, applied)
    if state.running:
        state = _note_stages(state, at)
    if known is None and state.world and state.world.base is not None:
        state = incidents.count_lost_steps(state, state.world.base)
    return state


def _note_member(state: State, report: AgentReport, applied: bool) -> State:
    world = state.world
    assert world is not None
    ours = world.has(report)
    if ours:
        highest = max((rank.step for rank in report.ranks), default=0)
        if highest > world.step or not slots.has(world.seen, report.slot):
            seen = world.seen | slots.one(report.slot)
            state = with_world(state, seen=seen, step=max(world.step, highest))
        if report.slot == world.plan.members[0].slot:
            state = replace(state, progress=report.progress)
    dead = report.stopped and (applied or slots.has(state.roll.dead, report.slot))
    if dead and not state.running and not slots.has(world.quiet, report.slot):
        state = with_world(state, quiet=world.quiet | slots.one(report.slot))
    return state


def note_dead(state: State) -> State:
    """The plan was just withdrawn: which slots need no stopping, because all their ranks are dead already?

    A report that does not speak of the plan proves nothing here: the plan may still be on its way to that
    agent.
    """
    return with_world(state, quiet=state.roll.dead)


def _note_stages(state: State, at: Moment) -> State:
    world = state.world
    assert world is not None
    if world.started_at is None and roll.all_are(state, state.roll.started):
        state = incidents.reach(with_world(state, started_at=at.now), "started", at)
    if not world.stepped and roll.all_are(state, _stepped(state)):
        state = incidents.reach(with_world(state, stepped=True), "first_step", at)
    lead = crew_of(state, state.config.lead_slot) if world.base is None else None
    first = lead.reports[0] if lead else None
    if first is not None and first.steps_here > 0:
        state = commits.settle_fresh_start(state, first.step - first.steps_here)
    return state


def _stepped(state: State) -> slots.Slots:
    """Of kept ranks some may have ended well already."""
    may_have_ended = state.config.servers > 0 and state.roll.clean
    return state.roll.stepped_or_ended if may_have_ended else state.roll.stepped
