"""The facts of an event, applied to the state; step.py draws the conclusions. Pure."""

from __future__ import annotations

import signal
from dataclasses import replace

from ropeteam_trainer.agent.machine import childreports, hang
from ropeteam_trainer.agent.machine.effects import DropLink, Effect
from ropeteam_trainer.agent.machine.events import (
    ClaimFailed,
    Event,
    HeartbeatsRead,
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
    RankUnkillable,
    RunClaimed,
    RunSuperseded,
    StackShown,
    StoreDown,
    StoreUp,
    Terminated,
    Tick,
)
from ropeteam_trainer.agent.machine.state import RankState, State, World
from ropeteam_trainer.contract.local import FromRank
from ropeteam_trainer.contract.messages import Orders, Problem, Shard
from ropeteam_trainer.contract.world import FailReason, ProcessExit

RETRY_SECONDS = 1.0
"""Pause between two attempts to open a store or to write a manifest."""

_OURS = "ropeteam_trainer.checkpoint."
"""Package of the exceptions below. The image's library may be of a release with other modules in it."""
_PROBLEMS = {"CheckpointNotFound": FailReason.CHECKPOINT_NOT_FOUND}
"""Exceptions of our library that no restart repairs."""
_STORAGE = {
    "CheckpointUnavailable": "here",
    "UnavailableElsewhere": "elsewhere",
    "UnavailableEverywhere": "everywhere",
}
"""Exceptions of our library that are no fault of the script: ProcessExit.storage."""
_EARLY = "it ended before its script did, and its parameter servers wait for it"
_EARLY_SERVER = "it ended while workers need it: a parameter server ends only when all workers have left"

Stepped = tuple[State, tuple[Effect, ...]]


def apply_event(state: State, event: Event) -> Stepped:
    match event:
        case OrdersReceived(orders, age):
            return _apply_orders(state, orders, age)
        case Terminated():
            leave_by = state.leave_by or state.now + state.config.timeouts.drain + 5
            return replace(state, leave_by=leave_by), ()
        case LinkUp():
            return replace(state, linked=True, applied_orders=0), ()
        case LinkLost():
            return replace(state, linked=False, applied_orders=0), ()
        case StoreUp(offer):
            stores = (*state.stores, offer) if offer.world_id in state.requested_stores else state.stores
            return replace(state, stores=stores), ()
        case StoreDown(world_id):
            return replace(
                state,
                requested_stores=state.requested_stores - {world_id},
                store_retry_at=state.now + RETRY_SECONDS,
            ), ()
        case ManifestWritten(ref):
            return replace(state, committed=ref, writing=None), ()
        case ManifestFailed(_):
            return replace(state, writing=None, write_retry_at=state.now + RETRY_SECONDS), ()
        case RunClaimed(_, held, restore, ancestors):
            was_unavailable = state.problem and state.problem.reason is FailReason.CHECKPOINT_NOT_WRITABLE
            problem = None if was_unavailable else state.problem
            claimed = replace(state, held=held, restore=restore, ancestors=ancestors, claiming=None)
            return replace(claimed, problem=problem), ()
        case ClaimFailed(_):
            return replace(state, claiming=None, claim_retry_at=state.now + RETRY_SECONDS), ()
        case RunSuperseded(by) if by in (state.claiming, state.held and state.held.claim.world_id):
            return replace(state, writing=None), ()  # by the next world of this agent
        case RunSuperseded(by):
            return replace(state, superseded=by, claiming=None, writing=None), ()
        case ProblemFound(problem):
            return replace(state, problem=problem), ()
        case Tick(asleep):
            return replace(state, asleep=asleep), ()
        case _:
            return _apply_rank_event(state, event), ()


def _apply_orders(state: State, orders: Orders, age: float) -> Stepped:
    """Apply orders. Any answer of a coordinator that is not superseded is a sign of life, also of one without
    orders that waits for the operator: it will know of every replaced pod before it makes a plan.
    """
    if (orders.term, orders.boot) < (state.term, state.boot):
        # Not a sign of life of *our* coordinator: the fence clock keeps running.
        why = f"stale orders of term {orders.term}.{orders.boot}, after {state.term}.{state.boot}"
        return replace(state, linked=False), (DropLink(why),)
    answered_at = max(state.answered_at, state.awake_or_not - age)
    state = replace(state, term=orders.term, boot=orders.boot, linked=True, answered_at=answered_at)
    if orders.same:
        return state, ()
    completed = orders.complete or state.completed
    if state.superseded and orders.term > state.superseded.term:
        state = replace(state, superseded=None)
    state = replace(state, orders=orders, applied_orders=orders.number)
    return replace(state, fenced=False, completed=completed), ()


def _apply_rank_event(
    state: State,
    event: RanksStarted | RankDying | RankExited | RankUnkillable | RankMessage | StackShown | HeartbeatsRead,
) -> State:
    world = state.world
    if world is None or event.world_id != world.started_in:
        return state  # a late event of a world that is gone
    match event:
        case RanksStarted():
            ranks = tuple(replace(rank, started_at=state.now) for rank in world.ranks)
            return replace(state, world=replace(world, ranks=ranks))
        case HeartbeatsRead(_, heartbeats):
            ranks = tuple(
                hang.with_heartbeat(rank, heartbeats[rank.rank]) if rank.rank in heartbeats else rank
                for rank in world.ranks
            )
            return replace(state, world=replace(world, ranks=ranks))
        case StackShown(_, number, found):
            ranks = tuple(
                replace(rank, hang=found) if rank.rank == number and rank.stacks_requested else rank
                for rank in world.ranks
            )
            return replace(state, world=replace(world, ranks=ranks))
        case RankDying(_, number, exit):
            return replace(state, world=_with_exit(state, world, number, exit, alive=True))
        case RankUnkillable(_, number, exit, left):
            world = _with_exit(state, world, number, exit, alive=True)
            return replace(state, world=_with_unkillable(world, number, left, state.launch.per_pod))
        case RankExited(_, number, exit):
            return replace(state, world=_with_exit(state, world, number, exit, alive=False))
        case _:
            message = event.message
            problem, error = state.problem, _checkpoint_error(message.error_class)
            if error in _PROBLEMS:
                problem = Problem(_PROBLEMS[error], message.message)
            feature_level = max(state.feature_level, message.feature_level or 0)
            return replace(
                state,
                feature_level=feature_level,
                problem=problem,
                world=_with_message(world, event.rank, message, state.now),
            )


def _with_exit(state: State, world: World, number: int, exit: ProcessExit, alive: bool) -> World:
    """The world with this exit. A command that runs once per pod stands for all ranks of the pod.

    `killed`: by the agent. Not if the rank was dying already when the kill was ordered, nor if it was
    failing: a launcher ends slowly, and a peer that failed in consequence may be reported before.
    """
    ending = (world.killing and exit.signal == signal.SIGKILL) or world.terminate_by is not None
    reported = next((rank for rank in world.ranks if rank.rank == number), None)
    for rank in world.ranks:
        if reported and rank.alive and (rank is reported or state.launch.per_pod):
            by_agent = ending and (rank.exit is None or rank.exit.killed)
            failing = reported.failing and state.now - reported.error_at <= childreports.CHILD_SECONDS
            if by_agent and failing and world.terminate_by is None:
                by_agent, exit = False, replace(exit, code=1, signal=None)  # as Python ends for an exception
            with_reports = replace(
                rank, error=reported.error, error_at=reported.error_at, ended=reported.ended
            )
            explained = _with_cause(state, replace(exit, killed=exit.killed or by_agent), with_reports)
            world = world.with_rank(replace(rank, alive=alive, exit=explained))
    return world


def _with_unkillable(world: World, number: int, left: str, per_pod: bool) -> World:
    for rank in world.ranks:
        if rank.exit and (rank.rank == number or per_pod):
            message = "; ".join(text for text in (rank.exit.message, left) if text)
            world = world.with_rank(replace(rank, unkillable=True, exit=replace(rank.exit, message=message)))
    return world


def _early_end_message(state: State) -> str:
    """Message why a rank of this pod may not exit before its script ends; "" if it may."""
    if not state.config.servers:
        return ""
    return _EARLY_SERVER if state.config.is_server(state.identity.slot) else _EARLY


def _with_cause(state: State, exit: ProcessExit, rank: RankState) -> ProcessExit:
    """The exit with its cause: the agent's own verdict, else the error that the rank reported, else only how.

    A server that uses the library reports when its workers have left: its script may reach its end too early.
    """
    early_message, error = _early_end_message(state), rank.error
    exit = replace(exit, reached_end=exit.reached_end or rank.heartbeat.reached_end)
    if rank.killed_for and exit.code != 0:  # else it exited by itself, before SIGKILL
        why = rank.killed_for
        return replace(
            exit, hung=why.hung, late_start=why.late_start, fingerprint=why.fingerprint, message=why.message
        )
    may_exit = rank.left or (exit.reached_end and not (early_message == _EARLY_SERVER and rank.has_library))
    if early_message and exit.clean and not (exit.killed or may_exit):
        return replace(exit, early=True, fingerprint="early end", message=early_message)
    if exit.fingerprint or exit.clean:
        return exit
    if error and not exit.oom and childreports.explains(error, exit, state.now - rank.error_at):
        storage = _STORAGE.get(_checkpoint_error(error.error_class), "")
        return replace(childreports.caused(exit, error, rank.rank, rank.ended), storage=storage)
    exit = replace(exit, fingerprint=exit.how)
    return childreports.of_a_shell(exit) if state.launch.per_pod else exit


def _with_message(world: World, number: int, message: FromRank, now: float) -> World:
    rank = next((rank for rank in world.ranks if rank.rank == number), None)
    if rank is None:
        return world
    if message.hello_pid is not None or message.feature_level is not None:
        rank = replace(rank, has_library=True)
    if message.joins:
        rank = replace(rank, joins=True)
    if message.paused is not None:
        rank = replace(rank, paused=message.paused)
    if message.drained is not None:
        rank = replace(rank, drained=message.drained)
    if message.left:
        rank = replace(rank, left=True)
    if message.served is not None:
        rank = replace(rank, served=message.served)
    if message.error_type is not None and childreports.better(rank.error, message):
        reported = childreports.after(rank.error, message, now - rank.error_at)
        ending = world.killing or world.terminate_by is not None
        failing = rank.failing or (childreports.is_cause(reported) and not ending)
        rank = replace(rank, error=reported, error_at=now, failing=failing)
    if message.ended and rank.ended is None:
        rank = replace(rank, ended=message.rank)
    world = world.with_rank(rank)
    if message.group is not None:
        world = replace(world, groups=childreports.with_group(world.groups, number, message.group))
    if message.shard_step is not None:
        shard = Shard(number, world.started_in, message.shard_step, message.shard_files)
        others = tuple(s for s in world.shards if (s.rank, s.step) != (shard.rank, shard.step))
        world = replace(world, shards=(*others, shard))
    if rank is not world.ranks[0]:
        return replace(world, restored=message.restored or world.restored)
    return replace(
        world,
        restored=message.restored or world.restored,
        total_steps=message.total_steps if message.total_steps is not None else world.total_steps,
        loss=message.loss if message.loss is not None else world.loss,
    )


def _checkpoint_error(error_class: str) -> str:
    """Class name of an exception of our checkpoint package; empty for any other."""
    return error_class.rpartition(".")[2] if error_class.startswith(_OURS) else ""
