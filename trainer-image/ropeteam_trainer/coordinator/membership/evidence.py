"""Evidence of what ended a world, in the last reports of its members' agents, with a weight.

A fault shows in many places: the peers of a killed rank die of reset connections, and our agents kill the
rest. The heaviest evidence is the cause; among equals the first in rank order.
  POD_TERMINATING > LOST > AGENT_REPORTED (hang, late start, out of memory) > SIGNAL > ERROR > CONSEQUENCE
  > KILLED_BY_US
Limits: a rank that exited cleanly, or that died by a signal after its script's end while a sibling exited
cleanly, is done, not faulty; while that is undecided there is no evidence yet.
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
from ropeteam_trainer.coordinator.membership.state.slots import holds_slot, is_lost, refusal_reason
from ropeteam_trainer.coordinator.membership.state.slotset import ALL, Slots, has
from ropeteam_trainer.coordinator.membership.state.state import CoordinatorState

POD_TERMINATING, LOST, AGENT_REPORTED, SIGNAL, ERROR, CONSEQUENCE, KILLED_BY_US = 6, 5, 4, 3, 2, 1, 0

_ABORTED = 6
"""SIGABRT."""
_WITHOUT_MEMORY = frozenset({"torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError"})
"""Exceptions for exhausted accelerator memory, in today's torch and in earlier ones."""


@dataclass(frozen=True)
class Evidence:
    """Evidence of what ended the world: one exit of a rank, or one pod that is lost or terminating."""

    weight: int
    """One of the constants above."""
    cause: Cause
    slot: int
    message: str
    rank: int | None = None
    exit: ProcessExit | None = None


def collect_evidence(
    state: CoordinatorState, now: float, among: Slots = ALL, least: int = KILLED_BY_US
) -> tuple[Evidence, ...]:
    """All evidence of the members in `among`, in rank order. Empty: no fault is known. Exits lighter than
    `least` are left out, which saves the text for each of thousands of ranks that we killed."""
    suspects = slotindex.suspect_slots(state) & among
    return tuple(
        evidence
        for member_ranks in ranks_of_members(state, suspects)
        for evidence in _evidence_of_member(state, member_ranks, now, least)
    )


def is_world_done(state: CoordinatorState) -> bool:
    """Whether all ranks of all members are done (`is_rank_done`)."""
    return slotindex.has_all_members(state, slotindex.done_slots(state))


def has_acknowledged_completion(state: CoordinatorState, now: float) -> bool:
    """Whether all members have acknowledged completion. Not waited for: an agent that is lost or refused, and
    one that never reported to this boot, after lostSeconds."""
    for member_ranks in ranks_of_members(state, state.member_slots & ~state.facts.completed):
        agent = member_ranks.agent
        waited = now - state.phase_since > state.config.timeouts.lost
        gone = (
            waited
            if agent is None
            else is_lost(state, agent, now) or bool(refusal_reason(state, agent.report))
        )
        if not gone:
            return False
    return True


def is_rank_done(state: CoordinatorState, rank: RankReport) -> bool:
    """Whether the rank's script has exited and ended well: exit code 0, or a signal after its end while a
    sibling exited cleanly."""
    return is_clean(rank) or (is_aborted_at_end(rank) and state.facts.clean != 0)


def _evidence_of_member(
    state: CoordinatorState, member_ranks: MemberRanks, now: float, least: int
) -> tuple[Evidence, ...]:
    """Evidence of one member that is not done: that it is lost, otherwise the exits of its ranks."""
    loss = _loss_text(state, member_ranks, now)
    if loss:
        return (Evidence(LOST, Cause.AGENT_LOST, member_ranks.member.slot, loss),)
    all_evidence = (
        _evidence_of_rank(state, member_ranks, rank, least) for rank in member_ranks.known.values()
    )
    return tuple(evidence for evidence in all_evidence if evidence)


def _loss_text(state: CoordinatorState, member_ranks: MemberRanks, now: float) -> str:
    """Why this member's ranks are lost, for people; "": they are not. First match wins."""
    slot = member_ranks.member.slot
    assert state.world is not None
    if not holds_slot(state, Pod(slot, member_ranks.member.incarnation, member_ranks.member.pod_uid)):
        return f"slot {slot} was assigned to another pod, without the ranks of this world"
    if member_ranks.agent is None or is_lost(state, member_ranks.agent, now):
        return f"the agent of slot {slot} has not reported for more than {state.config.timeouts.lost} s"
    if has(state.world.confirmed, slot) and not state.world.has_ranks_of(member_ranks.agent.report):
        return f"the agent of slot {slot} was restarted: it reports again, but without its ranks"
    return ""


def _evidence_of_rank(
    state: CoordinatorState, member_ranks: MemberRanks, rank: RankReport, least: int
) -> Evidence | None:
    """Evidence of one rank; None: it lives, is done, is lighter than `least`, or is undecided until all ranks
    have exited."""
    if rank.phase is not RankPhase.EXITED or is_rank_done(state, rank):
        return None
    slot, exit = member_ranks.member.slot, rank.exit
    if exit is None:
        return Evidence(
            KILLED_BY_US,
            Cause.UNKNOWN,
            slot,
            f"rank {rank.rank} has ended, but its agent could not observe how",
            rank.rank,
        )
    if is_aborted_at_end(rank) and not slotindex.has_all_members(state, state.facts.exited):
        return None  # done, if a sibling exits cleanly
    weight, cause = _weight_and_cause(state, exit)
    if weight < least:
        return None
    number = rank.rank if exit.rank is None else exit.rank
    evidence = Evidence(weight, cause, slot, exit_text(number, exit, cause), number, exit)
    is_peer_error = weight == CONSEQUENCE and not exit.storage
    return _moved_to_clean_exit(state, evidence) if is_peer_error else evidence


def _moved_to_clean_exit(state: CoordinatorState, evidence: Evidence) -> Evidence:
    """The evidence of a peer error, moved to the first rank that exited cleanly, if there is one: the others
    failed because that rank was no longer there."""
    known = (
        (member_ranks.member.slot, rank)
        for member_ranks in ranks_of_members(state, state.facts.clean)
        for rank in member_ranks.known.values()
    )
    ended = next(((slot, rank.rank) for slot, rank in known if is_clean(rank)), None)
    if ended is None:
        return evidence
    slot, number = ended
    message = f"rank {number} had ended with exit code 0, then {evidence.message}"
    return replace(evidence, slot=slot, rank=number, message=message)


def moved_to_first_hung(state: CoordinatorState, evidence: Evidence) -> Evidence:
    """The evidence of a hang, moved to the rank that hung first; other evidence unchanged.

    Ranks that wait for a hung one hang too, and any of them may be reported first. The first is the hanging
    rank of the lowest step; among equals, one that is in no collective. If that holds of all, the first is
    unknown, and the message says so. With parameter servers ranks do not wait for each other.
    """
    if evidence.cause not in (Cause.HANG, Cause.START_TIMEOUT) or state.config.servers:
        return evidence
    hanging = [
        (member_ranks.member.slot, rank, rank.hang)
        for member_ranks in ranks_of_members(state, ALL)
        for rank in member_ranks.known.values()
        if rank.hang
    ]
    if len(hanging) < 2:
        return evidence
    lowest = min(rank.step for _, rank, _ in hanging)
    behind = [each for each in hanging if each[1].step == lowest]
    first = [each for each in behind if not each[2].waits] or behind
    if len(first) == len(hanging):
        where = f"{len(first)} ranks hang {_step_text(first[0][1])}, their stacks are in the logs"
        return replace(evidence, message=f"{evidence.message}; the first of them is unknown: {where}")
    if any(rank.rank == evidence.rank for _, rank, _ in first):
        return replace(evidence, message=f"{evidence.message}; it blocked the others")
    slot, rank, hang = first[0]
    here = f", in {hang.where}" if hang.where else ""
    message = f"rank {rank.rank} blocked the others ({_step_text(rank)}{here}): {evidence.message}"
    exit = evidence.exit and replace(evidence.exit, last_lines=())  # the lines are of the other rank
    return replace(evidence, slot=slot, rank=rank.rank, message=message, exit=exit)


def _step_text(rank: RankReport) -> str:
    """Where in training the rank is, as the end of a clause."""
    return f"after step {rank.step}" if rank.steps_here else "before the first step"


def _weight_and_cause(state: CoordinatorState, exit: ProcessExit) -> tuple[int, Cause]:
    """First match wins. What the agent observed comes first; a rank that it killed on orders is no cause.
    Rules of `recovery.exitCodes` come before peer errors: the user knows the exit code."""
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


def is_script_fault(cause: Cause, exit: ProcessExit | None) -> bool:
    """Whether the exit is of the script itself: by an exception (of accelerator memory or a lost peer, too),
    or by an exit code. Another pod would not help."""
    return cause is Cause.ERROR or (cause is Cause.OUT_OF_MEMORY and exit is not None and not exit.oom)


def exit_rule(state: CoordinatorState, exit: ProcessExit | None) -> ExitAction | None:
    """The action for this exit by the first matching rule of `recovery.exitCodes`. None: no rule matches, or
    the exit is no choice of the script (killed by its agent, checkpoint not readable)."""
    if exit is None or exit.killed or exit.storage:
        return None
    return next((rule.action for rule in state.config.exit_codes if exit.code in rule.codes), None)


def _is_consequence(exit: ProcessExit) -> bool:
    """Whether the rank died because a peer had died, by the text of its error. NCCL and gloo end a process
    by an exception or SIGABRT; other signals have causes of their own."""
    if exit.signal not in (None, _ABORTED):
        return False
    text = " ".join((exit.fingerprint, exit.message) if exit.message else exit.last_lines)
    return blames_a_peer(text)


def exit_text(rank: int, exit: ProcessExit, cause: Cause) -> str:
    """One sentence on an exit, for people. `rank`: the rank that exited."""
    ending = {
        Cause.OUT_OF_MEMORY: "ran out of memory and was killed" if exit.oom else f"exited {exit.code}",
        Cause.HANG: "made no progress and was killed",
        Cause.START_TIMEOUT: "made no first step within spec.recovery.startSeconds and was killed",
        Cause.STORAGE_UNAVAILABLE: "could not read its checkpoint",
        Cause.AGENT_LOST: (
            "was killed by its agent, which had reached no coordinator for spec.recovery.fenceSeconds"
        ),
    }.get(cause, f"was killed by {exit.how}" if exit.signal is not None else f"exited {exit.code}")
    if exit.message:
        return f"rank {rank} {ending}: {exit.message}"
    last_line = _last_line(exit) if exit.code else ""
    return f"rank {rank} {ending}" + (f"; its last line: {last_line}" if last_line else "")


def _last_line(exit: ProcessExit) -> str:
    """The last line of output that is not blank; "": none. A program that exits by a code has often just
    printed why."""
    return next((line.strip() for line in reversed(exit.last_lines) if line.strip()), "")


def fingerprint(cause: Cause, exit: ProcessExit | None) -> str:
    """Text that identifies a fault: same text, same fault. "": the fault is not charged to the script (a lost
    pod; SIGKILL and SIGTERM come from outside), and does not count as repeated."""
    if exit is None or not cause.charged or (cause is Cause.SIGNAL and exit.signal in (9, 15)):
        return ""
    return exit.fingerprint or exit.how
