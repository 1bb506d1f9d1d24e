"""What an agent does: state and event in, next state and effects out. Pure and total.

Every event first updates what is known (events.py); then the same rules look at the whole, in this order, and
each brings one thing nearer to what the orders say, so a lost, doubled or early event costs nothing:
  deadlines, leaving    clocks of fence, hang, drain; reasons to exit
  keep ranks            a plan that names the epoch of the ranks here is theirs from now on
  end the world         ranks that the orders do not name are killed
  start a world         once nothing of the former one lives
  stores, ranks, checkpoints
Promises: ranks that two epochs started never live together; orders of a lower (term, boot) change nothing; a
rank's fault never ends the agent (but what cannot be killed, except by the container's end, does: 3); exit 0
only on `release`, 4 only when the job has failed; without an answer for fenceSeconds no rank lives.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

from ropeteam_trainer.agent.machine import hang
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
from ropeteam_trainer.agent.machine.events import Stepped, apply_event
from ropeteam_trainer.agent.machine.state import Event, RankState, State, World
from ropeteam_trainer.checkpoint.decisions.journal import Held
from ropeteam_trainer.contract.config import PodIdentity, WorkerConfig
from ropeteam_trainer.contract.local import ToRank
from ropeteam_trainer.contract.messages import EXIT_FAILED, Problem, StoreOffer
from ropeteam_trainer.contract.world import CheckpointRef, Epoch, FailReason, Plan, ProcessExit
from ropeteam_trainer.launchers import Launch

EXIT_DONE, EXIT_UNBURIED, EXIT_LEFT = 0, 3, 143
CLAIM_SECONDS = 300.0
"""How long a volume may be away before another node is tried, as for ranks that restore. The other ranks of
that world are ended after startSeconds, and that is charged: it has to be less."""

_NONE_YET = Epoch(0, 0, 0)
_LOST_STORES_KNOWN = 8
"""A plan that names one was made before its loss was told: moments ago."""
_NOT_HERE = ProcessExit(None, None, killed=True, message="it does not live in this pod any more")


def initial(config: WorkerConfig, identity: PodIdentity, launch: Launch, now: float) -> State:
    return State(config, identity, launch, now=now, heard_at=now, rung=config.rung)


def step(state: State, event: Event, now: float) -> Stepped:
    """The one entrance. After Exit, the last effect, nothing happens any more."""
    if state.exited:
        return state, ()
    state, effects = apply_event(replace(state, now=now), event)
    for rule in _RULES:
        state, more = rule(state)
        effects += more
    return state, effects


# ---- rules: deadlines and leaving


def _fence(state: State) -> Stepped:
    """Unanswered for too long: somebody else may be given our place. Only orders that are asked for anew end
    it."""
    if state.awake_or_not - state.heard_at < state.config.timeouts.fence:
        return state, ()
    return replace(state, fenced=True, orders_seen=0), ()


def _leave(state: State) -> Stepped:
    """When may this process end, and with which code?"""
    if state.exit_code is not None:
        return state, ()
    orders = state.orders
    if orders and orders.release and not orders.refused:
        return replace(state, exit_code=EXIT_DONE), ()
    if orders and orders.failed and not orders.refused:
        return replace(state, exit_code=EXIT_FAILED), ()
    if state.leave_by is None:
        return state, ()
    told = orders is not None and orders.leave
    alone = not state.linked and state.awake_or_not - state.heard_at >= state.config.timeouts.lost
    idle = not state.linked and state.stopped
    if told or alone or idle or state.now >= state.leave_by:
        return replace(state, exit_code=EXIT_LEFT), ()
    return state, ()


def _detect_hangs(state: State) -> Stepped:
    """Kill ranks that are stuck. Not while a pause is ordered: then ranks wait for each other on purpose."""
    world = state.world
    if world is None or world.killing or (state.orders and state.orders.pause == world.plan.epoch):
        return state, ()
    stuck = []
    loss = None if _have_met(world) else _store_loss(state, world.plan)
    for rank in world.ranks:
        if why := _verdict(state, rank, loss):
            world = world.with_rank(replace(rank, killed_for=why))
            stuck.append(rank.rank)
    if stuck:
        return replace(state, world=world), (KillRanks(world.born, tuple(stuck)),)
    asked = hang.asked(world, state.config.timeouts, state.rung, state.now)
    effects = (ShowStacks(world.born, world.alive),) if asked is not world else ()
    return replace(state, world=asked), effects


def _have_met(world: World) -> bool:
    """Its ranks are connected to their store: who asks it from now on gets an error, and does not wait."""
    return any(group.size >= world.plan.world_size for group in world.groups)


def _verdict(state: State, rank: RankState, loss: ProcessExit | None) -> ProcessExit | None:
    """Why this rank makes no progress, or will not: torch tries for half an hour to reach a store."""
    if loss and rank.started_at is not None and not rank.exit and not rank.killed_for:
        return loss
    return hang.verdict(rank, state.config.timeouts, state.rung, state.now)


def _terminate(state: State) -> Stepped:
    """A drain of scripts that save by themselves: SIGTERM, and after drainSeconds SIGKILL."""
    world, orders = state.world, state.orders
    if world is None or orders is None or world.killing or not world.alive:
        return state, ()
    born = world.born
    if world.terminate_by is not None and state.now >= world.terminate_by:
        return replace(state, world=replace(world, killing=True)), (KillRanks(born, world.alive),)
    if world.terminate_by is None and orders.terminate and orders.pause == world.plan.epoch:
        deadline = state.now + state.config.timeouts.drain
        return replace(state, world=replace(world, terminate_by=deadline)), (
            TerminateRanks(born, world.alive),
        )
    return state, ()


# ---- rules: one world ends, the next begins


def _keep_ranks(state: State) -> Stepped:
    """The next world keeps the ranks that are here, if it means these very ones, in whatever state they are:
    a rank that has died, or is being killed, is told of under the new epoch, and so replaced by the world
    after that.
    """
    plan, world = state.wanted, state.world
    if plan is None or world is None or plan.epoch <= world.plan.epoch:
        return state, ()
    if plan.born(state.identity.slot) != world.born:
        return state, ()
    return replace(state, world=replace(world, plan=plan)), ()


def _end_world(state: State) -> Stepped:
    world = state.world
    if world is None or world.killing or not world.alive or _is(world, state.wanted):
        return state, ()
    ranks = world.ranks
    why = _why_none_may_live(state)
    if why is not None:
        ranks = tuple(rank if rank.killed_for else replace(rank, killed_for=why) for rank in ranks)
    killed = replace(world, killing=True, ranks=ranks)
    return replace(state, world=killed), (KillRanks(world.born, world.alive),)


def _give_up(state: State) -> Stepped:
    """What cannot be killed ends with this container, and another pod takes the slot. Not if a rank was done:
    then the release ends it.
    """
    world = state.world
    if world is None or state.exit_code is not None:
        return state, ()
    left = [rank.exit for rank in world.ranks if rank.alive and rank.unburied and rank.exit]
    if not left or (not world.killing and all(exit.clean for exit in left)):
        return state, ()
    return replace(state, exit_code=EXIT_UNBURIED), ()


def _why_none_may_live(state: State) -> ProcessExit | None:
    if state.superseded:
        by = state.superseded
        message = f"superseded by term {by.term}: world {by} has claimed the folder of checkpoints"
        return ProcessExit(None, None, fingerprint="superseded", message=message)
    if state.fenced:
        message = f"no answer of a coordinator for fenceSeconds ({state.config.timeouts.fence} s)"
        return ProcessExit(None, None, fingerprint="fenced", message=message)
    return None


def _start_world(state: State) -> Stepped:
    plan, world = state.wanted, state.world
    if plan is None or not state.stopped or (world and plan.epoch <= world.plan.epoch):
        return state, ()
    slot = state.identity.slot
    ranks = tuple(RankState(rank) for rank in plan.ranks(slot))
    born = plan.born(slot)
    # If it keeps ranks that are not here, or names a store that has ended, it will learn so from this.
    if dead := _store_loss(state, plan) if born == plan.epoch else _NOT_HERE:
        ranks = tuple(replace(rank, alive=False, exit=dead) for rank in ranks)
        return replace(state, world=World(plan, born, ranks)), ()
    if _leads(state) and not (state.held and state.held.claim.epoch == plan.epoch):
        return _claim(state, plan)
    restore = state.restore if _leads(state) else plan.restore
    return replace(state, world=World(plan, born, ranks)), (StartRanks(plan, state.may_fork, restore),)


def _claim(state: State, plan: Plan) -> Stepped:
    """The storage decides between two worlds that do not know of each other. If it does not answer, the other
    ranks of this world wait in vain: another pod may reach it, and if none does, the job says so."""
    epoch, since = state.claim_since or (None, state.now)
    if epoch != plan.epoch:
        since = state.now
        state = replace(state, claim_since=(plan.epoch, since))
    patience = min(CLAIM_SECONDS, state.config.timeouts.start / 2)
    if state.now - since > patience:
        return replace(state, problem=_unclaimed(state, patience)), ()
    if state.claiming or state.now < state.claim_retry_at:
        return state, ()
    return replace(_busy(state), claiming=plan.epoch), (ClaimRun(plan),)


def _store_loss(state: State, plan: Plan) -> ProcessExit | None:
    """Only the pod that held it knows, and tells by the end of its ranks. As a rank that a signal kills.
    Parameter servers and commands that run once per pod do not use it."""
    offer = StoreOffer(plan.epoch, plan.store_host, plan.store_port)
    if offer not in state.lost_stores or state.config.servers or state.launch.per_pod:
        return None
    text = f"the store of world {plan.epoch} at {offer.host}:{offer.port} has ended (this pod's log says why)"
    return ProcessExit(None, signal.SIGKILL, message=text)


def _busy(state: State) -> State:
    """The disk has something to do, from now on or for longer."""
    return state if state.claiming or state.writing else replace(state, disk_since=state.now)


def _unclaimed(state: State, seconds: float) -> Problem:
    assert state.config.checkpoint is not None
    folder = state.config.checkpoint.directory
    text = (
        f"{folder} could not be claimed for {seconds:.0f} s (the pod's log says why, or the disk hangs). "
        "See to spec.checkpoint.volume, and to its mount on this node"
    )
    return Problem(FailReason.CHECKPOINT_NOT_WRITABLE, text, passing=True)


def _is(world: World | None, plan: Plan | None) -> bool:
    return world is not None and plan is not None and world.plan.hash == plan.hash


def _exit(state: State) -> Stepped:
    if state.exit_code is None or not state.may_end:
        return state, ()
    return replace(state, exited=True), (Exit(state.exit_code),)


# ---- rules: stores, zygote, ranks, checkpoints


def _hold_stores(state: State) -> Stepped:
    """Exactly the store that is asked for, and that of the world that may live."""
    wanted = state.wanted
    keep = {wanted.epoch} if wanted else set()
    if _may_serve(state) and state.orders and state.orders.host_store:
        keep.add(state.orders.host_store)
    surplus = tuple(sorted(state.asked - keep))
    asked = state.asked & keep
    stores = tuple(offer for offer in state.stores if offer.epoch in asked)
    lost = (*state.lost_stores, *(offer for offer in state.stores if offer not in stores))
    effects: tuple[Effect, ...] = tuple(CloseStore(epoch) for epoch in surplus)
    host = state.orders.host_store if state.orders else None
    if host in keep and host not in asked and state.now >= state.store_retry_at:
        asked |= {host}
        effects += (HostStore(host),)
    return replace(state, asked=asked, stores=stores, lost_stores=lost[-_LOST_STORES_KNOWN:]), effects


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
    """Once per world, for the next one: after the first steps, because until then ranks need the cores.

    It replaces a zygote that died. Where it is known that ranks may be forked (`start: Fork`; a pod that
    replaces another) it comes before the first world, too.
    """
    world = state.world
    epoch = world.plan.epoch if world else _NONE_YET
    if state.warmed == epoch or not state.may_fork or not _may_serve(state):
        return state, ()
    uses_library = state.rung >= 1  # others never tell of a step
    if world and uses_library and not all(rank.beat.steps_here for rank in world.ranks):
        return state, ()
    return replace(state, warmed=epoch), (WarmUp(),)


def _tell_ranks(state: State) -> Stepped:
    world, orders = state.world, state.orders
    if world is None or orders is None or world.killing:
        return state, ()
    paused = orders.pause == world.plan.epoch
    stop_at = orders.stop_at if paused else None
    moved = world.plan.epoch != world.born
    servers = server_addresses(state.config, world.plan) if moved else ()
    message = ToRank(paused, stop_at, _committed_step(state, world), servers)
    effects: tuple[Effect, ...] = ()
    for rank in world.ranks:
        if rank.alive and rank.has_library and rank.told != message:
            world = world.with_rank(replace(rank, told=message))
            effects += (SendToRank(world.born, rank.rank, message),)
    return replace(state, world=world), effects


def _committed_step(state: State, world: World) -> int | None:
    lineage = state.orders.lineage if state.orders else ()
    known = (*lineage[:1], state.committed) if state.committed else lineage[:1]
    epoch = world.plan.born(state.config.lead_slot)
    return max((ref.step for ref in known if ref and ref.epoch == epoch), default=None)


def _commit(state: State) -> Stepped:
    """Write the manifest of a grant once; drop shards that are committed."""
    world = state.world
    grant = (state.orders.grant if state.orders else None) or state.grant
    if world is None:
        return state, ()
    committed = _committed_step(state, world) or 0
    shards = tuple(shard for shard in world.shards if shard.step > committed)
    state = replace(state, world=replace(world, shards=shards))
    if grant is None or grant.ref.epoch != world.born:
        return state, ()
    held = _held(state, world)
    if held is None or state.writing or state.now < state.write_retry_at or _same(grant.ref, state.committed):
        return state, ()
    return replace(_busy(state), writing=grant.ref, grant=grant), (WriteManifest(held, grant),)


def _prune(state: State) -> Stepped:
    """Only the agent of the leading rank, and only while its world is the current one."""
    lineage = state.orders.lineage if state.orders else ()
    if not lineage or lineage == state.pruned or not _is(state.world, state.wanted):
        return state, ()
    held = _held(state, state.world)
    if held is None:
        return state, ()
    return replace(state, pruned=lineage), (Prune(held, lineage),)


def _held(state: State, world: World | None) -> Held | None:
    """Our claim, if it is that of this world."""
    held = state.held if _leads(state) and not state.superseded else None
    return held if held and world and held.claim.epoch == world.born else None


def _leads(state: State) -> bool:
    return state.identity.slot == state.config.lead_slot and state.config.checkpoint is not None


def _same(one: CheckpointRef, other: CheckpointRef | None) -> bool:
    return other is not None and (one.step, one.epoch) == (other.step, other.epoch)


_RULES: tuple[Callable[[State], Stepped], ...] = (
    _fence,
    _leave,
    _detect_hangs,
    _terminate,
    _keep_ranks,
    _give_up,
    _end_world,
    _start_world,
    _hold_stores,
    _warm_up,
    _tell_ranks,
    _commit,
    _prune,
    _exit,
)
