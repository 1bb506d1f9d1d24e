"""The agent's state machine: state and event in, next state and effects out. Pure and total.

Every event first updates the state (apply.py); then the same rules read the whole state, in this order, and
each brings one part of it nearer to the orders, so a lost, repeated or early event costs nothing:
  deadlines, exit       clocks of fence, hang, drain; reasons to exit
  keep ranks            a plan that names the world of the ranks here is theirs from now on
  end the world         ranks that the orders do not name are killed
  start a world         once no process of the previous one lives
  stores, ranks, checkpoints
Promises: ranks that two worlds started never live together; orders of a lower (term, boot) change nothing; a
rank's fault never ends the agent (but a process that only the container's end can kill does: 3); exit 0
only on `release`, 4 only when the job has failed; without an answer for fenceSeconds no rank lives.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

from ropeteam_trainer.agent.machine import hang
from ropeteam_trainer.agent.machine.apply import Stepped, apply_event
from ropeteam_trainer.agent.machine.effects import (
    ClaimRun,
    CloseStore,
    Effect,
    Exit,
    HostStore,
    KillRanks,
    Prune,
    SendToRank,
    ShowStacks,
    StartRanks,
    TerminateRanks,
    WarmUp,
    WriteManifest,
)
from ropeteam_trainer.agent.machine.environment import server_addresses
from ropeteam_trainer.agent.machine.events import Event
from ropeteam_trainer.agent.machine.state import RankState, State, World
from ropeteam_trainer.checkpoint.decisions.journal import Held
from ropeteam_trainer.contract.config import PodIdentity, WorkerConfig
from ropeteam_trainer.contract.local import ToRank
from ropeteam_trainer.contract.messages import EXIT_FAILED, Problem, StoreOffer
from ropeteam_trainer.contract.world import CheckpointRef, FailReason, Plan, ProcessExit, WorldId
from ropeteam_trainer.launchers import Launch

EXIT_DONE, EXIT_UNKILLABLE, EXIT_LEFT = 0, 3, 143
CLAIM_SECONDS = 300.0
"""Seconds for which a volume may be unavailable before another node is tried, as for ranks that restore. Less
than startSeconds, after which the other ranks of that world are killed, which is charged."""

_NO_WORLD = WorldId(0, 0, 0)
_MAX_LOST_STORES = 8
"""A plan that names one of them was made before its loss was reported: moments ago."""
_NOT_IN_POD = ProcessExit(None, None, killed=True, message="its process is no longer in this pod")


def initial(config: WorkerConfig, identity: PodIdentity, launch: Launch, now: float) -> State:
    return State(config, identity, launch, now=now, answered_at=now, feature_level=config.feature_level)


def step(state: State, event: Event, now: float) -> Stepped:
    """The next state, and effects. After Exit, the last effect, every event is ignored."""
    if state.exited:
        return state, ()
    state, effects = apply_event(replace(state, now=now), event)
    for rule in _RULES:
        state, more = rule(state)
        effects += more
    return state, effects


# ---- rules: deadlines and exit


def _fence(state: State) -> Stepped:
    """Fence an agent that had no answer for too long: another pod may get its slot. Only newly requested
    orders end it."""
    if state.awake_or_not - state.answered_at < state.config.timeouts.fence:
        return state, ()
    return replace(state, fenced=True, applied_orders=0), ()


def _decide_exit(state: State) -> Stepped:
    """Decide whether the agent exits, and with which code."""
    if state.exit_code is not None:
        return state, ()
    orders = state.orders
    if orders and orders.release and not orders.refused:
        return replace(state, exit_code=EXIT_DONE), ()
    if orders and orders.failed and not orders.refused:
        return replace(state, exit_code=EXIT_FAILED), ()
    if state.leave_by is None:
        return state, ()
    ordered = orders is not None and orders.leave
    isolated = not state.linked and state.awake_or_not - state.answered_at >= state.config.timeouts.lost
    idle = not state.linked and state.stopped
    if ordered or isolated or idle or state.now >= state.leave_by:
        return replace(state, exit_code=EXIT_LEFT), ()
    return state, ()


def _detect_hangs(state: State) -> Stepped:
    """Kill ranks that hang. Not while a pause is ordered: then ranks wait for each other on purpose."""
    world = state.world
    if world is None or world.killing or (state.orders and state.orders.pause == world.plan.world_id):
        return state, ()
    hung = []
    loss = None if _has_group(world) else _store_loss(state, world.plan)
    for rank in world.ranks:
        if why := _hang_exit(state, rank, loss):
            world = world.with_rank(replace(rank, killed_for=why))
            hung.append(rank.rank)
    if hung:
        return replace(state, world=world), (KillRanks(world.started_in, tuple(hung)),)
    requested = hang.with_stacks_requested(world, state.config.timeouts, state.feature_level, state.now)
    effects = (ShowStacks(world.started_in, world.alive),) if requested is not world else ()
    return replace(state, world=requested), effects


def _has_group(world: World) -> bool:
    """Whether ranks formed a group, and so are connected to their store: its loss is an error, not a wait."""
    return any(group.size >= world.plan.world_size for group in world.groups)


def _hang_exit(state: State, rank: RankState, loss: ProcessExit | None) -> ProcessExit | None:
    """The exit of a rank that hangs, or is going to: torch tries for half an hour to reach a store."""
    if loss and rank.started_at is not None and not rank.exit and not rank.killed_for:
        return loss
    return hang.hang_exit(rank, state.config.timeouts, state.feature_level, state.now)


def _terminate(state: State) -> Stepped:
    """Drain scripts that save by themselves: SIGTERM, and after drainSeconds SIGKILL."""
    world, orders = state.world, state.orders
    if world is None or orders is None or world.killing or not world.alive:
        return state, ()
    started_in = world.started_in
    if world.terminate_by is not None and state.now >= world.terminate_by:
        return replace(state, world=replace(world, killing=True)), (KillRanks(started_in, world.alive),)
    if world.terminate_by is None and orders.terminate and orders.pause == world.plan.world_id:
        deadline = state.now + state.config.timeouts.drain
        return replace(state, world=replace(world, terminate_by=deadline)), (
            TerminateRanks(started_in, world.alive),
        )
    return state, ()


# ---- rules: one world ends, the next begins


def _keep_ranks(state: State) -> Stepped:
    """Take the plan of a world that keeps exactly the ranks of this pod, in whatever state they are: a rank
    that has exited, or is being killed, is reported under the new world, and so replaced by the world after
    that.
    """
    plan, world = state.desired_plan, state.world
    if plan is None or world is None or plan.world_id <= world.plan.world_id:
        return state, ()
    if plan.started_in(state.identity.slot) != world.started_in:
        return state, ()
    return replace(state, world=replace(world, plan=plan)), ()


def _end_world(state: State) -> Stepped:
    world = state.world
    if world is None or world.killing or not world.alive or _runs_plan(world, state.desired_plan):
        return state, ()
    ranks = world.ranks
    why = _kill_all_reason(state)
    if why is not None:
        ranks = tuple(rank if rank.killed_for else replace(rank, killed_for=why) for rank in ranks)
    killed = replace(world, killing=True, ranks=ranks)
    return replace(state, world=killed), (KillRanks(world.started_in, world.alive),)


def _exit_unkillable(state: State) -> Stepped:
    """Exit if a process cannot be killed: it ends with this container, and another pod takes the slot. Not if
    the ranks exited cleanly: then the release ends it.
    """
    world = state.world
    if world is None or state.exit_code is not None:
        return state, ()
    unkilled = [rank.exit for rank in world.ranks if rank.alive and rank.unkillable and rank.exit]
    if not unkilled or (not world.killing and all(exit.clean for exit in unkilled)):
        return state, ()
    return replace(state, exit_code=EXIT_UNKILLABLE), ()


def _kill_all_reason(state: State) -> ProcessExit | None:
    if state.superseded:
        by = state.superseded
        message = f"superseded by term {by.term}: world {by} has claimed the checkpoint folder"
        return ProcessExit(None, None, fingerprint="superseded", message=message)
    if state.fenced:
        message = f"no coordinator answered for spec.recovery.fenceSeconds ({state.config.timeouts.fence} s)"
        return ProcessExit(None, None, fingerprint="fenced", message=message)
    return None


def _start_world(state: State) -> Stepped:
    plan, world = state.desired_plan, state.world
    if plan is None or not state.stopped or (world and plan.world_id <= world.plan.world_id):
        return state, ()
    slot = state.identity.slot
    ranks = tuple(RankState(rank) for rank in plan.ranks(slot))
    started_in = plan.started_in(slot)
    # The coordinator reads from this report that the plan keeps ranks, or names a store, that is gone.
    if loss := _store_loss(state, plan) if started_in == plan.world_id else _NOT_IN_POD:
        ranks = tuple(replace(rank, alive=False, exit=loss) for rank in ranks)
        return replace(state, world=World(plan, started_in, ranks)), ()
    if _is_lead(state) and not (state.held and state.held.claim.world_id == plan.world_id):
        return _claim(state, plan)
    restore = state.restore if _is_lead(state) else plan.restore
    return replace(state, world=World(plan, started_in, ranks)), (StartRanks(plan, state.may_fork, restore),)


def _claim(state: State, plan: Plan) -> Stepped:
    """Claim the run: storage decides between two worlds that cannot see each other. If it does not answer,
    the other ranks of this world wait for a start that does not come. Another pod may reach the storage; if
    none does, the job reports it."""
    world_id, since = state.claim_since or (None, state.now)
    if world_id != plan.world_id:
        since = state.now
        state = replace(state, claim_since=(plan.world_id, since))
    limit = min(CLAIM_SECONDS, state.config.timeouts.start / 2)
    if state.now - since > limit:
        return replace(state, problem=_claim_problem(state, limit)), ()
    if state.claiming or state.now < state.claim_retry_at:
        return state, ()
    return replace(_disk_busy(state), claiming=plan.world_id), (ClaimRun(plan),)


def _store_loss(state: State, plan: Plan) -> ProcessExit | None:
    """The exit of ranks whose store is lost: as if a signal had killed them. Only the pod that hosted the
    store knows of the loss. Parameter servers and commands that run once per pod do not use a store."""
    offer = StoreOffer(plan.world_id, plan.store_host, plan.store_port)
    if offer not in state.lost_stores or state.config.servers or state.launch.per_pod:
        return None
    text = f"the store of world {plan.world_id} at {offer.host}:{offer.port} has ended (see this pod's log)"
    return ProcessExit(None, signal.SIGKILL, message=text)


def _disk_busy(state: State) -> State:
    """The state with `disk_since` set, unless the disk was busy before."""
    return state if state.claiming or state.writing else replace(state, disk_since=state.now)


def _claim_problem(state: State, seconds: float) -> Problem:
    assert state.config.checkpoint is not None
    folder = state.config.checkpoint.directory
    text = (
        f"{folder} could not be claimed for {seconds:.0f} s (see the pod's log; without an error the disk "
        "hangs). Check spec.checkpoint.volume, and its mount on this node"
    )
    return Problem(FailReason.CHECKPOINT_NOT_WRITABLE, text, transient=True)


def _runs_plan(world: World | None, plan: Plan | None) -> bool:
    return world is not None and plan is not None and world.plan.hash == plan.hash


def _exit(state: State) -> Stepped:
    if state.exit_code is None or not state.may_end:
        return state, ()
    return replace(state, exited=True), (Exit(state.exit_code),)


# ---- rules: stores, zygote, ranks, checkpoints


def _host_stores(state: State) -> Stepped:
    """Host exactly the requested store, and that of the world that may live."""
    plan = state.desired_plan
    keep = {plan.world_id} if plan else set()
    if _may_serve(state) and state.orders and state.orders.host_store:
        keep.add(state.orders.host_store)
    surplus = tuple(sorted(state.requested_stores - keep))
    requested = state.requested_stores & keep
    stores = tuple(offer for offer in state.stores if offer.world_id in requested)
    lost = (*state.lost_stores, *(offer for offer in state.stores if offer not in stores))
    effects: tuple[Effect, ...] = tuple(CloseStore(world_id) for world_id in surplus)
    host = state.orders.host_store if state.orders else None
    if host in keep and host not in requested and state.now >= state.store_retry_at:
        requested |= {host}
        effects += (HostStore(host),)
    return replace(
        state, requested_stores=requested, stores=stores, lost_stores=lost[-_MAX_LOST_STORES:]
    ), effects


def _may_serve(state: State) -> bool:
    refused = state.orders is not None and bool(state.orders.refused)
    return (
        not refused
        and not state.fenced
        and state.exit_code is None
        and state.problem is None
        and not state.superseded
    )


def _warm_up(state: State) -> Stepped:
    """Warm the zygote once per world, for the next: after the first steps; until then ranks need the cores.

    This also replaces a zygote that died. Where ranks are known to be forkable (`start: Fork`; a pod that
    replaces another) the zygote is warmed before the first world, too.
    """
    world = state.world
    world_id = world.plan.world_id if world else _NO_WORLD
    if state.warmed == world_id or not state.may_fork or not _may_serve(state):
        return state, ()
    if world and state.uses_library and not all(rank.heartbeat.steps_here for rank in world.ranks):
        return state, ()
    return replace(state, warmed=world_id), (WarmUp(),)


def _send_to_ranks(state: State) -> Stepped:
    world, orders = state.world, state.orders
    if world is None or orders is None or world.killing:
        return state, ()
    paused = orders.pause == world.plan.world_id
    stop_at = orders.stop_at if paused else None
    is_preserved = world.plan.world_id != world.started_in
    servers = server_addresses(state.config, world.plan) if is_preserved else ()
    message = ToRank(paused, stop_at, _committed_step(state, world), servers)
    effects: tuple[Effect, ...] = ()
    for rank in world.ranks:
        if rank.alive and rank.has_library and rank.sent != message:
            world = world.with_rank(replace(rank, sent=message))
            effects += (SendToRank(world.started_in, rank.rank, message),)
    return replace(state, world=world), effects


def _committed_step(state: State, world: World) -> int | None:
    lineage = state.orders.lineage if state.orders else ()
    known = (*lineage[:1], state.committed) if state.committed else lineage[:1]
    world_id = world.plan.started_in(state.config.lead_slot)
    return max((ref.step for ref in known if ref and ref.world_id == world_id), default=None)


def _commit(state: State) -> Stepped:
    """Write the manifest of a grant once; drop shards that are committed."""
    world = state.world
    grant = (state.orders.grant if state.orders else None) or state.grant
    if world is None:
        return state, ()
    committed = _committed_step(state, world) or 0
    shards = tuple(shard for shard in world.shards if shard.step > committed)
    state = replace(state, world=replace(world, shards=shards))
    if grant is None or grant.ref.world_id != world.started_in:
        return state, ()
    held = _held_claim(state, world)
    if held is None or state.writing or state.now < state.write_retry_at or _same(grant.ref, state.committed):
        return state, ()
    return replace(_disk_busy(state), writing=grant.ref, grant=grant), (WriteManifest(held, grant),)


def _prune(state: State) -> Stepped:
    """Prune, only by the agent of the lead rank, and only while its world is the current one."""
    lineage = state.orders.lineage if state.orders else ()
    if not lineage or lineage == state.pruned or not _runs_plan(state.world, state.desired_plan):
        return state, ()
    held = _held_claim(state, state.world)
    if held is None:
        return state, ()
    return replace(state, pruned=lineage), (Prune(held, lineage),)


def _held_claim(state: State, world: World | None) -> Held | None:
    """The claim of this agent, if it is that of this world."""
    held = state.held if _is_lead(state) and not state.superseded else None
    return held if held and world and held.claim.world_id == world.started_in else None


def _is_lead(state: State) -> bool:
    return state.identity.slot == state.config.lead_slot and state.config.checkpoint is not None


def _same(one: CheckpointRef, other: CheckpointRef | None) -> bool:
    return other is not None and (one.step, one.world_id) == (other.step, other.world_id)


_RULES: tuple[Callable[[State], Stepped], ...] = (
    _fence,
    _decide_exit,
    _detect_hangs,
    _terminate,
    _keep_ranks,
    _exit_unkillable,
    _end_world,
    _start_world,
    _host_stores,
    _warm_up,
    _send_to_ranks,
    _commit,
    _prune,
    _exit,
)
