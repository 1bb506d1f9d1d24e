"""Default process groups of torch.distributed that a world has formed, and the verdict on them. Pure.

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
from ropeteam_trainer.coordinator.membership.state.state import State
from ropeteam_trainer.coordinator.membership.state.world import Group, World

MAX_SHOWN, MAX_GROUPS, MAX_SLOTS_SHOWN = 10, 32, 16
_MOST_RANKS = 1 << 20
ENDED_SECONDS = 300.0
"""Time without a step after a rank has ended, before a notice."""
_REMEDY = (
    "Set spec.command to the script, or to torchrun without --standalone and --nnodes; or, if each pod is to "
    "train alone, set spec.worlds to PerPod"
)


def absorb(known: tuple[Group, ...], reports: Iterable[AgentReport]) -> tuple[Group, ...]:
    """The groups of the current world with those in these reports; none is ever removed."""
    found = {(each.size, each.id): each for each in known}
    for report in reports:
        for reported in report.groups:
            group = _group(report.slot, reported)
            key = (group.size, group.id)
            found[key] = _merged(found[key], group) if key in found else group
    return tuple(sorted(found.values(), key=lambda each: -each.size)[:MAX_GROUPS])


def _group(slot: int, reported: GroupReport) -> Group:
    return Group(
        reported.id,
        reported.size,
        reported.who,
        slotset.one(slot),
        slotset.of(_possible_ranks(reported.ranks)),
        slotset.of(_possible_ranks(reported.members)),
    )


def _possible_ranks(numbers: Iterable[int]) -> Iterable[int]:
    """The numbers that can be ranks: whatever a process reports, the set stays small."""
    return (number for number in numbers if 0 <= number < _MOST_RANKS)


def _merged(one: Group, other: Group) -> Group:
    return replace(
        one,
        slots=one.slots | other.slots,
        ranks=one.ranks | other.ranks,
        members=one.members | other.members,
    )


def formed(state: State, world: World) -> bool:
    """Whether a group of the world's size has formed: its ranks are all ranks known to be in such groups. A
    group of that size without an id, because its store could not name it, counts as formed."""
    large = [group for group in world.groups if group.size >= _size(state, world)]
    if any(not group.id for group in large):
        return True
    everyone = slotset.NONE
    for group in large:
        everyone |= group.ranks
    return any(group.ranks == everyone for group in large)


def _size(state: State, world: World) -> int:
    """Size of the requested group. A command that runs once per pod may be all of its pod's ranks."""
    return world.plan.slots if is_per_pod(state) else world.plan.world_size


def is_per_pod(state: State) -> bool:
    return state.launcher.startswith("PerPod")


def expects_group(state: State) -> bool:
    """Whether a group is expected: parameter servers and their workers form none, and one rank needs none."""
    world, config = state.world, state.config
    return world is not None and world.plan.world_size > 1 and not (config.servers or config.worlds_per_pod)


def _is_late(state: State, since: float | None, now: float) -> bool:
    return since is not None and now - since >= state.config.timeouts.start


def split_world(state: State, now: float) -> Problem | None:
    """Why this world is not the requested one, once that is certain."""
    world = state.world
    if world is None or not expects_group(state) or not world.groups or formed(state, world):
        return None
    grouped = slotset.NONE
    for group in world.groups:
        grouped |= group.ranks
    ended = _first_ended(state, grouped)
    if ended is None and not _is_late(state, world.grouped_at, now):
        return None
    end = f"no other has formed within spec.recovery.startSeconds ({state.config.timeouts.start} s)"
    if ended is not None:
        end = f"rank {ended} has ended with exit code 0"
    return Problem(FailReason.SPLIT_WORLD, f"{_formed_text(world)}, and {end}. {_REMEDY}.")


def _formed_text(world: World) -> str:
    some = "; ".join(_group_text(group) for group in world.groups[:3])
    more = f" and {len(world.groups) - 3} more" if len(world.groups) > 3 else ""
    return f"the job has {world.plan.world_size} ranks, but has formed {some}{more}"


def _group_text(group: Group) -> str:
    slots = list(slotset.each(group.slots))
    where = ", ".join(map(str, slots[:5])) + (" and more" if len(slots) > 5 else "")
    some = "slot" if len(slots) == 1 else "slots"
    return f"a process group of {group.size} by {group.who or 'a process'} in {some} {where}"


def _first_ended(state: State, among: Slots) -> int | None:
    """The lowest rank of these that has exited with 0."""
    known = (
        rank
        for member_ranks in ranks_of_members(state, state.facts.clean)
        for rank in member_ranks.known.values()
    )
    return min(
        (each.rank for each in known if is_clean(each) and slotset.has(among, each.rank)),
        default=None,
    )


def notice(state: State, now: float) -> Problem | None:
    """Notice on the groups of the world that runs, or has just ended."""
    world = state.world
    if world is None or not state.running:
        return None
    if expects_group(state) and not formed(state, world):
        if world.groups:
            text = f"{_formed_text(world)}. The job fails if no group of all ranks forms within "
            text += (
                f"spec.recovery.startSeconds ({state.config.timeouts.start} s), or if a rank ends before. "
            )
            text += f"{_REMEDY}."
            return Problem(FailReason.SMALLER_PROCESS_GROUP, text)
        is_over = state.phase in (WorldPhase.COMPLETING, WorldPhase.COMPLETE)
        if slotindex.all_members(state, world.reporting_groups) and (
            is_over or _is_late(state, world.started_at, now)
        ):
            text = _NONE_FORMED.format(world.plan.world_size, "" if is_over else _WAITING)
            return Problem(FailReason.NO_PROCESS_GROUP, text)
    return _ended(state, world, now) if state.phase is WorldPhase.RUNNING else None


_NONE_FORMED = (
    "the job has {} ranks, and none of them has reported a process group (torch.distributed): either {}each "
    "trains by itself, or they are started in a way that hides it (python -S or -I, env -i, no Python)"
)
_WAITING = "they wait for each other (in torchrun --standalone without --nnodes=1, say), or "


def _ended(state: State, world: World, now: float) -> Problem | None:
    """Notice that a rank has ended and the others have continued without a step."""
    if world.ended_at is None or now - max(world.ended_at, world.step_at) < ENDED_SECONDS:
        return None
    rank = _first_ended(state, slotset.ALL)
    reports_steps = state.feature_level >= FeatureLevel.STEPS
    steps = "without a step" if reports_steps else "(the script does not report its steps)"
    text = f"rank {rank} has ended with exit code 0, and the others have continued for"
    text += f" {ENDED_SECONDS / 60:.0f} minutes {steps}. They wait for it, if they share a collective"
    return Problem(FailReason.RANK_ENDED, f"{text}.")


def shown(state: State) -> tuple[ProcessGroup, ...]:
    """The largest groups, for people and Prometheus."""
    world = state.world
    if world is None or not state.running:
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
