"""Default process groups of torch.distributed that a world has formed, and whether they are a fault. Pure.

One criterion: whether a group of all ranks has ever formed in this start. Groups before or beside it (an
evaluator's, a preflight's, an inference server's) are listed and change nothing. Without it the first smaller
group is reported at once; the job fails when startSeconds have passed since (a script may take longer to its
first group, and that one be a preflight's), or when a rank of a smaller group has exited with 0: it has not
trained in the world that was requested. A world that forms no group is reported after startSeconds and at its
end. Limits: only processes that childhooks.py reaches are known; those that report nothing count neither way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ropeteam_trainer.contract.desired import WorldPhase
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.messages import AgentReport, GroupReport, Problem, ProcessGroup
from ropeteam_trainer.contract.world import FailReason
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.ranks import is_clean, ranks_of_members
from ropeteam_trainer.coordinator.membership.state.slotset import Slots
from ropeteam_trainer.coordinator.membership.state.state import CoordinatorState
from ropeteam_trainer.coordinator.membership.state.world import FormedWorld, Group

MAX_SHOWN, MAX_GROUPS, MAX_SLOTS_SHOWN = 10, 32, 16
_MOST_RANKS = 1 << 20
ENDED_SECONDS = 300.0
"""Time without a step after a rank has ended, before a notice."""
_REMEDY = (
    "Set spec.command to the script, or to torchrun without --standalone and --nnodes; or, if each pod is to "
    "train alone, set spec.worlds to PerPod"
)


def merged_groups(known: tuple[Group, ...], reports: Iterable[AgentReport]) -> tuple[Group, ...]:
    """`known` with the groups in these reports, largest first; none is removed, but beyond MAX_GROUPS the
    smallest are left out. Groups of one size and id are one, whichever agents report it."""
    found = {(each.size, each.id): each for each in known}
    for report in reports:
        for reported in report.groups:
            group = _group_of_report(report.slot, reported)
            key = (group.size, group.id)
            found[key] = _merged_group(found[key], group) if key in found else group
    return tuple(sorted(found.values(), key=lambda each: -each.size)[:MAX_GROUPS])


def _group_of_report(slot: int, reported: GroupReport) -> Group:
    """The reported group, as far as one agent knows it."""
    return Group(
        reported.id,
        reported.size,
        reported.who,
        slotset.one(slot),
        slotset.of(_possible_ranks(reported.ranks)),
        slotset.of(_possible_ranks(reported.members)),
    )


def _possible_ranks(numbers: Iterable[int]) -> Iterable[int]:
    """The numbers that can be ranks. Any process in a pod can report any number, and a set of ranks is an
    integer of as many bits."""
    return (number for number in numbers if 0 <= number < _MOST_RANKS)


def _merged_group(one: Group, other: Group) -> Group:
    """`one` with the slots and ranks of `other`, a report of the same group."""
    return replace(
        one,
        slots=one.slots | other.slots,
        ranks=one.ranks | other.ranks,
        members=one.members | other.members,
    )


def has_full_group(state: CoordinatorState, world: FormedWorld) -> bool:
    """Whether the requested group has formed: one of at least its size, with all ranks that are known to be
    in groups of that size. Two such groups of different ranks are a split world. A group without an id counts
    as formed: its store could not name it, so its reports cannot be distinguished from another's."""
    large = [group for group in world.groups if group.size >= _requested_size(state, world)]
    if any(not group.id for group in large):
        return True
    everyone = slotset.NONE
    for group in large:
        everyone |= group.ranks
    return any(group.ranks == everyone for group in large)


def _requested_size(state: CoordinatorState, world: FormedWorld) -> int:
    """Size from which on a group is the requested one: all ranks; with one command per pod, all pods, because
    a command may stand for all ranks of its pod."""
    return world.plan.slots if is_per_pod(state) else world.plan.world_size


def is_per_pod(state: CoordinatorState) -> bool:
    """Whether the command is started once per pod, not once per rank."""
    return state.launcher.startswith("PerPod")


def expects_group(state: CoordinatorState) -> bool:
    """Whether one process group of all ranks is expected. Not with parameter servers, for one rank, or if
    each pod may train a world of its own; nor if ranks live on from an earlier world, which had one, or are
    absent."""
    world, config = state.world, state.config
    if world is None or world.plan.started or world.absent:
        return False
    return world.plan.world_size > 1 and not (config.servers or config.worlds_per_pod)


def _is_start_overdue(state: CoordinatorState, since: float | None, now: float) -> bool:
    """Whether startSeconds have passed since then; None: it has not happened yet."""
    return since is not None and now - since >= state.config.timeouts.start


def split_world_problem(state: CoordinatorState, now: float) -> Problem | None:
    """The failure of a job that trains in smaller groups than requested; None: it does not, or that is not
    certain yet. Certain: a rank of a group exited with 0, or startSeconds passed since the first group."""
    world = state.world
    if world is None or not expects_group(state) or not world.groups or has_full_group(state, world):
        return None
    grouped = slotset.NONE
    for group in world.groups:
        grouped |= group.ranks
    ended = _first_ended(state, grouped)
    if ended is None and not _is_start_overdue(state, world.grouped_at, now):
        return None
    end = f"no other has formed within spec.recovery.startSeconds ({state.config.timeouts.start} s)"
    if ended is not None:
        end = f"rank {ended} has ended with exit code 0"
    return Problem(FailReason.SPLIT_WORLD, f"{_formed_text(world)}, and {end}. {_REMEDY}.")


def _formed_text(world: FormedWorld) -> str:
    """A clause on the ranks of the job and its largest three groups."""
    some = "; ".join(_group_text(group) for group in world.groups[:3])
    more = f" and {len(world.groups) - 3} more" if len(world.groups) > 3 else ""
    return f"the job has {world.plan.world_size} ranks, but has formed {some}{more}"


def _group_text(group: Group) -> str:
    slots = list(slotset.each(group.slots))
    where = ", ".join(map(str, slots[:5])) + (" and more" if len(slots) > 5 else "")
    some = "slot" if len(slots) == 1 else "slots"
    return f"a process group of {group.size} by {group.who or 'a process'} in {some} {where}"


def _first_ended(state: CoordinatorState, among: Slots) -> int | None:
    """The lowest of these ranks that has exited with 0; None: none has."""
    known = (
        rank
        for member_ranks in ranks_of_members(state, state.facts.clean)
        for rank in member_ranks.known.values()
    )
    return min(
        (each.rank for each in known if is_clean(each) and slotset.has(among, each.rank)),
        default=None,
    )


def notice(state: CoordinatorState, now: float) -> Problem | None:
    """The notice of a world that runs although something is wrong with its groups; None: nothing is known to
    be. First match wins: smaller groups, no group, a rank that has ended. Also while all ranks are done,
    because people look then."""
    world = state.world
    if world is None or not state.is_world_live:
        return None
    if expects_group(state) and not has_full_group(state, world):
        if world.groups:
            text = f"{_formed_text(world)}. The job fails if no group of all ranks forms within "
            text += f"spec.recovery.startSeconds ({state.config.timeouts.start} s), or if a rank ends "
            text += "before. "
            text += f"{_REMEDY}."
            return Problem(FailReason.SMALLER_PROCESS_GROUP, text)
        is_over = state.phase in (WorldPhase.COMPLETING, WorldPhase.COMPLETE)
        if slotindex.has_all_members(state, world.reporting_groups) and (
            is_over or _is_start_overdue(state, world.started_at, now)
        ):
            text = _NONE_FORMED.format(world.plan.world_size, "" if is_over else _WAITING)
            return Problem(FailReason.NO_PROCESS_GROUP, text)
    return _rank_ended_notice(state, world, now) if state.phase is WorldPhase.RUNNING else None


_NONE_FORMED = (
    "the job has {} ranks, and none of them has reported a process group (torch.distributed): either {}each "
    "trains by itself, or they are started in a way that hides it (python -S or -I, env -i, no Python). "
    f"{_REMEDY}. If they are started so on purpose, nothing is wrong."
)
_WAITING = "they wait for each other (in torchrun --standalone without --nnodes=1, say), or "


def _rank_ended_notice(state: CoordinatorState, world: FormedWorld, now: float) -> Problem | None:
    """The notice that a rank exited with 0 and the others have made no step for ENDED_SECONDS since; None
    before."""
    if world.ended_at is None or now - max(world.ended_at, world.step_at) < ENDED_SECONDS:
        return None
    rank = _first_ended(state, slotset.ALL)
    reports_steps = state.feature_level >= FeatureLevel.STEPS
    steps = "without a step" if reports_steps else "(the script does not report its steps)"
    text = f"rank {rank} has ended with exit code 0, and the others have continued for"
    text += f" {ENDED_SECONDS / 60:.0f} minutes {steps}. They wait for it, if they share a collective: look"
    text += " at their logs, and let the script end on all ranks together"
    return Problem(FailReason.RANK_ENDED, f"{text}.")


def shown_groups(state: CoordinatorState) -> tuple[ProcessGroup, ...]:
    """The largest groups of the running world, for people and Prometheus. Empty: no world runs, or no group
    is known."""
    world = state.world
    if world is None or not state.is_world_live:
        return ()
    return tuple(
        ProcessGroup(
            group.size,
            group.members.bit_count(),
            tuple(slotset.each(group.slots))[:MAX_SLOTS_SHOWN],
            group.who,
        )
        for group in world.groups[:MAX_SHOWN]
    )
