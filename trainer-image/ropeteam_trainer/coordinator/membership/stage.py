"""Stages of a world up to its first step, and a sentence for each. Pure.

Order: all ranks started -> the script imports -> a process group -> a checkpoint restored -> the first step
of all ranks. Limits: a script that reports no steps counts as training once the process group of all ranks
has formed. If no group is to form (one rank, PerPod), IMPORT_SECONDS after the start; if no rank calls
init_process_group, NO_GROUP of startSeconds after it. A world never ceases to count as training.
"""

from __future__ import annotations

from ropeteam_trainer.contract.desired import Stage, WorldPhase
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.coordinator.membership import groups
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.ranks import ranks_of_members
from ropeteam_trainer.coordinator.membership.state.state import CoordinatorState, with_world
from ropeteam_trainer.coordinator.membership.state.world import FormedWorld

IMPORT_SECONDS, INIT_SECONDS = 10.0, 2.0
"""Time for a script that will report steps to import our library, and for init() after the group formed."""
NO_GROUP = 0.1
"""Fraction of startSeconds. Without a rank in init_process_group the script may use another framework."""
_NAMED = 5


def note_training(state: CoordinatorState, now: float) -> CoordinatorState:
    """The state with `world.trains` set, once that is true. It is never reset."""
    world = state.world
    if world is None or world.trains or not _is_training(state, world, now):
        return state
    return with_world(state, trains=True)


def _is_training(state: CoordinatorState, world: FormedWorld, now: float) -> bool:
    """Whether the world counts as training. First match wins:

    - the script reports steps, or ranks are not all started: all ranks have made a step;
    - no process group is expected, or agents do not report groups: IMPORT_SECONDS after the start;
    - the full group has formed: INIT_SECONDS after the first group, in which init() may still report a step;
    - otherwise startSeconds after the start, or a fraction of it (NO_GROUP) if no rank joins a group.
    """
    if world.stepped or world.started_at is None or reports_steps(state):
        return world.stepped
    passed, patience = now - world.started_at, state.config.timeouts.start
    if not (groups.expects_group(state) and slotindex.has_all_members(state, world.reporting_groups)):
        return passed >= IMPORT_SECONDS
    if groups.has_full_group(state, world):
        return now - (world.grouped_at or now) >= INIT_SECONDS
    is_awaited = world.groups or _any_rank_joins(state)
    return passed >= (patience if is_awaited else NO_GROUP * patience)  # groups.notice then warns


def reports_steps(state: CoordinatorState) -> bool:
    """Whether the script is known to report its steps; with parameter servers it has to."""
    return state.feature_level >= FeatureLevel.STEPS or state.config.servers > 0


def current_stage(state: CoordinatorState) -> Stage:
    """The stage of the running world; UNKNOWN: none runs. First match wins, the latest stage first, except
    that ranks that are being started come before what the last report shows."""
    world = state.world
    if world is None or state.phase not in (WorldPhase.RUNNING, WorldPhase.DRAINING):
        return Stage.UNKNOWN
    if world.trains:
        return Stage.TRAINING
    if world.started_at is None:
        return Stage.RANKS_STARTING
    if state.progress.phase == "restore":
        return Stage.RESTORING
    ungrouped = state.feature_level >= FeatureLevel.STEPS and not groups.expects_group(state)
    if groups.has_full_group(state, world) or ungrouped:
        return Stage.FIRST_STEP
    return Stage.PROCESS_GROUP_FORMING if _any_rank_joins(state) else Stage.SCRIPT_STARTING


def _any_rank_joins(state: CoordinatorState) -> bool:
    """Whether any rank has called init_process_group."""
    return any(
        rank.joins
        for member_ranks in ranks_of_members(state, slotset.ALL)
        for rank in member_ranks.known.values()
    )


def stage_text(state: CoordinatorState) -> str:
    """The sentence on the stage of the world, which must run or be drained."""
    world = state.world
    assert world is not None
    world_id, ranks = world.plan.world_id, world.plan.world_size - len(world.plan.absent)
    match current_stage(state):
        case Stage.RANKS_STARTING:
            return f"the {ranks} ranks of world {world_id} are being started"
        case Stage.SCRIPT_STARTING:
            return f"world {world_id} has started its {ranks} ranks; their script is importing or preparing"
        case Stage.PROCESS_GROUP_FORMING:
            return f"the {ranks} ranks of world {world_id} form their process group: {_missing_text(state)}"
        case Stage.RESTORING:
            return f"world {world_id} restores its checkpoint with {ranks} ranks"
        case Stage.FIRST_STEP:
            return f"world {world_id} works on its first step with {ranks} ranks"
        case _:
            silent = "" if world.stepped else "; no steps are reported, so a hang is not detected"
            return f"world {world_id} runs with {ranks} ranks{silent}"


def _missing_text(state: CoordinatorState) -> str:
    """Clause on the ranks that have not called init_process_group. Of a pod with one command for all its
    ranks only the first rank is named: the command stands for all."""
    missing = [
        rank
        for member_ranks in ranks_of_members(state, slotset.ALL)
        for rank in (member_ranks.ranks[:1] if groups.is_per_pod(state) else member_ranks.ranks)
        if not (rank in member_ranks.known and member_ranks.known[rank].joins)
    ]
    if not missing:
        return "all have called init_process_group"
    if len(missing) > _NAMED:
        return f"more than {_NAMED} have not called init_process_group yet"
    some = "rank" if len(missing) == 1 else "ranks"
    return f"{some} {', '.join(map(str, missing))} not in init_process_group yet"
