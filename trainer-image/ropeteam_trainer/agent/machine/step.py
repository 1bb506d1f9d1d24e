"""The agent's state machine: state and event in, next state and effects out. Pure and total.

Every event first updates the state (apply.py). Then the rules (`_RULES`) read the whole state, in this order,
and each brings one part of it nearer to the orders, so a lost, repeated or early event costs nothing:
  deadlines, exit       clocks of fence, hang, drain; reasons to exit
  end lost ranks        ranks without which all others continue are killed
  adopt a plan          a plan that names the world of the ranks here is theirs from now on
  end the world         ranks that the orders do not name are killed
  start a world         once no process of the previous one lives
  stores, zygote, messages to ranks (keepingrules.py), checkpoints (checkpointrules.py)
  exit                  once all ranks are dead
Each rule returns the next state and its effects; a state that it does not change, without effects, means that
there is nothing to do.
Promises: ranks that two worlds started never live together; orders of a lower (term, boot) change nothing; a
rank's fault never ends the agent, except a process that only the end of the container can kill (exit code 3);
exit 0 only on `release`, 4 only when the job has failed; without an answer for fenceSeconds ranks are killed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

from ropeteam_trainer.agent.machine import checkpointrules, hang, keepingrules
from ropeteam_trainer.agent.machine.apply import Stepped, apply_event
from ropeteam_trainer.agent.machine.effects import (
    CloseStore,
    Effect,
    Exit,
    HostStore,
    KillRanks,
    ShowStacks,
    StartRanks,
    TerminateRanks,
    WarmUp,
)
from ropeteam_trainer.agent.machine.events import Event
from ropeteam_trainer.agent.machine.state import AgentState, LocalWorld, RankState
from ropeteam_trainer.contract.config import PodIdentity, WorkerConfig
from ropeteam_trainer.contract.messages import EXIT_FAILED
from ropeteam_trainer.contract.world import Plan, ProcessExit, WorldId
from ropeteam_trainer.launchers import Launch

EXIT_DONE, EXIT_UNKILLABLE, EXIT_TERMINATED = 0, 3, 143
"""Exit codes of the agent, besides EXIT_FAILED; 143: as a process that SIGTERM has ended."""
_NO_WORLD = WorldId(0, 0, 0)
"""Below every world: the zygote was warmed before the first one."""
_MAX_LOST_STORES = 8
"""A plan that names one of them was made before its loss was reported: moments ago."""
_NOT_IN_POD = ProcessExit(
    None, None, killed=True, message="this plan keeps the rank running, but its process is not in the pod"
)


def initial_state(config: WorkerConfig, identity: PodIdentity, launch: Launch, now: float) -> AgentState:
    """The state of an agent that has just started. The fence clock starts now: no ranks live yet."""
    return AgentState(config, identity, launch, now=now, answered_at=now, feature_level=config.feature_level)


def step(state: AgentState, event: Event, now: float) -> Stepped:
    """The next state, and effects in the order in which they must be carried out. Exit is the last of all
    effects: after it every event is ignored. `now` must not decrease."""
    if state.exited:
        return state, ()
    state, effects = apply_event(replace(state, now=now), event)
    for rule in _RULES:
        state, more = rule(state)
        effects += more
    return state, effects


# ---- rules: deadlines and exit


def _fence(state: AgentState) -> Stepped:
    """Fence an agent that had no answer for fenceSeconds: another pod may have its slot by now. New orders
    end the fence; `applied_orders` 0 requests them, because those known here may be stale."""
    if state.now_with_suspension - state.answered_at < state.config.timeouts.fence:
        return state, ()
    return replace(state, fenced=True, applied_orders=0), ()


def _decide_exit(state: AgentState) -> Stepped:
    """Decide whether the agent exits, and with which code; a decision is never changed.

    First match wins: the job is complete, the job has failed, then SIGTERM. After SIGTERM it exits when the
    coordinator orders it, when there is no coordinator to wait for, or at `exit_by`. `_exit` follows once all
    ranks are dead. Orders of an agent that is no member (`refused`) never mean success or failure.
    """
    if state.exit_code is not None:
        return state, ()
    orders = state.orders
    if orders and orders.release and not orders.refused:
        return replace(state, exit_code=EXIT_DONE), ()
    if orders and orders.failed and not orders.refused:
        return replace(state, exit_code=EXIT_FAILED), ()
    if state.exit_by is None:
        return state, ()
    ordered = orders is not None and orders.leave
    silence = state.now_with_suspension - state.answered_at
    isolated = not state.linked and silence >= state.config.timeouts.lost
    idle = not state.linked and state.stopped
    if ordered or isolated or idle or state.now >= state.exit_by:
        return replace(state, exit_code=EXIT_TERMINATED), ()
    return state, ()


def _detect_hangs(state: AgentState) -> Stepped:
    """Kill ranks that hang, and ranks that wait for a store that has exited. When a rank comes near its
    limit, request all stacks. Not while a pause is ordered: then ranks wait for each other on purpose."""
    world = state.world
    if world is None or world.killing or (state.orders and state.orders.pause == world.plan.world_id):
        return state, ()
    hung = []
    loss = None if _needs_no_store(world) else _store_loss_exit(state, world.plan)
    for rank in world.ranks:
        if why := _hang_exit(state, rank, loss):
            world = world.with_rank(replace(rank, killed_for=why))
            hung.append(rank.rank)
    if hung:
        return replace(state, world=world), (KillRanks(world.started_in, tuple(hung)),)
    requested = hang.with_stacks_requested(world, state.config.timeouts, state.feature_level, state.now)
    effects = (ShowStacks(world.started_in, world.alive_ranks),) if requested is not world else ()
    return replace(state, world=requested), effects


def _needs_no_store(world: LocalWorld) -> bool:
    """Whether the loss of the store ends no rank here: a process group of all ranks has formed, or some live
    on from an earlier world.

    With a group they are connected to their store, so its loss is an error of theirs. Before, torch would try
    for half an hour to reach it. Where some live on, the coordinator knows whether all others have joined
    them (`AgentReport.lost_store`).
    """
    return bool(world.plan.started or world.plan.absent) or any(
        group.size >= world.plan.world_size for group in world.groups
    )


def _hang_exit(state: AgentState, rank: RankState, loss: ProcessExit | None) -> ProcessExit | None:
    """`RankState.killed_for` of a rank that hangs, or that would hang because its store is lost (`loss`).
    None: it does not."""
    if loss and rank.started_at is not None and not rank.exit and not rank.killed_for:
        return loss
    return hang.hang_exit(rank, state.config.timeouts, state.feature_level, state.now)


def _drain_by_signal(state: AgentState) -> Stepped:
    """Drain ranks that save by themselves, where orders request it: SIGTERM, and after drainSeconds SIGKILL,
    also if the orders have changed since."""
    world, orders = state.world, state.orders
    if world is None or orders is None or world.killing or not world.alive_ranks:
        return state, ()
    started_in = world.started_in
    if world.terminate_by is not None and state.now >= world.terminate_by:
        return replace(state, world=replace(world, killing=True)), (KillRanks(started_in, world.alive_ranks),)
    if world.terminate_by is None and orders.terminate and orders.pause == world.plan.world_id:
        deadline = state.now + state.config.timeouts.drain
        return replace(state, world=replace(world, terminate_by=deadline)), (
            TerminateRanks(started_in, world.alive_ranks),
        )
    return state, ()


# ---- rules: one world ends, the next begins


def _end_world(state: AgentState) -> Stepped:
    """Kill all ranks of a world that is not the desired one. If that is because of a fence or a newer world,
    their exits say so; otherwise they are a consequence of the orders (`ProcessExit.killed`)."""
    world = state.world
    if world is None or world.killing or not world.alive_ranks or state.runs_desired_plan:
        return state, ()
    if keepingrules.plan_that_keeps_ranks(state):  # it will be adopted
        return state, ()
    ranks = world.ranks
    why = _isolation_exit(state)
    if why is not None:
        ranks = tuple(rank if rank.killed_for else replace(rank, killed_for=why) for rank in ranks)
    killed = replace(world, killing=True, ranks=ranks)
    return replace(state, world=killed), (KillRanks(world.started_in, world.alive_ranks),)


def _decide_unkillable_exit(state: AgentState) -> Stepped:
    """Decide to exit if a process cannot be killed: it ends with this container, and another pod takes the
    slot. Not if all such ranks had exited cleanly by themselves: then the release ends the container. A
    plan that starts lost ranks again waits for their end.
    """
    world = state.world
    if world is None or state.exit_code is not None:
        return state, ()
    unkilled = [rank.exit for rank in world.ranks if rank.alive and rank.unkillable and rank.exit]
    ends = world.killing or any(rank.is_lost for rank in world.ranks)
    if not unkilled or (not ends and all(exit.clean for exit in unkilled)):
        return state, ()
    return replace(state, exit_code=EXIT_UNKILLABLE), ()


def _isolation_exit(state: AgentState) -> ProcessExit | None:
    """`RankState.killed_for` of ranks that may not live because other pods may train now. None: nothing of
    that kind."""
    if state.superseded:
        by = state.superseded
        message = (
            f"superseded by term {by.term}: world {by}, a newer one of this job, has claimed the checkpoint "
            "folder, so this rank was killed. Nothing to do: if no newer world runs, the operator starts a "
            "new coordinator"
        )
        return ProcessExit(None, None, fingerprint="superseded", message=message)
    if state.fenced:
        message = (
            f"no coordinator answered for spec.recovery.fenceSeconds ({state.config.timeouts.fence} s), so "
            "the agent killed this rank; check that the coordinator's pod runs and that this node reaches it"
        )
        return ProcessExit(None, None, fingerprint="fenced", message=message)
    return None


def _start_world(state: AgentState) -> Stepped:
    """Start the ranks of a newer plan once no process of the previous world lives.

    First match wins: if the plan keeps ranks that are not here, or its store is lost, all ranks count as
    exited, which the coordinator reads from the report. Then the agent of the lead rank claims the folder,
    and this rule is evaluated again when that is done. Then ranks are started. The lead rank chooses from
    the checkpoints that the claim found on disk; the others restore the one that it chose.
    """
    plan, world = state.desired_plan, state.world
    if plan is None or not state.stopped or (world and plan.world_id <= world.plan.world_id):
        return state, ()
    slot = state.identity.slot
    ranks = tuple(RankState(rank) for rank in plan.ranks(slot))
    started_in = plan.started_in(slot)
    if loss := _store_loss_exit(state, plan) if started_in == plan.world_id else _NOT_IN_POD:
        ranks = tuple(replace(rank, alive=False, exit=loss) for rank in ranks)
        return replace(state, world=LocalWorld(plan, started_in, ranks)), ()
    if checkpointrules.needs_claim(state, plan):
        return checkpointrules.request_claim(state, plan)
    restore = state.restore if checkpointrules.is_lead_agent(state) else plan.restore
    return replace(state, world=LocalWorld(plan, started_in, ranks)), (
        StartRanks(plan, tuple(rank.rank for rank in ranks), state.may_fork, restore),
    )


def _store_loss_exit(state: AgentState, plan: Plan) -> ProcessExit | None:
    """The exit of ranks whose store is lost: as if SIGKILL had ended them. None: no loss is known."""
    if not state.has_lost_store_of(plan):
        return None
    text = (
        f"the TCPStore of world {plan.world_id} at {plan.store_host}:{plan.store_port} has ended, so its "
        f"ranks cannot form a process group; the log of the pod in slot {state.identity.slot} says why it "
        "ended"
    )
    return ProcessExit(None, signal.SIGKILL, message=text)


def _exit(state: AgentState) -> Stepped:
    """Exit as decided, once every rank is dead or cannot be killed. Last of the rules."""
    if state.exit_code is None or not state.may_exit:
        return state, ()
    return replace(state, exited=True), (Exit(state.exit_code),)


# ---- rules: stores, zygote, messages to ranks


def _host_stores(state: AgentState) -> Stepped:
    """Host exactly the store that orders request, and keep that of the desired plan; close all others.

    Order: close -> forget the offers of stores that are not requested any more -> open one. A store that was
    offered and is gone, for whatever reason, is remembered as lost. One that failed is opened again after a
    pause.
    """
    plan = state.desired_plan
    keep = {plan.world_id} if plan else set()
    if state.world and keepingrules.plan_that_keeps_ranks(state):  # not adopted yet
        keep.add(state.world.plan.world_id)
    if _may_start_services(state) and state.orders and state.orders.host_store:
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


def _may_start_services(state: AgentState) -> bool:
    """Whether stores and the zygote may be started: this pod is a member of the job that can run ranks."""
    refused = state.orders is not None and bool(state.orders.refused)
    return (
        not refused
        and not state.fenced
        and state.exit_code is None
        and state.problem is None
        and not state.superseded
    )


def _warm_zygote(state: AgentState) -> Stepped:
    """Warm the zygote once per world, for the next one: after the first step of all ranks, because until then
    they need the cores. This also replaces a zygote that died.

    Before the first world it is warmed only if ranks are known to be forked (`start: Fork`, or a pod that
    replaces one whose script uses the library).
    """
    world = state.world
    world_id = world.plan.world_id if world else _NO_WORLD
    if state.warmed == world_id or not state.may_fork or not _may_start_services(state):
        return state, ()
    if world and state.uses_library and not all(rank.heartbeat.steps_here for rank in world.ranks):
        return state, ()
    return replace(state, warmed=world_id), (WarmUp(),)


_RULES: tuple[Callable[[AgentState], Stepped], ...] = (
    _fence,
    _decide_exit,
    _detect_hangs,
    _drain_by_signal,
    keepingrules.end_lost_ranks,
    keepingrules.adopt_plan,
    _decide_unkillable_exit,
    _end_world,
    _start_world,
    _host_stores,
    _warm_zygote,
    keepingrules.send_to_ranks,
    checkpointrules.claim_as_deputy,
    checkpointrules.write_manifest,
    checkpointrules.prune,
    _exit,
)
"""In this order, after every event."""
