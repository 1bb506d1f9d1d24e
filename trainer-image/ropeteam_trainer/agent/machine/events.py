"""What an event tells an agent: the facts, before any conclusion is drawn (that is step.py). Pure."""

from __future__ import annotations

import signal
from dataclasses import replace

from ropeteam_trainer.agent.machine import childreports, hang
from ropeteam_trainer.agent.machine.effects import DropLink, Effect
from ropeteam_trainer.agent.machine.state import (
    BeatsRead,
    ClaimFailed,
    Event,
    LinkLost,
    LinkUp,
    ManifestFailed,
    ManifestWritten,
    OrdersReceived,
    ProblemFound,
    RankDying,
    RankExited,
    RankMessage,
    RanksStarted,
    RankState,
    RankUnburied,
    RunClaimed,
    RunSuperseded,
    StackShown,
    State,
    StoreDown,
    StoreUp,
    Terminated,
    Tick,
    World,
)
from ropeteam_trainer.contract.local import FromRank
from ropeteam_trainer.contract.messages import Orders, Problem, Shard
from ropeteam_trainer.contract.world import FailReason, ProcessExit

RETRY_SECONDS = 1.0
"""Between two tries to open a store or to write a manifest."""

_RESTORE = "ropeteam_trainer.checkpoint.decisions.restore."
_PROBLEMS = {f"{_RESTORE}CheckpointNotFound": FailReason.CHECKPOINT_NOT_FOUND}
"""Exceptions of our library that no restart mends."""
_STORAGE = {
    f"{_RESTORE}CheckpointUnavailable": "here",
    f"{_RESTORE}UnavailableElsewhere": "elsewhere",
    f"{_RESTORE}UnavailableEverywhere": "everywhere",
}
"""Exceptions of our library that say nothing against the script: ProcessExit.storage."""
_EARLY = "it ended before its script did, and its parameter servers wait for it"
_EARLY_SERVER = "it ended while workers need it: only these end a parameter server, when all have left"

Stepped = tuple[State, tuple[Effect, ...]]


def apply_event(state: State, event: Event) -> Stepped:
    match event:
        case OrdersReceived(orders, age):
            return _ordered(state, orders, age)
        case Terminated():
            leave_by = state.leave_by or state.now + state.config.timeouts.drain + 5
            return replace(state, leave_by=leave_by), ()
        case LinkUp():
            return replace(state, linked=True, orders_seen=0), ()
        case LinkLost():
            return replace(state, linked=False, orders_seen=0), ()
        case StoreUp(offer):
            stores = (*state.stores, offer) if offer.epoch in state.asked else state.stores
            return replace(state, stores=stores), ()
        case StoreDown(epoch):
            return replace(state, asked=state.asked - {epoch}, store_retry_at=state.now + RETRY_SECONDS), ()
        case ManifestWritten(ref):
            return replace(state, committed=ref, writing=None), ()
        case ManifestFailed(_):
            return replace(state, writing=None, write_retry_at=state.now + RETRY_SECONDS), ()
        case RunClaimed(_, held, restore, pasts):
            away = state.problem and state.problem.reason is FailReason.CHECKPOINT_NOT_WRITABLE
            problem = None if away else state.problem
            claimed = replace(state, held=held, restore=restore, pasts=pasts, claiming=None)
            return replace(claimed, problem=problem), ()
        case ClaimFailed(_):
            return replace(state, claiming=None, claim_retry_at=state.now + RETRY_SECONDS), ()
        case RunSuperseded(by) if by in (state.claiming, state.held and state.held.claim.epoch):
            return replace(state, writing=None), ()  # by our own next world
        case RunSuperseded(by):
            return replace(state, superseded=by, claiming=None, writing=None), ()
        case ProblemFound(problem):
            return replace(state, problem=problem), ()
        case Tick(asleep):
            return replace(state, asleep=asleep), ()
        case _:
            return _about_ranks(state, event), ()


def _ordered(state: State, orders: Orders, age: float) -> Stepped:
    """Any answer of a coordinator that is not superseded is a sign of life, also of one that has nothing to
    order because it waits for the operator: it will know of every replaced pod before it makes a plan.
    """
    if (orders.term, orders.boot) < (state.term, state.boot):
        # Not a sign of life of *our* coordinator: the fence clock goes on from where it was.
        why = f"orders of term {orders.term}.{orders.boot}, have seen {state.term}.{state.boot}"
        return replace(state, linked=False), (DropLink(why),)
    heard_at = max(state.heard_at, state.awake_or_not - age)
    state = replace(state, term=orders.term, boot=orders.boot, linked=True, heard_at=heard_at)
    if orders.same:
        return state, ()
    completed = orders.complete or state.completed
    if state.superseded and orders.term > state.superseded.term:
        state = replace(state, superseded=None)
    state = replace(state, orders=orders, orders_seen=orders.number)
    return replace(state, fenced=False, completed=completed), ()


def _about_ranks(
    state: State,
    event: RanksStarted | RankDying | RankExited | RankUnburied | RankMessage | StackShown | BeatsRead,
) -> State:
    world = state.world
    if world is None or event.epoch != world.born:
        return state  # late news of a world that is gone
    match event:
        case RanksStarted():
            ranks = tuple(replace(rank, started_at=state.now) for rank in world.ranks)
            return replace(state, world=replace(world, ranks=ranks))
        case BeatsRead(_, beats):
            ranks = tuple(
                hang.with_beat(rank, beats[rank.rank]) if rank.rank in beats else rank for rank in world.ranks
            )
            return replace(state, world=replace(world, ranks=ranks))
        case StackShown(_, number, stands):
            ranks = tuple(
                replace(rank, stands=stands) if rank.rank == number and rank.asked else rank
                for rank in world.ranks
            )
            return replace(state, world=replace(world, ranks=ranks))
        case RankDying(_, number, exit):
            return replace(state, world=_with_exit(state, world, number, exit, alive=True))
        case RankUnburied(_, number, exit, left):
            world = _with_exit(state, world, number, exit, alive=True)
            return replace(state, world=_unburied(world, number, left, state.launch.per_pod))
        case RankExited(_, number, exit):
            return replace(state, world=_with_exit(state, world, number, exit, alive=False))
        case _:
            said = event.said
            problem = state.problem
            if said.error_class in _PROBLEMS:
                problem = Problem(_PROBLEMS[said.error_class], said.message)
            rung = max(state.rung, said.rung or 0)
            return replace(
                state, rung=rung, problem=problem, world=_with_said(world, event.rank, said, state.now)
            )


def _with_exit(state: State, world: World, number: int, exit: ProcessExit, alive: bool) -> World:
    """A command that runs once per pod stands for all ranks of the pod.

    `killed`: by us. Not if it was dying already when the kill was ordered, nor if it was failing: a launcher
    takes its time to end, and a peer that failed in consequence may be reported before.
    """
    ending = (world.killing and exit.signal == signal.SIGKILL) or world.terminate_by is not None
    told = next((rank for rank in world.ranks if rank.rank == number), None)
    for rank in world.ranks:
        if told and rank.alive and (rank is told or state.launch.per_pod):
            ours = ending and (rank.exit is None or rank.exit.killed)
            failing = told.failing and state.now - told.error_at <= childreports.CHILD_SECONDS
            if ours and failing and world.terminate_by is None:
                ours, exit = False, replace(exit, code=1, signal=None)  # as Python ends for an exception
            heard_of = replace(rank, error=told.error, error_at=told.error_at, ended=told.ended)
            explained = _explained(state, replace(exit, killed=exit.killed or ours), heard_of)
            world = world.with_rank(replace(rank, alive=alive, exit=explained))
    return world


def _unburied(world: World, number: int, left: str, per_pod: bool) -> World:
    for rank in world.ranks:
        if rank.exit and (rank.rank == number or per_pod):
            message = "; ".join(word for word in (rank.exit.message, left) if word)
            world = world.with_rank(replace(rank, unburied=True, exit=replace(rank.exit, message=message)))
    return world


def _needed(state: State) -> str:
    """Why a rank of this pod may not end by itself before its script does. "": it may."""
    if not state.config.servers:
        return ""
    return _EARLY_SERVER if state.config.is_server(state.identity.slot) else _EARLY


def _explained(state: State, exit: ProcessExit, rank: RankState) -> ProcessExit:
    """Add why: the agent's own verdict, else what the rank said before it died, else nothing but how.

    A server that uses the library says when its workers have left: its script may reach its end too early.
    """
    needed, error = _needed(state), rank.error
    exit = replace(exit, reached_end=exit.reached_end or rank.beat.reached_end)
    if rank.killed_for and exit.code != 0:  # else it ended by itself, before our SIGKILL
        why = rank.killed_for
        return replace(
            exit, hung=why.hung, late_start=why.late_start, fingerprint=why.fingerprint, message=why.message
        )
    over = rank.left or (exit.reached_end and not (needed == _EARLY_SERVER and rank.has_library))
    if needed and exit.clean and not (exit.killed or over):
        return replace(exit, early=True, fingerprint="early end", message=needed)
    if exit.fingerprint or exit.clean:
        return exit
    if error and not exit.oom and childreports.explains(error, exit, state.now - rank.error_at):
        storage = _STORAGE.get(error.error_class, "")
        return replace(childreports.caused(exit, error, rank.rank, rank.ended), storage=storage)
    exit = replace(exit, fingerprint=exit.how)
    return childreports.of_a_shell(exit) if state.launch.per_pod else exit


def _with_said(world: World, number: int, said: FromRank, now: float) -> World:
    rank = next((rank for rank in world.ranks if rank.rank == number), None)
    if rank is None:
        return world
    if said.hello_pid is not None or said.rung is not None:
        rank = replace(rank, has_library=True)
    if said.joins:
        rank = replace(rank, joins=True)
    if said.paused is not None:
        rank = replace(rank, paused=said.paused)
    if said.drained is not None:
        rank = replace(rank, drained=said.drained)
    if said.left:
        rank = replace(rank, left=True)
    if said.served is not None:
        rank = replace(rank, served=said.served)
    if said.error_type is not None and childreports.better(rank.error, said):
        told = childreports.after(rank.error, said, now - rank.error_at)
        ending = world.killing or world.terminate_by is not None
        failing = rank.failing or (childreports.is_cause(told) and not ending)
        rank = replace(rank, error=told, error_at=now, failing=failing)
    if said.ended and rank.ended is None:
        rank = replace(rank, ended=said.rank)
    world = world.with_rank(rank)
    if said.group is not None:
        world = replace(world, groups=childreports.with_group(world.groups, number, said.group))
    if said.shard_step is not None:
        shard = Shard(number, world.born, said.shard_step, said.shard_files)
        others = tuple(s for s in world.shards if (s.rank, s.step) != (shard.rank, shard.step))
        world = replace(world, shards=(*others, shard))
    if rank is not world.ranks[0]:
        return replace(world, restored=said.restored or world.restored)
    return replace(
        world,
        restored=said.restored or world.restored,
        total_steps=said.total_steps if said.total_steps is not None else world.total_steps,
        loss=said.loss if said.loss is not None else world.loss,
    )
