"""Obstacles to the next world, and its plan once there are none.

Order of the conditions: every slot held by a registered pod that stays -> every rank of previous worlds dead,
or preserved -> fenced -> backoff -> store. One function returns the condition for the plan and its text for
people, so that they cannot differ.
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.contract.config import Elastic
from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.messages import Problem, StoreOffer
from ropeteam_trainer.contract.world import Cause, FailReason, Member, Plan
from ropeteam_trainer.coordinator.membership import commits, incidents, preserving, unstartable
from ropeteam_trainer.coordinator.membership.drains import DEBOUNCE_SECONDS
from ropeteam_trainer.coordinator.membership.evidence import SIGNAL, Evidence
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.events import Moment
from ropeteam_trainer.coordinator.membership.state.ranks import is_any_rank_joining
from ropeteam_trainer.coordinator.membership.state.slots import (
    agent_of_slot,
    desired_slot,
    is_lost,
    is_terminating,
)
from ropeteam_trainer.coordinator.membership.state.state import CoordinatorState, enter_phase, is_new_attempt
from ropeteam_trainer.coordinator.membership.state.world import FormedWorld

GATHER_SECONDS = 10.0
"""Under sync Exact, time in which ranks that can be started wait for others that are missing, because each
start of ranks beside those that train makes these wait once."""
TICK_SECONDS = 1.0
"""A Tick comes at least this often, so that a pause of our own event loop is noticed."""
STORE_SLOT = 0
"""The store of each world lives in the pod of the lowest slot."""
UNENDING_SECONDS = 60.0
"""SIGKILL takes milliseconds; if a rank has not ended by then, the rank hangs in the kernel, or its agent
hangs."""


def obstacle(state: CoordinatorState, now: float) -> str:
    """The first condition that the next plan waits for, as the end of "waiting for"; "": none, the next world
    can start. First match wins: slots, backoff, store."""
    if missing := missing_slots(state) & ~absent_slots(state, now):
        return _slot_obstacle(state, slotset.first(missing), now)
    if now < state.failure_history.not_before:
        return "a backoff before the next start, because no step of the last world was observed"
    if offered_store(state) is None:
        return f"the store (TCPStore) of world {state.next_world_id} in the pod of slot {store_slot(state)}"
    return ""


def missing_slots(state: CoordinatorState) -> slotset.Slots:
    """Slots that are not ready for the next plan. Preserved ones are."""
    preserved = state.world.preserved if state.world else slotset.NONE
    return state.all_slots & ~preserved & ~_ready_slots(state)


def absent_slots(state: CoordinatorState, now: float) -> slotset.Slots:
    """Under sync Exact, slots that the next world begins without: those that are not ready, with all that
    share a replica with them. NONE: there are none, or it waits for them."""
    missing = missing_slots(state)
    if not missing or state.config.servers:
        return slotset.NONE
    absent = preserving.with_mates(state, missing)
    if _without_support(state, absent):
        return slotset.NONE
    resumes = preserving.can_resume_in_memory(state)
    begins = _joins_without(state, absent, now) if resumes else _starts_without(state, absent, now)
    return absent if begins else slotset.NONE


def _joins_without(state: CoordinatorState, absent: slotset.Slots, now: float) -> bool:
    """Whether those that train begin a world without these slots: ranks that are lost and are not theirs join
    it. Slots that the last world had are awaited for a while."""
    world = state.world
    assert world is not None
    is_awaited = absent & ~world.absent and now < state.phase_since + GATHER_SECONDS
    return not (is_awaited or absent & world.preserved)


def _starts_without(state: CoordinatorState, absent: slotset.Slots, now: float) -> bool:
    """Whether all begin without these slots, as spec.elastic says. Not without the leading rank. Slots that
    the last world had are awaited for a while, too."""
    elastic, world = state.config.elastic, state.world
    if elastic is None or not _are_enough(state, absent, elastic) or state.launcher.startswith("PerPod"):
        return False
    is_awaited = absent & ~(world.absent if world else slotset.NONE)
    since = state.enough_since
    return not is_awaited or (since is not None and now >= since + elastic.wait_seconds)


def _are_enough(state: CoordinatorState, absent: slotset.Slots, elastic: Elastic) -> bool:
    here = state.all_slots & ~absent
    return slotset.has(here, state.config.lead_slot) and here.bit_count() >= elastic.min_workers


def note_enough(state: CoordinatorState, now: float) -> CoordinatorState:
    """The state with `enough_since`. Only in FORMING."""
    elastic, missing = state.config.elastic, missing_slots(state)
    if elastic is None or not _are_enough(state, preserving.with_mates(state, missing), elastic):
        return replace(state, enough_since=None)
    return replace(state, enough_since=now if state.enough_since is None else state.enough_since)


def _ranks_to_start(state: CoordinatorState, absent: slotset.Slots) -> tuple[int, ...]:
    """`Plan.started` of the next world, if it begins without these slots."""
    if preserving.can_resume_in_memory(state):
        found = preserving.ranks_to_start(state)
        return tuple(rank for rank in found if not slotset.has(absent, rank // state.config.processes))
    here = slotset.each(state.all_slots & ~absent) if absent else ()
    ranks = (rank for slot in here for rank in state.config.ranks_of(slot))
    return tuple(rank for rank in ranks if rank >= state.config.replica_ranks)


def can_grow(state: CoordinatorState, now: float) -> bool:
    """Whether slots that the running world does not have are ready, and the next world is due that starts
    their ranks. Not before all ranks that this one starts have joined, nor while one could not live on."""
    world = state.world
    if world is None or not world.absent or world.terminating_since is not None:
        return False
    if state.member_slots & ~state.facts.whole_regroups:  # a rank that joins has made no step
        return False
    still = preserving.with_mates(state, world.absent & ~_ready_slots(state))
    is_due = not still or now >= world.since + GATHER_SECONDS
    can_begin = now >= state.failure_history.not_before and not (still and _without_support(state, still))
    return is_due and can_begin and bool(world.absent & ~still)


def _without_support(state: CoordinatorState, absent: slotset.Slots) -> slotset.Slots:
    """Other slots whose agents are of an earlier release, which knows no absent slots."""
    return state.all_slots & ~absent & ~state.facts.supports_claim


def absence_notice(state: CoordinatorState, now: float) -> Problem | None:
    """The notice of a running world on slots that it does not have; None: it has all, or they join soon."""
    world = state.world
    missing = world.absent & ~_ready_slots(state) if world and state.is_world_live else slotset.NONE
    if not missing:
        return None
    slots = [*slotset.each(missing)]
    some = ", ".join(map(str, slots[:5])) + (" and more" if len(slots) > 5 else "")
    return Problem(
        FailReason.WORKERS_ABSENT,
        f"the others train without slot{'s' if len(slots) > 1 else ''} {some}, and wait for "
        f"{_slot_obstacle(state, slots[0], now)}. "
        "No result differs, and those that come join without a loss, but each step takes longer.",
    )


def _ready_slots(state: CoordinatorState) -> slotset.Slots:
    """Slots that are ready for the next plan: their agent is there and stays, can start ranks, and none of an
    earlier world lives.

    Below feature level 2 the slot's previous pod must have ended, too, because it may still write the
    script's own files. From level 2 on it cannot harm: only granted checkpoints are restored.
    """
    ready = (
        slotindex.present_slots(state)
        & ~slotindex.terminating_slots(state)
        & ~unfinished_slots(state)
        & ~state.facts.has_problem
    )
    if state.feature_level >= FeatureLevel.CHECKPOINTS:
        return ready
    quiesced = state.world.quiesced if state.world else slotset.NONE
    return ready & ~(state.facts.unproven & ~quiesced)


def _slot_obstacle(state: CoordinatorState, slot: int, now: float) -> str:
    """Why this slot, which is not ready, is not. First match wins, in the order in which a pod gets ready;
    the last case is what remains of `_ready_slots`."""
    desired, agent = desired_slot(state, slot), agent_of_slot(state, slot)
    if desired is None or not desired.pod_uid:
        return f"the pod of slot {slot} to be created"
    if agent is None:
        return f"the agent of slot {slot} to register"
    if is_lost(state, agent, now):
        return f"the agent of slot {slot}, which stopped reporting; another pod is requested"
    if is_terminating(state, slot):
        return f"another pod in slot {slot}, because this one is terminating"
    if slotset.has(unfinished_slots(state), slot):
        return f"the ranks of slot {slot} to end"
    if agent.report.problem:
        return unstartable.obstacle(state, slot)
    # Proof: the operator's `previous_pod_fenced`.
    return f"proof that the previous pod of slot {slot} has ended: it may still write the script's files"


def unfinished_slots(state: CoordinatorState) -> slotset.Slots:
    """Slots with a registered agent whose ranks may still live: it can be ordered to end them. Of slots that
    are preserved only those in which a lost rank still lives. An agent's `stopped` is no proof until it has
    applied the withdrawal of the plan (`quiesced`): it might still start those ranks."""
    world, here = state.world, slotindex.present_slots(state)
    if world is None:
        return here & state.facts.busy
    ending = here & ~world.preserved & (state.facts.busy | (state.facts.member & ~world.quiesced))
    return ending | (here & preserving.slots_of_dying(state))


def stuck_slots(state: CoordinatorState, now: float) -> slotset.Slots:
    """Slots whose ranks have not ended UNENDING_SECONDS after the world: only another pod helps."""
    if state.phase is not WorldPhase.STOPPING or now - state.phase_since < UNENDING_SECONDS:
        return slotset.NONE
    return unfinished_slots(state)


def stopping_text(state: CoordinatorState, now: float) -> str:
    """The sentence on a world whose ranks are being ended: why, which slots are stuck, which continue."""
    fault, world = state.fault, state.world
    assert world is not None
    if fault:
        reason = f"{fault.incident.cause.value}: {fault.incident.message}"
    else:
        reason = _reason_without_fault(state, world)
    more = f"{_stuck_text(state, now)}{preserving.preserved_text(state)}"
    return f"ending the ranks of world {world.plan.world_id}, because {reason}{more}"


def _reason_without_fault(state: CoordinatorState, world: FormedWorld) -> str:
    """Why the ranks of a world are ended although it has no incident. First match wins."""
    if is_new_attempt(state):
        return "a new attempt replaces all pods"
    if world.paused_at is not None:
        return "it was drained"
    if world.absent and world.preserved:
        return "others join its ranks"
    return "a restarted coordinator could not adopt it"


def _stuck_text(state: CoordinatorState, now: float) -> str:
    """The part of that sentence on stuck slots, at most five by number; "": none is stuck."""
    slots = list(slotset.each(stuck_slots(state, now)))
    some = ", ".join(map(str, slots[:5])) + (" and more" if len(slots) > 5 else "")
    late = f"those of slots {some} have not ended for {UNENDING_SECONDS:.0f} s: other pods are requested"
    return f"; {late}" if slots else ""


def unfenced_slots(state: CoordinatorState) -> slotset.Slots:
    """Slots where ranks may live that no agent reports: the lease of its pod has expired, or no proof is
    known that its previous pod has ended. A drain is not over before they are fenced.

    Empty from feature level 2 on: files that such a rank still writes are never restored, without a grant.
    """
    if state.feature_level >= FeatureLevel.CHECKPOINTS:
        return slotset.NONE
    if state.world is None and (state.config.term, state.boot) == (1, 0):
        return state.facts.unproven  # the first boot of the first coordinator has planned no world yet
    desired = ((slot, desired_slot(state, slot)) for slot in range(state.config.slots))
    named = slotset.of(slot for slot, each in desired if each and each.pod_uid)
    quiesced = state.world.quiesced if state.world else slotset.NONE
    return (state.facts.unproven | (named & ~slotindex.present_slots(state))) & ~quiesced


def store_slot(state: CoordinatorState) -> int:
    """The slot whose pod holds the store of the next world: the lowest, or if that is missing, or may be
    absent, while others train, under sync Exact, the lowest of these."""
    preserved = state.world.preserved if state.world and not state.config.servers else slotset.NONE
    here = slotindex.present_slots(state) & ~slotindex.terminating_slots(state) & ~state.facts.has_problem
    if state.phase is WorldPhase.FORMING:
        here &= preserved | ~preserving.with_mates(state, missing_slots(state))
    is_missing = preserved & here and not slotset.has(here, STORE_SLOT)
    return slotset.first(preserved & here) if is_missing else STORE_SLOT


def offered_store(state: CoordinatorState) -> StoreOffer | None:
    """The store of the next world, once the agent of its slot offers it; None: not yet. Stores of earlier
    worlds are not reused: keys of dead ranks are in them."""
    agent = agent_of_slot(state, store_slot(state))
    offer = agent.report.store if agent else None
    return offer if offer and offer.world_id == state.next_world_id else None


def lost_store_evidence(state: CoordinatorState) -> tuple[Evidence, ...]:
    """Evidence that the store of the running world has ended while ranks that it starts beside others have
    made no step: they cannot join these without it. Empty: nothing of that kind is known. Where all ranks
    start together, the agent that held the store ends its own."""
    world = state.world
    world_id, slots = (world.plan.world_id, world.store_slots) if world else (None, slotset.NONE)
    agents = (agent_of_slot(state, slot) for slot in slotset.each(slots))
    lost = [agent.report.slot for agent in agents if agent and agent.report.lost_store == world_id]
    if not lost or not is_any_rank_joining(state):
        return ()
    text = (
        f"the TCPStore of world {world_id} has ended before all its ranks had joined the others; "
        "the log of the pod in slot {} says why it ended"
    )
    return tuple(Evidence(SIGNAL, Cause.SIGNAL, slot, text.format(slot)) for slot in lost)


def start_next_world(state: CoordinatorState, at: Moment) -> CoordinatorState:
    """The state in which the next world runs: its plan is in the orders from now on. Only without an
    obstacle.

    If ranks still have the state of the training in memory the plan names their generation (`origin`), and
    steps lost are known at once; otherwise they are once the checkpoint is restored. A pending grant stays if
    the rank that writes its manifest was preserved.
    """
    offer, desired, previous = offered_store(state), state.desired, state.world
    assert offer is not None
    assert desired is not None
    preserved, absent = previous.preserved if previous else slotset.NONE, absent_slots(state, at.now)
    has_state = bool(preserved or state.config.servers)
    resumes_in_memory = has_state and preserving.can_resume_in_memory(state)
    plan = Plan(
        world_id=state.next_world_id,
        attempt=desired.attempt,
        members=tuple(_next_member(state, slot, absent) for slot in range(state.config.slots)),
        store_host=offer.host,
        store_port=offer.port,
        restore=commits.restore_candidates(state),
        restart_count=state.restarts,
        origin=previous.plan.server_generation if previous and resumes_in_memory else None,
        started=_ranks_to_start(state, absent),
        replica_ranks=state.config.replica_ranks,
        absent=tuple(rank for slot in slotset.each(absent) for rank in state.config.ranks_of(slot)),
    )
    if previous and not resumes_in_memory:
        state = incidents.note_later_steps(state, previous.step)
    state = replace(
        state,
        numbers_used=state.numbers_used + 1,
        restarts=state.restarts + 1,
        grant=state.grant if slotset.has(preserved, state.config.lead_slot) else None,
    )
    world = FormedWorld(plan, at.now, confirmed=preserved)
    if previous and resumes_in_memory:
        lives_on = previous.deputy and slotset.has(preserved, previous.deputy.slot)
        deputy = previous.deputy if lives_on and slotset.has(absent, state.config.lead_slot) else None
        trains = previous.trains and state.fault is None  # nothing was wrong: others join
        world = replace(world, deputy=deputy, trains=trains)
    state = slotindex.enter_world(state, world, at.now)
    if previous and resumes_in_memory:
        state = incidents.count_lost_steps(state, previous.step)
    return enter_phase(incidents.record_stage(state, "planned", at), WorldPhase.RUNNING, at)


def _next_member(state: CoordinatorState, slot: int, absent: slotset.Slots) -> Member:
    """The member of the next plan in this slot, which must have an agent unless it is absent."""
    world, agent, processes = state.world, agent_of_slot(state, slot), state.config.processes_of(slot)
    if slotset.has(absent, slot):
        return Member.absent(slot, processes)
    assert agent is not None
    report = agent.report
    started_in = world.plan.started_in(slot) if world and slotset.has(world.preserved, slot) else None
    return Member(slot, report.incarnation, report.pod_uid, report.address, processes, started_in)


def wake_at(state: CoordinatorState, now: float) -> float | None:
    """Time at which the next Tick must come at the latest, always after `now`; None: only other events can
    change the state. The earliest of all times at which a condition changes; a Tick too many does no harm."""
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
