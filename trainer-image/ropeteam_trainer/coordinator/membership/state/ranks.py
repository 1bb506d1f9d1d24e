"""The ranks of the members of the current world, as their agents report them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ropeteam_trainer.contract.messages import RankPhase, RankReport
from ropeteam_trainer.contract.world import Member, ProcessExit, WorldId
from ropeteam_trainer.coordinator.membership.state import slotset
from ropeteam_trainer.coordinator.membership.state.slots import agent_of_member
from ropeteam_trainer.coordinator.membership.state.slotset import Slots
from ropeteam_trainer.coordinator.membership.state.state import Agent, CoordinatorState


class MemberRanks(NamedTuple):
    """The ranks of one member of the current world, as its agent last reported. Preserved ranks may still be
    reported under their previous world; then those that the current one starts again are not known."""

    member: Member
    ranks: range
    agent: Agent | None
    """The member's agent; None: it has not reported to this boot."""
    known: dict[int, RankReport]
    """Reports by rank. Empty until the agent has confirmed the plan."""

    @property
    def reports(self) -> tuple[RankReport | None, ...]:
        """The report of each rank, in rank order; None: not reported."""
        return tuple(self.known.get(rank) for rank in self.ranks)


def ranks_of_members(state: CoordinatorState, among: Slots) -> Iterator[MemberRanks]:
    """The ranks of these slots' members of the current world, in slot order. Empty without a world."""
    return (
        found for slot in slotset.each(among & state.all_slots) if (found := ranks_of_member(state, slot))
    )


def ranks_of_member(state: CoordinatorState, slot: int) -> MemberRanks | None:
    """The ranks of the slot's member of the current world; None: no world."""
    world = state.world
    member = world.plan.member(slot) if world else None
    if world is None or member is None:
        return None
    ranks, agent = world.plan.ranks(slot), agent_of_member(state, member)
    if agent is None or agent.report.plan is None or not world.has_ranks_of(agent.report):
        return MemberRanks(member, ranks, agent, {})
    is_earlier = agent.report.plan.world_id != world.plan.world_id
    replaced = world.plan.started if is_earlier else ()
    known = {each.rank: each for each in agent.report.ranks if each.rank in ranks}
    return MemberRanks(member, ranks, agent, {n: each for n, each in known.items() if n not in replaced})


def lead_started_in(state: CoordinatorState) -> WorldId | None:
    """The world that started the leading rank of the current world; None: no world."""
    return state.world.plan.started_in(state.config.lead_slot) if state.world else None


def saves_as(state: CoordinatorState) -> WorldId | None:
    """The world under whose name checkpoints are saved; None: no world."""
    deputy = state.world.deputy if state.world else None
    return deputy.world_id if deputy else lead_started_in(state)


def committing_slot(state: CoordinatorState) -> int:
    """The slot whose agent commits: that of the leading rank, or its deputy."""
    deputy = state.world.deputy if state.world else None
    return deputy.slot if deputy else state.config.lead_slot


def counted_shards(state: CoordinatorState, member_ranks: MemberRanks | None) -> list[tuple[int, int]]:
    """Step and rank of each of the member's shards that counts towards a grant: of the current world, and
    reported by the agent of its rank. A whole one counts for the ranks of its part in all replicas. Empty for
    a slot that does not save."""
    if member_ranks is None or member_ranks.agent is None or not member_ranks.agent.report.shards:
        return []
    if not member_ranks.known or not is_saver(state, member_ranks.member.slot):
        return []
    assert state.world is not None
    world_id, ranks, size = saves_as(state), state.world.plan.world_size, state.config.replica_ranks
    return [
        (s.step, rank)
        for s in member_ranks.agent.report.shards
        if s.world_id == world_id and s.rank in member_ranks.ranks
        for rank in (range(s.rank % size, ranks, size) if s.whole else (s.rank,))
    ]


def is_saver(state: CoordinatorState, slot: int) -> bool:
    """Whether the slot's ranks save checkpoints: all do; with parameter servers only the first server."""
    return not state.config.servers or slot == state.config.lead_slot


def can_regroup(rank: RankReport) -> bool:
    """Whether the rank lives, has made a step, and can continue without others that are lost."""
    return rank.phase is not RankPhase.EXITED and rank.regroups and rank.steps_here > 0


def is_any_rank_joining(state: CoordinatorState) -> bool:
    """Whether some rank that the current world starts beside others has neither made a step nor exited, or is
    not known to be started. Only for a state with a world."""
    assert state.world is not None
    started = {*state.world.plan.started}
    slots = slotset.of({rank // state.config.processes for rank in started})
    return any(
        rank in started and _is_joining(report)
        for each in ranks_of_members(state, slots)
        for rank, report in zip(each.ranks, each.reports, strict=True)
    )


def _is_joining(report: RankReport | None) -> bool:
    return report is None or (report.steps_here == 0 and report.phase is not RankPhase.EXITED)


def is_clean(rank: RankReport) -> bool:
    """Whether the rank exited with 0 by itself. One that was killed on orders has not, whatever its code: a
    script may exit with 0 on SIGTERM."""
    return rank.exit is not None and rank.exit.clean and not rank.exit.killed


def is_aborted_at_end(rank: RankReport) -> bool:
    """Whether the rank died by a signal after its script's end (gloo sometimes ends by SIGABRT)."""
    return rank.exit is not None and _is_aborted(rank.exit)


def _is_aborted(exit: ProcessExit) -> bool:
    """Whether a signal that we did not send has ended the process after its script's end."""
    return exit.signal is not None and exit.reached_end and not (exit.hung or exit.oom or exit.killed)
