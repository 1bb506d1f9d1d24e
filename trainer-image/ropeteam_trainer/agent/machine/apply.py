"""The facts of an event, applied to the state; the rules of step.py draw the conclusions. Pure.

Rank numbers are those of the whole world. An event of ranks that another world started is ignored.
"""

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
from ropeteam_trainer.agent.machine.state import AgentState, LocalWorld, RankState
from ropeteam_trainer.contract.local import FromRank
from ropeteam_trainer.contract.messages import Orders, Problem, Shard
from ropeteam_trainer.contract.world import FailReason, ProcessExit, WorldId

RETRY_SECONDS = 1.0
"""Pause between two attempts to open a store, to claim the checkpoint folder or to write a manifest."""
_EXIT_MARGIN_SECONDS = 5
"""Seconds after drainSeconds at which a terminating agent exits at the latest."""

_OURS = "ropeteam_trainer.checkpoint."
"""Package of the exceptions below, by class name: an image may have another release, with other modules."""
_PROBLEMS = {"CheckpointNotFound": FailReason.CHECKPOINT_NOT_FOUND}
"""Exceptions of our library that no restart repairs."""
_STORAGE = {
    "CheckpointUnavailable": "here",
    "UnavailableElsewhere": "elsewhere",
    "UnavailableEverywhere": "everywhere",
}
"""Exceptions of our library that are no fault of the script, with their ProcessExit.storage."""
_EARLY = (
    "exited with 0 before the end of its script, while its parameter servers wait for it: every worker must "
    "run to the end (look for sys.exit in the script)"
)
_EARLY_SERVER = (
    "exited with 0 while workers need it: a parameter server ends only when all workers have left (look for "
    "sys.exit in the script)"
)

Stepped = tuple[AgentState, tuple[Effect, ...]]
"""The next state, and effects in the order in which they must be carried out."""


def apply_event(state: AgentState, event: Event) -> Stepped:
    """The state after the event, before any rule is evaluated. The only effect is DropLink, for a coordinator
    that is stale."""
    match event:
        case OrdersReceived(orders, age):
            return _apply_orders(state, orders, age)
        case Terminated():
            # Once only, and some seconds more than the ranks have, so that their SIGKILL comes first.
            exit_by = state.exit_by or state.now + state.config.timeouts.drain + _EXIT_MARGIN_SECONDS
            return replace(state, exit_by=exit_by), ()
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
        case RunSuperseded(by, refused) if by == refused == state.claiming:  # claimed by another pod
            return replace(state, writing=None, claiming=None, claim_retry_at=state.now + RETRY_SECONDS), ()
        case RunSuperseded(by) if _is_own(state, by):
            return replace(state, writing=None, write_retry_at=state.now + RETRY_SECONDS), ()
        case RunSuperseded(by) if _ends_no_rank(state, by):
            return _without_claims_before(replace(state, writing=None), by), ()
        case RunSuperseded(by):
            return replace(state, superseded=by, held=None, claiming=None, writing=None), ()
        case ProblemFound(problem):
            return replace(state, problem=problem), ()
        case Tick(asleep):
            return replace(state, asleep=asleep), ()
        case _:
            return _apply_rank_event(state, event), ()


def _is_own(state: AgentState, by: WorldId) -> bool:
    """Whether the newer claim is no news to this agent: not newer than what it holds, or its own, under way
    or to be tried again (an attempt that has failed may have left its file).
    """
    tried = state.claim_since and state.claim_since[0]
    return by in (state.claiming, tried) or bool(state.held and by <= state.held.claim.world_id)


def _ends_no_rank(state: AgentState, by: WorldId) -> bool:
    """Whether the newer claim ends earlier ones of this agent, and no rank. True of a deputy, if it is of the
    coordinator that this agent follows, whose orders for that world may be on their way. Of the leading rank,
    if the orders start it in a still newer world, or end it and are of a coordinator that will."""
    if state.identity.slot != state.config.lead_slot:
        return (by.term, by.boot) <= (state.term, state.boot)
    if plan := state.desired_plan:
        return plan.started_in(state.identity.slot) > by
    return state.orders is not None and _newest_number(state, state.orders) > by


def _without_claims_before(state: AgentState, by: WorldId) -> AgentState:
    """The state without claims, held or under way, that are older than this one."""
    if state.held and state.held.claim.world_id < by:
        state = replace(state, held=None)
    if state.claiming and state.claiming < by:
        state = replace(state, claiming=None, claim_retry_at=state.now + RETRY_SECONDS)
    return state


def _apply_orders(state: AgentState, orders: Orders, age: float) -> Stepped:
    """Apply orders or an answer. `age`: seconds since the report that they answer was sent.

    First match wins: a coordinator below the highest (term, boot) is stale and changes nothing but the
    connection; an answer only moves the fence clock; orders replace the previous ones. An answer without
    orders counts, too: a coordinator that waits for the operator will know of every replaced pod before it
    makes a plan.
    """
    if (orders.term, orders.boot) < (state.term, state.boot):
        # Not a sign of life of *our* coordinator: the fence clock keeps running.
        why = (
            f"it is of term {orders.term}.{orders.boot}, and a coordinator of term {state.term}.{state.boot} "
            "has answered before; the agent looks for that one"
        )
        return replace(state, linked=False), (DropLink(why),)
    answered_at = max(state.answered_at, state.now_with_suspension - age)
    state = replace(state, term=orders.term, boot=orders.boot, linked=True, answered_at=answered_at)
    if orders.same:
        return state, ()
    completed = orders.complete or state.completed
    if state.superseded and _newest_number(state, orders) > state.superseded:
        state = replace(state, superseded=None)
    state = replace(state, orders=orders, applied_orders=orders.number)
    return replace(state, fenced=False, completed=completed), ()


def _newest_number(state: AgentState, orders: Orders) -> WorldId:
    """The greatest number by which these orders start ranks here, or will; at least one below all that this
    coordinator uses."""
    started_in = orders.plan.started_in(state.identity.slot) if orders.plan else None
    known = (WorldId(orders.term, orders.boot, 0), started_in, orders.host_store)
    return max(number for number in known if number)


def _apply_rank_event(
    state: AgentState,
    event: RanksStarted | RankDying | RankExited | RankUnkillable | RankMessage | StackShown | HeartbeatsRead,
) -> AgentState:
    """The state after an event of local ranks. One of another world is late, and changes nothing."""
    world = state.world
    if world is None or event.world_id != world.started_in:
        return state
    match event:
        case RanksStarted():
            ranks = tuple(
                rank if rank.started_at is not None else replace(rank, started_at=state.now)
                for rank in world.ranks
            )
            return replace(state, world=replace(world, ranks=ranks))
        case HeartbeatsRead(_, heartbeats):
            ranks = tuple(
                hang.with_heartbeat(rank, heartbeats[rank.rank]) if rank.rank in heartbeats else rank
                for rank in world.ranks
            )
            return replace(state, world=replace(world, ranks=ranks))
        case StackShown(_, shown_rank, found):
            ranks = tuple(
                replace(rank, hang=found) if rank.rank == shown_rank and rank.stacks_requested else rank
                for rank in world.ranks
            )
            return replace(state, world=replace(world, ranks=ranks))
        case RankDying(_, exiting, exit):
            return replace(state, world=_with_exit(state, world, exiting, exit, alive=True))
        case RankUnkillable(_, exiting, exit, why_alive):
            world = _with_exit(state, world, exiting, exit, alive=True)
            return replace(state, world=_with_unkillable(world, exiting, why_alive, state.launch.per_pod))
        case RankExited(_, exiting, exit):
            return replace(state, world=_with_exit(state, world, exiting, exit, alive=False))
        case _:  # RankMessage
            message = event.message
            problem, error = state.problem, _checkpoint_error_name(message.error_class)
            if error in _PROBLEMS:
                problem = Problem(_PROBLEMS[error], message.message)
            feature_level = max(state.feature_level, message.feature_level or 0)
            return replace(
                state,
                feature_level=feature_level,
                problem=problem,
                world=_with_message(world, event.rank, message, state.now),
            )


def _with_exit(
    state: AgentState, world: LocalWorld, exiting: int, exit: ProcessExit, alive: bool
) -> LocalWorld:
    """The world with the exit of rank `exiting`, explained. `alive`: it is dying, or a process of it lives.

    The exit of a command that runs once per pod is that of all ranks of the pod: they have its reports.
    `ProcessExit.killed` is set if the agent ended the rank on orders. Not if the rank was dying already when
    the kill was ordered. Not if it was failing by itself (`RankState.failing`), either: a launcher ends
    slowly, and a peer that failed in consequence may be reported before. Such a rank gets exit code 1, as
    Python exits for an exception, because the kill would hide its failure. During a drain by SIGTERM every
    exit is the agent's.
    """
    drained = world.terminate_by is not None
    reported = next((rank for rank in world.ranks if rank.rank == exiting), None)
    for rank in world.ranks:
        if reported and rank.alive and (rank is reported or state.launch.per_pod):
            killing = (world.killing or rank.is_lost) and exit.signal == signal.SIGKILL
            by_agent = (killing or drained) and (rank.exit is None or rank.exit.killed)
            failing = reported.failing and state.now - reported.error_at <= childreports.CHILD_SECONDS
            if by_agent and failing and not drained:
                by_agent, exit = False, replace(exit, code=1, signal=None)
            with_reports = replace(
                rank, error=reported.error, error_at=reported.error_at, ended_rank=reported.ended_rank
            )
            explained = _with_cause(state, replace(exit, killed=exit.killed or by_agent), with_reports)
            world = world.with_rank(replace(rank, alive=alive, exit=explained))
    return world


def _with_unkillable(world: LocalWorld, exiting: int, why_alive: str, per_pod: bool) -> LocalWorld:
    """The world with the rank marked as unkillable, and the reason added to the message of its exit. A
    command that runs once per pod marks all ranks. Call `_with_exit` before."""
    for rank in world.ranks:
        if rank.exit and (rank.rank == exiting or per_pod):
            message = "; ".join(text for text in (rank.exit.message, why_alive) if text)
            world = world.with_rank(replace(rank, unkillable=True, exit=replace(rank.exit, message=message)))
    return world


def _early_end_message(state: AgentState) -> str:
    """Message for a rank of this pod that exits with 0 before it may; "" if it may at any time. Only jobs
    with parameter servers restrict that."""
    if not state.config.servers:
        return ""
    return _EARLY_SERVER if state.config.is_server(state.identity.slot) else _EARLY


def _with_cause(state: AgentState, exit: ProcessExit, rank: RankState) -> ProcessExit:
    """The exit with its cause, as far as it is known, and the heartbeat's `reached_end`.

    First match wins: the reason for which the agent killed the rank; an exit with 0 that is too early; no
    cause, for an exit that is explained already or clean; the error that the rank reported; the exit itself
    (`exit 2`, `SIGKILL`). The agent's kill comes first because a killed rank may report an error, too. An OOM
    kill is never explained by an earlier error.
    """
    early_message, error = _early_end_message(state), rank.error
    exit = replace(exit, reached_end=exit.reached_end or rank.heartbeat.reached_end)
    if rank.killed_for and exit.code != 0:  # with code 0 it exited by itself, before SIGKILL
        why = rank.killed_for
        return replace(
            exit, hung=why.hung, late_start=why.late_start, fingerprint=why.fingerprint, message=why.message
        )
    # The script of a server with the library may reach its end too early: the library reports `left`.
    ends_by_report = early_message == _EARLY_SERVER and rank.has_library
    may_exit = rank.left or (exit.reached_end and not ends_by_report)
    if early_message and exit.clean and not (exit.killed or may_exit):
        return replace(exit, early=True, fingerprint="early end", message=early_message)
    if exit.fingerprint or exit.clean:
        return exit
    if error and not exit.oom and childreports.may_explain(error, exit, state.now - rank.error_at):
        storage = _STORAGE.get(_checkpoint_error_name(error.error_class), "")
        return replace(childreports.exit_with_cause(exit, error, rank.rank, rank.ended_rank), storage=storage)
    exit = replace(exit, fingerprint=exit.how)
    return childreports.with_shell_signal(exit) if state.launch.per_pod else exit


def _with_message(world: LocalWorld, sender: int, message: FromRank, now: float) -> LocalWorld:
    """The world with the fields of a message on the socket of rank `sender` that are not None.

    Of several errors the one nearest to the cause is retained. A shard replaces an earlier one of the same
    rank and step. Totals and loss count only from the lowest local rank.
    """
    rank = next((rank for rank in world.ranks if rank.rank == sender), None)
    if rank is None:
        return world
    if message.hello_pid is not None or message.feature_level is not None:
        rank = replace(rank, has_library=True)
    if message.joins:
        rank = replace(rank, joins=True)
    if message.acknowledges_pause:
        rank = replace(rank, acknowledges_pause=True)
    if message.pause_received is not None and rank.sent.pause:
        rank = replace(rank, pause_received=message.pause_received)
    if message.paused is not None:
        rank = replace(rank, paused=message.paused)
    if message.drained is not None:
        rank = replace(rank, drained=message.drained)
    if message.regroups is not None:
        rank = replace(rank, regroups=message.regroups)
    if message.left:
        rank = replace(rank, left=True)
    if message.served is not None:
        rank = replace(rank, served=message.served)
    if message.error_type is not None and childreports.is_nearer_to_cause(rank.error, message):
        reported = childreports.with_previous_error(rank.error, message, now - rank.error_at)
        ending = world.killing or world.terminate_by is not None
        failing = rank.failing or (childreports.blames_no_peer(reported) and not ending)
        rank = replace(rank, error=reported, error_at=now, failing=failing)
    if message.ended and rank.ended_rank is None:
        rank = replace(rank, ended_rank=message.rank)
    world = world.with_rank(rank)
    if message.group is not None:
        world = replace(world, groups=childreports.with_group(world.groups, sender, message.group))
    if message.shard_step is not None:
        world_id = message.shard_world or world.started_in
        shard = Shard(sender, world_id, message.shard_step, message.shard_files, message.shard_whole)
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


def _checkpoint_error_name(error_class: str) -> str:
    """Class name, without module, of an exception of our checkpoint package; "" for any other."""
    return error_class.rpartition(".")[2] if error_class.startswith(_OURS) else ""
