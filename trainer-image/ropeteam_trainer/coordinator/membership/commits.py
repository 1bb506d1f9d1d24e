"""The lineage of checkpoints: which are granted, which are known to be written, from which a world resumed.

Order: every rank of the running world (with parameter servers: the rank of the first one; under sync Exact,
if others are lost, one for all) reports its shard of one step -> grant (the commit point) to the agent of the
leading rank -> it reports the manifest as written -> the lineage grows by one. A grant that was not confirmed
before its world ended is tried first by the next world; the checkpoint from which that world restores settles
whether it was written.
A checkpoint is filed under the world that started the leading rank, which may live on in later ones.
Under sync Exact ranks of other pods may train on without it for long. Then the agent of one of these is its
deputy: it claims the checkpoint folder under a number of its own, under which these save from then on, and
commits. The number is below that of the next world, whose claim adopts what the deputy has committed. If the
deputy is lost, too, the next slot gets another number. A coordinator that was restarted begins again, because
its numbers are greater than all before.
Promise: the lineage grows only by grants of the current world, and never loses the checkpoint from which a
world resumes; checkpoints named in the job's status are kept, however long the operator is away. After a
restart of the coordinator the agents' `granted` and `committed` rebuild all this.
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.contract.messages import AgentReport, Grant, Shard
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile
from ropeteam_trainer.coordinator.membership.state import slotindex, slotset
from ropeteam_trainer.coordinator.membership.state.events import Moment
from ropeteam_trainer.coordinator.membership.state.ranks import (
    committing_slot,
    lead_started_in,
    ranks_of_member,
    ranks_of_members,
    saves_as,
)
from ropeteam_trainer.coordinator.membership.state.slots import agent_of_slot, present_agent
from ropeteam_trainer.coordinator.membership.state.state import CoordinatorState, with_world

AWAITED_COMMIT_SECONDS = 600
"""Time for which pods, once training is done, wait for the last checkpoint to be committed and saved in
status. An operator that is upgraded, or newly elected, is back by then; and finished pods hold GPUs."""


def restore_candidates(state: CoordinatorState) -> tuple[CheckpointRef, ...]:
    """Checkpoints from which the next world may resume, best first: the granted one, whose manifest may have
    been written, then the lineage."""
    return ((state.pending,) if state.pending else ()) + state.lineage


def retained_checkpoints(state: CoordinatorState) -> tuple[CheckpointRef, ...]:
    """Checkpoints that must not be pruned: the lineage, newest first, then all others that status may name.
    Empty until a checkpoint was committed or restored: agents then prune nothing."""
    if not state.lineage:
        return ()
    named = (ref for answer in state.answered for ref in answer)
    return tuple(dict.fromkeys((*state.lineage, *state.acknowledged, *named)))


def note_lineage_sent(state: CoordinatorState) -> CoordinatorState:
    """The state after a report to the operator, which may save the lineage in status at any later time.
    The last two are remembered: the operator may still be saving the one before."""
    return replace(state, answered=(*state.answered, state.lineage)[-2:])


def record_commits(state: CoordinatorState, report: AgentReport, at: Moment) -> CoordinatorState:
    """The state after the commits in an accepted report: a written manifest extends the lineage; a grant that
    this boot does not know (its predecessor made it) becomes `pending`; the restored checkpoint fixes the
    lineage of the world. All idempotent: each report repeats them."""
    if report.committed and report.committed.digest and _extends_lineage(state, report, report.committed):
        state = _record_manifest(state, report.committed, at)
    if report.granted and state.pending is None and _extends_lineage(state, report, report.granted):
        state = replace(state, pending=replace(report.granted, digest=""))
    return _record_restore(state, report)


def _extends_lineage(state: CoordinatorState, report: AgentReport, ref: CheckpointRef) -> bool:
    """Whether the checkpoint extends the lineage. First match wins.

    - Its step must be higher than the newest. (Numbers of worlds do not compare: the first checkpoint may be
      of another job.)
    - A deputy has saved it: ranks of this generation had made its steps, and have them in memory.
    - While the leading rank may not live: the world that started the reporting agent's ranks saved it; or
      the agent has no plan or reports no restore, so that nothing speaks against it.
    - The world resumed from servers' memory: any world of this server generation has saved it.
    - Otherwise the current world has saved it; or it is the pending grant of the previous one, until it is
      known from which checkpoint the current one resumed.
    """
    if state.lineage and ref.step <= state.lineage[0].step:
        return False
    plan = state.world.plan if state.world else report.plan
    if plan is not None and report.slot != state.config.lead_slot:
        return ref.world_id >= plan.server_generation
    if state.world is None or not state.is_slot_live(state.config.lead_slot):
        return (
            report.plan is None
            or ref.world_id == report.plan.started_in(report.slot)
            or report.restored is None
        )
    if state.world.plan.origin is not None and ref.world_id >= state.world.plan.server_generation:
        return True  # resumed from memory of servers: all checkpoints of this server generation precede
    return ref.world_id == lead_started_in(state) or (
        state.world.base is None and _is_same_checkpoint(ref, state.pending)
    )


def _is_same_checkpoint(one: CheckpointRef, other: CheckpointRef | None) -> bool:
    """Whether both are the same checkpoint, digest known or not."""
    return other is not None and (one.world_id, one.step) == (other.world_id, other.step)


def _record_manifest(state: CoordinatorState, written: CheckpointRef, at: Moment) -> CoordinatorState:
    """The state with a committed checkpoint first in its lineage. A pending grant up to its step is done."""
    is_grant_done = state.pending is None or state.pending.step <= written.step
    return replace(
        state,
        lineage=(written, *state.lineage)[: state.config.keep],
        pending=None if is_grant_done else state.pending,
        grant=None if is_grant_done else state.grant,
        checkpoint_unix_ms=at.unix_ms,
    )


def _record_restore(state: CoordinatorState, report: AgentReport) -> CoordinatorState:
    """The state with the lineage of the checkpoint from which the current world resumed, as the agent of its
    leading rank reports it. Only once per world; unchanged by other reports.

    New lineage, newest first: checkpoints that the current world has committed since, the restored one, then
    its ancestors. These are known to us, unless the restored checkpoint is not in our lineage: then the agent
    reports them.
    """
    world, source = state.world, report.restored
    if world is None or not state.is_world_live or source is None or world.restored is not None:
        return state
    if not world.has_ranks_of(report) or report.slot != state.config.lead_slot:
        return state
    known = next((ref for ref in state.lineage if _is_same_checkpoint(ref, source)), None)
    ours = tuple(
        ref for ref in state.lineage if ref.world_id == lead_started_in(state) and ref.step > source.step
    )
    before = tuple(ref for ref in state.lineage if ref.step < source.step)
    if known is None:  # status was stale, and may name an abandoned lineage
        before = report.ancestors or before
    newest = replace(known, run=source.run) if known else source  # status has no run
    lineage = (*ours, newest, *before)[: state.config.keep]
    state = replace(with_world(state, restored=source, base=source.step), lineage=lineage)
    return _drop_stale_grant(state)


def record_fresh_start(state: CoordinatorState, base: int) -> CoordinatorState:
    """The state after a start without a restored checkpoint: the current world began at step `base`.
    Checkpoints of other worlds beyond that step leave the lineage, because their steps are repeated."""
    world_id = lead_started_in(state)
    lineage = tuple(ref for ref in state.lineage if ref.world_id == world_id or ref.step <= base)
    return _drop_stale_grant(replace(with_world(state, base=base), lineage=lineage))


def _drop_stale_grant(state: CoordinatorState) -> CoordinatorState:
    """The state without a pending grant of an earlier world. Only once it is known from which checkpoint the
    current world resumed: that was the granted one, or its manifest was never written."""
    if state.pending is None or state.pending.world_id == lead_started_in(state):
        return state
    return replace(state, pending=None, grant=None)


def grant_next_commit(state: CoordinatorState) -> CoordinatorState:
    """The state with a grant for the newest complete step. Unchanged if a grant is in the orders already, no
    step is complete, or the ranks of the slot whose agent would write the manifest may not live."""
    world_id, step = saves_as(state), _step_to_grant(state)
    if state.grant or state.world is None or world_id is None or step is None:
        return state
    if not state.is_slot_live(committing_slot(state)):
        return state
    ref = CheckpointRef(step, world_id, run=state.config.job_uid)
    parent = state.lineage[0] if state.lineage else None
    ranks, files = _content_of_step(state, step)
    return replace(state, grant=Grant(ref, ranks, files, parent), pending=ref)


def appoint_deputy(state: CoordinatorState, at: Moment) -> CoordinatorState:
    """The state with a deputy of the leading rank: the lowest of the slots that train whose agent supports
    that. Unchanged if ranks of the leading slot train, a deputy is there already, or no agent supports it.
    Only under sync Exact."""
    world, lead = state.world, state.config.lead_slot
    if world is None or state.config.servers or state.is_slot_live(lead):
        return state
    if world.deputy and state.is_slot_live(world.deputy.slot):
        return state
    leading = agent_of_slot(state, lead)
    if leading and not leading.report.supports_claim:  # it would take the deputy's claim for its own end
        return state
    trains = state.facts.member & state.facts.regroups if state.is_world_live else world.preserved
    able = trains & state.facts.supports_claim
    return slotindex.enter_deputy(state, slotset.first(able), at.now) if able else state


def awaited_commit(state: CoordinatorState, now: float) -> str:
    """Condition that the last checkpoint waits for, once all ranks are done, as the end of "waiting for". "":
    it is committed and saved in status, or AWAITED_COMMIT_SECONDS have passed. The manifest is not waited for
    if the agent that would write it is lost."""
    if now - state.phase_since > AWAITED_COMMIT_SECONDS:
        return ""
    lead = ranks_of_member(state, committing_slot(state))
    if state.pending and lead and lead.known and present_agent(state, committing_slot(state), now):
        return f"the manifest of step {state.pending.step} to be written"
    newest = state.lineage[0] if state.lineage else None
    if newest and not any(_is_same_checkpoint(newest, ref) for ref in state.acknowledged):
        return f"the operator to record that step {newest.step} is committed"
    return ""


def shards_of_step(state: CoordinatorState, step: int) -> dict[int, Shard]:
    """Shards of one step of the current world, by rank."""
    return {shard.rank: shard for shard in _shards_of_world(state) if shard.step == step}


def _shards_of_world(state: CoordinatorState) -> list[Shard]:
    """All shards of the current world. A shard counts only if the agent of its own rank reports it."""
    world_id = saves_as(state)
    return [
        shard
        for member_ranks in ranks_of_members(state, saver_slots(state))
        if member_ranks.known and member_ranks.agent
        for shard in member_ranks.agent.report.shards
        if shard.world_id == world_id and shard.rank in member_ranks.ranks
    ]


def saver_slots(state: CoordinatorState) -> slotset.Slots:
    """Slots whose ranks save checkpoints: all; with parameter servers only the first of these."""
    return slotset.one(state.config.lead_slot) if state.config.servers else state.all_slots


def _step_to_grant(state: CoordinatorState) -> int | None:
    """The newest step beyond the lineage that is complete: every rank has written its shard, or one has
    written all. None: there is none. One that an earlier boot granted comes first: its manifest may be being
    written, and is then the parent of the next one."""
    size = state.world.plan.world_size if state.world and not state.config.servers else 1
    known = state.lineage[0].step if state.lineage else -1
    steps = [step for step, ranks in state.saved.items() if ranks >= size and step > known]
    pending = state.pending.step if state.pending and state.pending.world_id == saves_as(state) else None
    return pending if pending in steps else max(steps, default=None)


def _content_of_step(state: CoordinatorState, step: int) -> tuple[int, tuple[ShardFile, ...]]:
    """Number of the ranks that have saved this step, and the files of their shards, in rank order."""
    assert state.world is not None
    shards = sorted(shards_of_step(state, step).items())
    saved, size = state.world.plan.world_size, state.config.replica_ranks
    if whole := [
        rank for rank, shard in shards if shard.whole
    ]:  # by one replica: others have left it to that
        saved, mates = size, range(whole[0] - whole[0] % size, whole[0] - whole[0] % size + size)
        shards = [(rank, shard) for rank, shard in shards if rank in mates]
    return saved, tuple(file for _, shard in shards for file in shard.files)
