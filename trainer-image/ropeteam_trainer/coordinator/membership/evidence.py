"""Who or what ended a world: every sign of it in the last reports, weighed.

A fault shows in many places: the peers of a killed rank die of reset connections, and we kill the rest
ourselves. The heaviest sign is the cause; among equals the first that was seen.
  LEFT > LOST > TOLD (hang, late start, out of memory) > SIGNAL > ERROR > CONSEQUENCE > OURS
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
from ropeteam_trainer.coordinator.membership.state.slotset import ALL, Slots, has
from ropeteam_trainer.coordinator.membership.state.state import (
    MemberRanks,
    Pod,
    State,
    holds_slot,
    lost,
    ranks_of_members,
)

LEFT, LOST, TOLD, SIGNAL, ERROR, CONSEQUENCE, OURS = 6, 5, 4, 3, 2, 1, 0

_ABORTED = 6
_WITHOUT_MEMORY = frozenset({"torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError"})
"""What a script raises for want of an accelerator's memory, in torch of today and of before."""


@dataclass(frozen=True)
class Evidence:
    """One sign of a world's end."""

    weight: int
    cause: Cause
    slot: int
    message: str
    rank: int | None = None
    exit: ProcessExit | None = None


def collect(state: State, now: float, among: Slots = ALL, least: int = OURS) -> tuple[Evidence, ...]:
    """All signs, in rank order, but for exits lighter than `least`. Empty: nothing is wrong, as far as
    we know."""
    suspects = slotindex.suspects(state) & among
    return tuple(
        sign for crew in ranks_of_members(state, suspects) for sign in _of_member(state, crew, now, least)
    )


def world_done(state: State) -> bool:
    """All ranks of all members are done."""
    return slotindex.all_are(state, slotindex.done(state))


def is_done(state: State, rank: RankReport) -> bool:
    """Its script, which has exited, ended well: exit code 0, or a signal after the end where a sibling exited
    cleanly."""
    return slotindex.is_clean(rank) or (slotindex.is_aborted_at_end(rank) and state.roll.clean != 0)


def _of_member(state: State, crew: MemberRanks, now: float, least: int) -> tuple[Evidence, ...]:
    """Of one that is not done: whatever happens to its pod afterwards, its part is played."""
    gone = _gone(state, crew, now)
    if gone:
        return (Evidence(LOST, Cause.AGENT_LOST, crew.member.slot, gone),)
    signs = (_of_rank(state, crew, rank, least) for rank in crew.known.values())
    return tuple(sign for sign in signs if sign)


def _gone(state: State, crew: MemberRanks, now: float) -> str:
    """Why this member's ranks cannot be counted on any more, or ""."""
    slot = crew.member.slot
    assert state.world is not None
    if not holds_slot(state, Pod(slot, crew.member.incarnation, crew.member.pod_uid)):
        return f"slot {slot} was given to another pod"
    if crew.agent is None or lost(state, crew.agent, now):
        return f"the agent of slot {slot} fell silent"
    if has(state.world.seen, slot) and not state.world.has(crew.agent.report):
        return f"the agent of slot {slot} came back without its ranks"
    return ""


def _of_rank(state: State, crew: MemberRanks, rank: RankReport, least: int) -> Evidence | None:
    if rank.phase is not RankPhase.EXITED or is_done(state, rank):
        return None
    slot, exit = crew.member.slot, rank.exit
    if exit is None:
        return Evidence(OURS, Cause.UNKNOWN, slot, f"rank {rank.rank} is gone, nobody saw how", rank.rank)
    if slotindex.is_aborted_at_end(rank) and not slotindex.all_are(state, state.roll.exited):
        return None  # a sibling's end decides
    weight, cause = _weigh(state, exit)
    if weight < least:
        return None
    number = rank.rank if exit.rank is None else exit.rank
    sign = Evidence(weight, cause, slot, describe(number, exit, cause), number, exit)
    return _after_an_end(state, sign) if weight == CONSEQUENCE and not exit.storage else sign


def _after_an_end(state: State, sign: Evidence) -> Evidence:
    """A peer that is missed has ended by itself: it went first."""
    known = (
        (crew.member.slot, rank)
        for crew in ranks_of_members(state, state.roll.clean)
        for rank in crew.known.values()
    )
    ended = next(((slot, rank.rank) for slot, rank in known if slotindex.is_clean(rank)), None)
    if ended is None:
        return sign
    slot, number = ended
    message = f"rank {number} had ended with exit code 0, then {sign.message}"
    return replace(sign, slot=slot, rank=number, message=message)


def who_stood_first(state: State, sign: Evidence) -> Evidence:
    """Ranks that wait for a hung one hang as well, and any of them may be seen first. Of those that stand
    still the one behind held up the others; among equals, one that is in no collective. Parameter servers and
    their workers do not wait so for each other."""
    if sign.cause not in (Cause.HANG, Cause.START_TIMEOUT) or state.config.servers:
        return sign
    standing = [
        (crew.member.slot, rank, rank.stands)
        for crew in ranks_of_members(state, ALL)
        for rank in crew.known.values()
        if rank.stands
    ]
    if len(standing) < 2:
        return sign
    lowest = min(rank.step for _, rank, _ in standing)
    behind = [each for each in standing if each[1].step == lowest]
    first = [each for each in behind if not each[2].waits] or behind
    if len(first) == len(standing):
        where = f"{len(first)} ranks stand still {_at(first[0][1])}, their stacks are in the logs"
        return replace(sign, message=f"{sign.message}; which was first is not known: {where}")
    if any(rank.rank == sign.rank for _, rank, _ in first):
        return replace(sign, message=f"{sign.message}; it held up the others")
    slot, rank, stands = first[0]
    here = f", in {stands.where}" if stands.where else ""
    message = f"rank {rank.rank} held up the others ({_at(rank)}{here}): {sign.message}"
    exit = sign.exit and replace(sign.exit, last_lines=())  # they are of the other one
    return replace(sign, slot=slot, rank=rank.rank, message=message, exit=exit)


def _at(rank: RankReport) -> str:
    return f"after step {rank.step}" if rank.steps_here else "before the first step"


def _weigh(state: State, exit: ProcessExit) -> tuple[int, Cause]:
    if exit.oom:
        return TOLD, Cause.OUT_OF_MEMORY
    if exit.hung:
        return TOLD, Cause.HANG
    if exit.late_start:
        return TOLD, Cause.START_TIMEOUT
    if exit.storage:
        return CONSEQUENCE if exit.storage == "elsewhere" else TOLD, Cause.STORAGE_UNAVAILABLE
    if exit.killed:
        return OURS, Cause.AGENT_LOST
    if exit_rule(state, exit) is ExitAction.RETRY_FREE:
        return ERROR, Cause.RETRIED_FREE
    if _consequence(exit):
        return CONSEQUENCE, Cause.ERROR
    if exit.signal is not None:
        return SIGNAL, Cause.SIGNAL
    return ERROR, Cause.OUT_OF_MEMORY if exit.error_class in _WITHOUT_MEMORY else Cause.ERROR


def is_script(cause: Cause, exit: ProcessExit | None) -> bool:
    """It raised an exception, or ended by a code of its own: so it would in any pod."""
    return cause is Cause.ERROR or (cause is Cause.OUT_OF_MEMORY and exit is not None and not exit.oom)


def exit_rule(state: State, exit: ProcessExit | None) -> ExitAction | None:
    """What `recovery.exitCodes` says about this exit."""
    if exit is None or exit.killed or exit.storage:
        return None
    return next((rule.action for rule in state.config.exit_codes if exit.code in rule.codes), None)


def _consequence(exit: ProcessExit) -> bool:
    """It died because a peer died. NCCL and gloo end a process by SIGABRT; other signals have causes of their
    own."""
    if exit.signal not in (None, _ABORTED):
        return False
    text = " ".join((exit.fingerprint, exit.message) if exit.message else exit.last_lines)
    return blames_a_peer(text)


def describe(rank: int, exit: ProcessExit, cause: Cause) -> str:
    """One line for people."""
    said = {
        Cause.OUT_OF_MEMORY: "was killed for want of memory" if exit.oom else f"exited {exit.code}",
        Cause.HANG: "made no progress and was killed",
        Cause.START_TIMEOUT: "made no first step in time and was killed",
        Cause.STORAGE_UNAVAILABLE: "could not read its checkpoint",
        Cause.AGENT_LOST: "was killed by its agent, which had no coordinator for too long",
    }.get(cause, f"was ended by {exit.how}" if exit.signal is not None else f"exited {exit.code}")
    if exit.message:
        return f"rank {rank} {said}: {exit.message}"
    words = _last_words(exit) if exit.code else ""
    return f"rank {rank} {said}" + (f"; its last line: {words}" if words else "")


def _last_words(exit: ProcessExit) -> str:
    """A program that ends by an exit code has often just printed why, but nobody knows."""
    return next((line.strip() for line in reversed(exit.last_lines) if line.strip()), "")


def fingerprint(cause: Cause, exit: ProcessExit | None) -> str:
    """Same text = same fault. Empty: says nothing about the script (lost pods; SIGKILL and SIGTERM come from
    outside)."""
    if exit is None or not cause.charged or (cause is Cause.SIGNAL and exit.signal in (9, 15)):
        return ""
    return exit.fingerprint or exit.how
