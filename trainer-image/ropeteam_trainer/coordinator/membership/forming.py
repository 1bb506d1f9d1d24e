"""What the next world still lacks, and its plan once nothing is missing.

Order of the questions: every slot held by a registered pod that stays -> every rank before it dead, or kept
-> fenced -> backoff -> store. The answer is a sentence for people and the condition for the plan at once.
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.messages import StoreOffer
from ropeteam_trainer.contract.world import Member, Plan
from ropeteam_trainer.coordinator.membership import commits, incidents, preserving, unstartable
from ropeteam_trainer.coordinator.membership.drains import DEBOUNCE_SECONDS, SAVES_THROUGH_US
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.state import (
    Moment,
    State,
    agent_of_slot,
    desired_slot,
    enter,
    leaving,
    lost,
)
from ropeteam_trainer.coordinator.membership.state.world import World

TICK_SECONDS = 1.0
"""We wake at least this often, so that a pause of our own loop is noticed."""
STORE_SLOT = 0
"""The store keeper of an epoch lives in the pod of the lowest slot."""


def obstacle(state: State, now: float) -> str:
    """What the next plan waits for; "": nothing."""
    kept = state.world.kept if state.world else slotset.NONE
    lacking = state.everybody & ~kept & ~_ready(state)
    if lacking:
        return _slot_lacks(state, slotset.first(lacking), now)
    if now < state.failure_history.not_before:
        return "a pause before the next start, because no step of the last world was seen"
    if offered_store(state) is None:
        return f"the store of world {state.next_epoch} in slot {STORE_SLOT}"
    return ""


def _ready(state: State) -> slotset.Slots:
    """Slots that lack nothing."""
    ready = slotindex.present(state) & ~slotindex.departing(state) & ~unfinished(state) & ~state.roll.troubled
    silenced = state.world.quiesced if state.world else slotset.NONE
    return ready if state.rung >= SAVES_THROUGH_US else ready & ~(state.roll.unproven & ~silenced)


def _slot_lacks(state: State, slot: int, now: float) -> str:
    word, agent = desired_slot(state, slot), agent_of_slot(state, slot)
    if word is None or not word.pod_uid:
        return f"the pod of slot {slot}"
    if agent is None:
        return f"the agent of slot {slot} to register"
    if lost(state, agent, now):
        return f"the agent of slot {slot}, which fell silent"
    if leaving(state, slot):
        return f"another pod in slot {slot}, because this one is leaving"
    if slotset.has(unfinished(state), slot):
        return f"the ranks of slot {slot} to end"
    if agent.report.problem:
        return unstartable.lack(state, slot)
    # Its agent's own word would be proof too: the ranks are dead, and it takes no orders of a world any more.
    return f"proof that the former pod of slot {slot} has ended"


def unfinished(state: State) -> slotset.Slots:
    """Slots whose ranks of a former world may still live although their agent can be asked to end them; but
    for those that are kept."""
    world, here = state.world, slotindex.present(state)
    if world is None:
        return here & state.roll.busy
    return here & ~world.kept & (state.roll.busy | (state.roll.member & ~world.quiesced))


def unaccounted(state: State) -> slotset.Slots:
    """Slots where ranks may live of which nobody tells: a pod that fell silent, a former one without a proof.
    Where checkpoints are commits, what they still write does not count."""
    if state.rung >= SAVES_THROUGH_US:
        return slotset.NONE
    if state.world is None and (state.config.term, state.boot) == (1, 0):
        return state.roll.unproven  # nobody has ordered a world yet
    words = ((slot, desired_slot(state, slot)) for slot in range(state.config.slots))
    named = slotset.of(slot for slot, word in words if word and word.pod_uid)
    quiesced = state.world.quiesced if state.world else slotset.NONE
    return (state.roll.unproven | (named & ~slotindex.present(state))) & ~quiesced


def offered_store(state: State) -> StoreOffer | None:
    """The store of the next epoch, once the lowest slot offers it."""
    agent = agent_of_slot(state, STORE_SLOT)
    offer = agent.report.store if agent else None
    return offer if offer and offer.epoch == state.next_epoch else None


def publish(state: State, at: Moment) -> State:
    """The next world. Only when there is no obstacle."""
    offer, desired, former = offered_store(state), state.desired, state.world
    assert offer is not None
    assert desired is not None
    kept = former.kept if former else slotset.NONE
    goes_on = former is not None and preserving.can_resume_in_memory(state)
    plan = Plan(
        epoch=state.next_epoch,
        attempt=desired.attempt,
        members=tuple(_member(state, slot) for slot in range(state.config.slots)),
        store_host=offer.host,
        store_port=offer.port,
        restore=commits.restore_candidates(state),
        restart_count=state.restarts,
        origin=former.plan.line if former and goes_on else None,
    )
    state = replace(
        state,
        n=state.n + 1,
        restarts=state.restarts + 1,
        grant=state.grant if slotset.has(kept, state.config.lead_slot) else None,  # who writes it lives on
    )
    state = slotindex.enter_world(state, World(plan, at.now, seen=kept), at.now)
    if former and goes_on:
        state = incidents.count_lost_steps(state, former.step)
    return enter(incidents.reach(state, "planned", at), WorldPhase.RUNNING, at)


def _member(state: State, slot: int) -> Member:
    world, agent = state.world, agent_of_slot(state, slot)
    assert agent is not None
    report = agent.report
    born = world.plan.born(slot) if world and slotset.has(world.kept, slot) else None
    processes = state.config.processes_of(slot)
    return Member(slot, report.incarnation, report.pod_uid, report.address, processes, born)


def wake_at(state: State, now: float) -> float | None:
    """When to Tick at the latest; None: only events can change anything."""
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
    if world and world.leave_at is not None:
        times.append(world.leave_at + DEBOUNCE_SECONDS)
    if world and world.paused_at is not None:
        times += [world.paused_at + DEBOUNCE_SECONDS, world.paused_at + state.config.timeouts.drain]
    return min(time for time in times if time > now)
