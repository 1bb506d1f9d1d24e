"""Evidence of what ended a world: every sign of it in the last reports, with a weight.

A fault shows in many places: the peers of a killed rank die of reset connections, and our agents kill the
rest. The heaviest sign is the cause; among equals the first that was found.
  POD_TERMINATING > LOST > AGENT_REPORTED (hang, late start, out of memory) > SIGNAL > ERROR > CONSEQUENCE
  > KILLED_BY_US
Limits: a rank that exited cleanly, or that died by a signal after its script's end while a sibling exited
cleanly, is done, not faulty; while that is undecided there is no sign yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ropeteam_trainer.contract.config import ExitAction
from ropeteam_trainer.contract.messages import RankPhase, RankReport
from ropeteam_trainer.contract.peererrors import blames_a_peer
from ropeteam_trainer.contract.world import Cause, ProcessExit
from ropeteam_trainer.coordinator.membership.state import slotindex
from ropeteam_trainer.coordinator.membership.state.events import Pod
from ropeteam_trainer.coordinator.membership.state.ranks import (
    MemberRanks,
    is_aborted_at_end,
    is_clean,
    ranks_of_members,
)
from ropeteam_trainer.coordinator.membership.state.slots import holds_slot, lost
from ropeteam_trainer.coordinator.membership.state.slotset import ALL, Slots, has
from ropeteam_trainer.coordinator.membership.state.state import State

POD_TERMINATING, LOST, AGENT_REPORTED, SIGNAL, ERROR, CONSEQUENCE, KILLED_BY_US = 6, 5, 4, 3, 2, 1, 0

_ABORTED = 6
_WITHOUT_MEMORY = frozenset({"torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError"})
"""Exceptions for exhausted accelerator memory, in today's torch and in earlier ones."""


@dataclass(frozen=True)
class Evidence:
    """One sign of a world's end."""

    weight: int
    cause: Cause
    slot: int
    message: str
    rank: int | None = None
    exit: ProcessExit | None = None


def collect(state: State, now: float, among: Slots = ALL, least: int = KILLED_BY_US) -> tuple[Evidence, ...]:
    """All signs, in rank order, except exits lighter than `least`. Empty: no fault is known."""
    suspects = slotindex.suspects(state) & among
    return tuple(
        sign
        for member_ranks in ranks_of_members(state, suspects)
        for sign in _evidence_of_member(state, member_ranks, now, least)
    )


def world_done(state: State) -> bool:
    """Whether all ranks of all members are done."""
    return slotindex.all_members(state, slotindex.done(state))


def is_done(state: State, rank: RankReport) -> bool:
    """Whether the rank's script has exited and ended well: exit code 0, or a signal after its end while a
    sibling exited cleanly."""
    return is_clean(rank) or (is_aborted_at_end(rank) and state.facts.clean != 0)


def _evidence_of_member(
    state: State, member_ranks: MemberRanks, now: float, least: int
) -> tuple[Evidence, ...]:
    """Evidence of one member that is not done. Once a member is done, the end of its pod is no fault."""
    loss = _loss_text(state, member_ranks, now)
    if loss:
        return (Evidence(LOST, Cause.AGENT_LOST, member_ranks.member.slot, loss),)
    signs = (_evidence_of_rank(state, member_ranks, rank, least) for rank in member_ranks.known.values())
    return tuple(sign for sign in signs if sign)


def _loss_text(state: State, member_ranks: MemberRanks, now: float) -> str:
    """Why this member's ranks are lost, or ""."""
    slot = member_ranks.member.slot
    assert state.world is not None
    if not holds_slot(state, Pod(slot, member_ranks.member.incarnation, member_ranks.member.pod_uid)):
        return f"slot {slot} was assigned to another pod"
    if member_ranks.agent is None or lost(state, member_ranks.agent, now):
        return f"the agent of slot {slot} stopped reporting"
    if has(state.world.confirmed, slot) and not state.world.has(member_ranks.agent.report):
        return f"the agent of slot {slot} reports again, but without its ranks"
    return ""


def _evidence_of_rank(
    state: State, member_ranks: MemberRanks, rank: RankReport, least: int
) -> Evidence | None:
    if rank.phase is not RankPhase.EXITED or is_done(state, rank):
        return None
    slot, exit = member_ranks.member.slot, rank.exit
    if exit is None:
        return Evidence(
            KILLED_BY_US,
            Cause.UNKNOWN,
            slot,
            f"rank {rank.rank} is gone, its exit was not observed",
            rank.rank,
        )
    if is_aborted_at_end(rank) and not slotindex.all_members(state, state.facts.exited):
        return None  # a sibling's end decides
    weight, cause = _weight_and_cause(state, exit)
    if weight < least:
        return None
    number = rank.rank if exit.rank is None else exit.rank
    sign = Evidence(weight, cause, slot, describe(number, exit, cause), number, exit)
    return _after_an_end(state, sign) if weight == CONSEQUENCE and not exit.storage else sign


def _after_an_end(state: State, sign: Evidence) -> Evidence:
    """The sign, moved to a rank that exited cleanly if there is one: that rank ended first, and is missed."""
    known = (
        (member_ranks.member.slot, rank)
        for member_ranks in ranks_of_members(state, state.facts.clean)
        for rank in member_ranks.known.values()
    )
    ended = next(((slot, rank.rank) for slot, rank in known if is_clean(rank)), None)
    if ended is None:
        return sign
    slot, number = ended
    message = f"rank {number} had ended with exit code 0, then {sign.message}"
    return replace(sign, slot=slot, rank=number, message=message)


def first_hung(state: State, sign: Evidence) -> Evidence:
    """The sign of a hang, moved to the rank that hung first. Ranks that wait for a hung one hang as well, and
    any of them may be reported first. Of the hanging ranks the one behind held up the others;
    among equals, one in no collective. Parameter servers and their workers do not wait like that."""
    if sign.cause not in (Cause.HANG, Cause.START_TIMEOUT) or state.config.servers:
        return sign
    hanging = [
        (member_ranks.member.slot, rank, rank.hang)
        for member_ranks in ranks_of_members(state, ALL)
        for rank in member_ranks.known.values()
        if rank.hang
    ]
    if len(hanging) < 2:
        return sign
    lowest = min(rank.step for _, rank, _ in hanging)
    behind = [each for each in hanging if each[1].step == lowest]
    first = [each for each in behind if not each[2].waits] or behind
    if len(first) == len(hanging):
        where = f"{len(first)} ranks hang {_step_text(first[0][1])}, their stacks are in the logs"
        return replace(sign, message=f"{sign.message}; the first of them is unknown: {where}")
    if any(rank.rank == sign.rank for _, rank, _ in first):
        return replace(sign, message=f"{sign.message}; it blocked the others")
    slot, rank, hang = first[0]
    here = f", in {hang.where}" if hang.where else ""
    message = f"rank {rank.rank} blocked the others ({_step_text(rank)}{here}): {sign.message}"
    exit = sign.exit and replace(sign.exit, last_lines=())  # of the other rank
    return replace(sign, slot=slot, rank=rank.rank, message=message, exit=exit)


def _step_text(rank: RankReport) -> str:
    return f"after step {rank.step}" if rank.steps_here else "before the first step"


def _weight_and_cause(state: State, exit: ProcessExit) -> tuple[int, Cause]:
    if exit.oom:
        return AGENT_REPORTED, Cause.OUT_OF_MEMORY
    if exit.hung:
        return AGENT_REPORTED, Cause.HANG
    if exit.late_start:
        return AGENT_REPORTED, Cause.START_TIMEOUT
    if exit.storage:
        return CONSEQUENCE if exit.storage == "elsewhere" else AGENT_REPORTED, Cause.STORAGE_UNAVAILABLE
    if exit.killed:
        return KILLED_BY_US, Cause.AGENT_LOST
    if exit_rule(state, exit) is ExitAction.RETRY_FREE:
        return ERROR, Cause.RETRIED_FREE
    if _is_consequence(exit):
        return CONSEQUENCE, Cause.ERROR
    if exit.signal is not None:
        return SIGNAL, Cause.SIGNAL
    return ERROR, Cause.OUT_OF_MEMORY if exit.error_class in _WITHOUT_MEMORY else Cause.ERROR


def is_script(cause: Cause, exit: ProcessExit | None) -> bool:
    """Whether the script raised an exception, or exited by a code of its own: it would in any pod."""
    return cause is Cause.ERROR or (cause is Cause.OUT_OF_MEMORY and exit is not None and not exit.oom)


def exit_rule(state: State, exit: ProcessExit | None) -> ExitAction | None:
    """The action for this exit in `recovery.exitCodes`."""
    if exit is None or exit.killed or exit.storage:
        return None
    return next((rule.action for rule in state.config.exit_codes if exit.code in rule.codes), None)


def _is_consequence(exit: ProcessExit) -> bool:
    """Whether the rank died because a peer died. NCCL and gloo end a process by SIGABRT; other signals have
    causes of their own."""
    if exit.signal not in (None, _ABORTED):
        return False
    text = " ".join((exit.fingerprint, exit.message) if exit.message else exit.last_lines)
    return blames_a_peer(text)


def describe(rank: int, exit: ProcessExit, cause: Cause) -> str:
    """One line on an exit, for people."""
    ending = {
        Cause.OUT_OF_MEMORY: "ran out of memory and was killed" if exit.oom else f"exited {exit.code}",
        Cause.HANG: "made no progress and was killed",
        Cause.START_TIMEOUT: "made no first step in time and was killed",
        Cause.STORAGE_UNAVAILABLE: "could not read its checkpoint",
        Cause.AGENT_LOST: "was killed by its agent, which had no coordinator for too long",
    }.get(cause, f"was killed by {exit.how}" if exit.signal is not None else f"exited {exit.code}")
    if exit.message:
        return f"rank {rank} {ending}: {exit.message}"
    last_line = _last_line(exit) if exit.code else ""
    return f"rank {rank} {ending}" + (f"; its last line: {last_line}" if last_line else "")


def _last_line(exit: ProcessExit) -> str:
    """The last line of output. A program that exits by a code has often, but not always, just printed why."""
    return next((line.strip() for line in reversed(exit.last_lines) if line.strip()), "")


def fingerprint(cause: Cause, exit: ProcessExit | None) -> str:
    """Text that identifies a fault: same text, same fault. Empty: not the script's fault (lost pods; SIGKILL
    and SIGTERM come from outside)."""
    if exit is None or not cause.charged or (cause is Cause.SIGNAL and exit.signal in (9, 15)):
        return ""
    return exit.fingerprint or exit.how
