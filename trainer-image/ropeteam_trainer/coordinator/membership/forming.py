"""Obstacles to the next world, and its plan once there are none.

Order of the conditions: every slot held by a registered pod that stays -> every rank of previous worlds dead,
or preserved -> fenced -> backoff -> store. The result is a sentence for people and the condition for the plan
at once.
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.messages import StoreOffer
from ropeteam_trainer.contract.world import Member, Plan
from ropeteam_trainer.coordinator.membership import commits, incidents, preserving, unstartable
from ropeteam_trainer.coordinator.membership.drains import DEBOUNCE_SECONDS
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.events import Moment
from ropeteam_trainer.coordinator.membership.state.slots import agent_of_slot, desired_slot, leaving, lost
from ropeteam_trainer.coordinator.membership.state.state import State, enter
from ropeteam_trainer.coordinator.membership.state.world import World

TICK_SECONDS = 1.0
"""A Tick comes at least this often, so that a pause of our own event loop is noticed."""
STORE_SLOT = 0
"""The store of each world lives in the pod of the lowest slot."""
UNENDING_SECONDS = 60.0
"""SIGKILL takes milliseconds; if a rank has not ended by then, the rank hangs in the kernel, or its agent
hangs."""


def obstacle(state: State, now: float) -> str:
    """Condition that the next plan waits for; "": none."""
    preserved = state.world.preserved if state.world else slotset.NONE
    not_ready = state.everybody & ~preserved & ~_ready(state)
    if not_ready:
        return _slot_obstacle(state, slotset.first(not_ready), now)
    if now < state.failure_history.not_before:
        return "a backoff before the next start, because no step of the last world was observed"
    if offered_store(state) is None:
        return f"the store of world {state.next_world_id} in slot {STORE_SLOT}"
    return ""


def _ready(state: State) -> slotset.Slots:
    """Slots that are ready for the next plan."""
    ready = (
        slotindex.present(state) & ~slotindex.departing(state) & ~unfinished(state) & ~state.facts.has_problem
    )
    if state.feature_level >= FeatureLevel.CHECKPOINTS:
        return ready
    quiesced = state.world.quiesced if state.world else slotset.NONE
    return ready & ~(state.facts.unproven & ~quiesced)


def _slot_obstacle(state: State, slot: int, now: float) -> str:
    desired, agent = desired_slot(state, slot), agent_of_slot(state, slot)
    if desired is None or not desired.pod_uid:
        return f"the pod of slot {slot}"
    if agent is None:
        return f"the agent of slot {slot} to register"
    if lost(state, agent, now):
        return f"the agent of slot {slot}, which stopped reporting"
    if leaving(state, slot):
        return f"another pod in slot {slot}, because this one is terminating"
    if slotset.has(unfinished(state), slot):
        return f"the ranks of slot {slot} to end"
    if agent.report.problem:
        return unstartable.obstacle(state, slot)
    # A report of its agent would be proof too: the ranks are dead, and it accepts no orders for a world now.
    return f"proof that the previous pod of slot {slot} has ended"


def unfinished(state: State) -> slotset.Slots:
    """Slots whose ranks of a previous world may still live, and whose agent can be ordered to end them;
    without those that are preserved."""
    world, here = state.world, slotindex.present(state)
    if world is None:
        return here & state.facts.busy
    return here & ~world.preserved & (state.facts.busy | (state.facts.member & ~world.quiesced))


def stuck(state: State, now: float) -> slotset.Slots:
    """Slots whose ranks should have ended long ago and have not: only another pod helps."""
    if state.phase is not WorldPhase.STOPPING or now - state.phase_since < UNENDING_SECONDS:
        return slotset.NONE
    return unfinished(state)


def stopping_text(state: State, now: float) -> str:
    """The sentence on a world whose ranks are being ended."""
    fault, world = state.fault, state.world
    assert world is not None
    reason = f"{fault.incident.cause.value}: {fault.incident.message}" if fault else "its plan was withdrawn"
    more = f"{_stuck_text(state, now)}{preserving.preserved_text(state)}"
    return f"ending the ranks of world {world.plan.world_id}, because {reason}{more}"


def _stuck_text(state: State, now: float) -> str:
    slots = list(slotset.each(stuck(state, now)))
    some = ", ".join(map(str, slots[:5])) + (" and more" if len(slots) > 5 else "")
    late = f"those of slots {some} have not ended for {UNENDING_SECONDS:.0f} s: other pods are requested"
    return f"; {late}" if slots else ""


def unaccounted(state: State) -> slotset.Slots:
    """Slots where unreported ranks may live: a pod whose lease expired, a previous one without proof of its
    end. If checkpoints are committed through us, files that they still write do not count."""
    if state.feature_level >= FeatureLevel.CHECKPOINTS:
        return slotset.NONE
    if state.world is None and (state.config.term, state.boot) == (1, 0):
        return state.facts.unproven  # no world was planned yet
    desired = ((slot, desired_slot(state, slot)) for slot in range(state.config.slots))
    named = slotset.of(slot for slot, each in desired if each and each.pod_uid)
    quiesced = state.world.quiesced if state.world else slotset.NONE
    return (state.facts.unproven | (named & ~slotindex.present(state))) & ~quiesced


def offered_store(state: State) -> StoreOffer | None:
    """The store of the next world, once the lowest slot offers it."""
    agent = agent_of_slot(state, STORE_SLOT)
    offer = agent.report.store if agent else None
    return offer if offer and offer.world_id == state.next_world_id else None


def publish(state: State, at: Moment) -> State:
    """Start the next world. Only without an obstacle."""
    offer, desired, previous = offered_store(state), state.desired, state.world
    assert offer is not None
    assert desired is not None
    preserved = previous.preserved if previous else slotset.NONE
    resumes_in_memory = previous is not None and preserving.can_resume_in_memory(state)
    plan = Plan(
        world_id=state.next_world_id,
        attempt=desired.attempt,
        members=tuple(_member(state, slot) for slot in range(state.config.slots)),
        store_host=offer.host,
        store_port=offer.port,
        restore=commits.restore_candidates(state),
        restart_count=state.restarts,
        origin=previous.plan.server_generation if previous and resumes_in_memory else None,
    )
    state = replace(
        state,
        n=state.n + 1,
        restarts=state.restarts + 1,
        grant=state.grant if slotset.has(preserved, state.config.lead_slot) else None,  # its writer lives on
    )
    state = slotindex.enter_world(state, World(plan, at.now, confirmed=preserved), at.now)
    if previous and resumes_in_memory:
        state = incidents.count_lost_steps(state, previous.step)
    return enter(incidents.record_stage(state, "planned", at), WorldPhase.RUNNING, at)


def _member(state: State, slot: int) -> Member:
    world, agent = state.world, agent_of_slot(state, slot)
    assert agent is not None
    report = agent.report
    started_in = world.plan.started_in(slot) if world and slotset.has(world.preserved, slot) else None
    processes = state.config.processes_of(slot)
    return Member(slot, report.incarnation, report.pod_uid, report.address, processes, started_in)


def wake_at(state: State, now: float) -> float | None:
    """Latest time of the next Tick; None: only other events can change the state."""
    if not state.agents and state.desired is None:
        return None
    lease, world = state.config.timeouts.lost, state.world
    times = [
        now + TICK_SECONDS,
        state.failure_history.not_before,
        state.desired_at + lease,
        state.phase_since + lease + 0.001,
        state.leases_until + 0.001,
    ]
    if state.waited_from is not None:
        times.append(state.waited_from + lease)
    if world and world.terminating_since is not None:
        times.append(world.terminating_since + DEBOUNCE_SECONDS)
    if world and world.paused_at is not None:
        times += [world.paused_at + DEBOUNCE_SECONDS, world.paused_at + state.config.timeouts.drain]
    return min(time for time in times if time > now)
