"""The lineage of checkpoints: which are granted, which are known to be written, from which a world resumed.

Order: every rank of the running world (with parameter servers: the rank of the first one) reports its shard
of one step -> grant (the commit point) to the agent of the leading rank -> it reports the manifest as written
-> the lineage grows by one. A grant that was not confirmed before its world ended is tried first by the next
world; the checkpoint from which that world restores settles whether it was written.
A checkpoint is filed under the world that started the leading rank, which may live on in later ones.
Promise: the lineage grows only by grants of the current world, and never loses the checkpoint from which a
world resumes; checkpoints named in the job's status are kept, however long the operator is away. After a
restart of the coordinator the agents' `granted` and `committed` rebuild all this.
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.contract.messages import AgentReport, Grant, Shard
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile
from ropeteam_trainer.coordinator.membership.state import slotset
from ropeteam_trainer.coordinator.membership.state.events import Moment
from ropeteam_trainer.coordinator.membership.state.ranks import (
    lead_started_in,
    ranks_of_member,
    ranks_of_members,
)
from ropeteam_trainer.coordinator.membership.state.slots import present
from ropeteam_trainer.coordinator.membership.state.state import State, with_world

AWAITED_COMMIT_SECONDS = 600
"""Time for which pods, once training is done, wait for the last checkpoint to be committed and saved in
status. An operator that is upgraded, or newly elected, is back by then; and finished pods hold GPUs."""


def restore_candidates(state: State) -> tuple[CheckpointRef, ...]:
    """Checkpoints from which the next world may resume, best first."""
    return ((state.pending,) if state.pending else ()) + state.lineage


def retained(state: State) -> tuple[CheckpointRef, ...]:
    """Checkpoints that must not be pruned: our lineage, newest first, then all others that status may name.
    A world that has not committed or restored any prunes none."""
    if not state.lineage:
        return ()
    named = (ref for answer in state.answered for ref in answer)
    return tuple(dict.fromkeys((*state.lineage, *state.acknowledged, *named)))


def answer(state: State) -> State:
    """Note that our lineage goes to the operator in a reply, and may be saved."""
    return replace(state, answered=(*state.answered, state.lineage)[-2:])


def absorb(state: State, report: AgentReport, at: Moment) -> State:
    """The state after the commits in an accepted report."""
    if report.committed and report.committed.digest and _extends_lineage(state, report, report.committed):
        state = _confirm(state, report.committed, at)
    if report.granted and state.pending is None and _extends_lineage(state, report, report.granted):
        state = replace(state, pending=replace(report.granted, digest=""))
    return _settle_restore(state, report)


def _extends_lineage(state: State, report: AgentReport, ref: CheckpointRef) -> bool:
    """Whether the checkpoint extends the lineage. Steps only grow along a lineage. Numbers of worlds do not
    compare: the first checkpoint may be another job's.

    A checkpoint of a previous world does not extend it once a later world has resumed from another one.
    """
    if state.lineage and ref.step <= state.lineage[0].step:
        return False
    if state.world is None or not state.lives(state.config.lead_slot):
        return (
            report.plan is None
            or ref.world_id == report.plan.started_in(report.slot)
            or report.restored is None
        )
    if state.world.plan.origin is not None and ref.world_id >= state.world.plan.server_generation:
        return True  # resumed from memory of servers: all checkpoints of this server generation precede
    return ref.world_id == lead_started_in(state) or (
        state.world.base is None and _is_same(ref, state.pending)
    )


def _is_same(one: CheckpointRef, other: CheckpointRef | None) -> bool:
    """Whether both are the same checkpoint, digest known or not."""
    return other is not None and (one.world_id, one.step) == (other.world_id, other.step)


def _confirm(state: State, written: CheckpointRef, at: Moment) -> State:
    settled = state.pending is None or state.pending.step <= written.step
    return replace(
        state,
        lineage=(written, *state.lineage)[: state.config.keep],
        pending=None if settled else state.pending,
        grant=None if settled else state.grant,
        checkpoint_unix_ms=at.unix_ms,
    )


def _settle_restore(state: State, report: AgentReport) -> State:
    """Take as the lineage that of the checkpoint from which the current world resumed, as reported by the
    agent of the leading rank."""
    world, source = state.world, report.restored
    if world is None or not state.running or source is None or world.restored is not None:
        return state
    if not world.has(report) or report.slot != state.config.lead_slot:
        return state
    known = next((ref for ref in state.lineage if _is_same(ref, source)), None)
    ours = tuple(
        ref for ref in state.lineage if ref.world_id == lead_started_in(state) and ref.step > source.step
    )
    before = tuple(ref for ref in state.lineage if ref.step < source.step)
    if known is None:  # status was stale, and may name an abandoned lineage
        before = report.ancestors or before
    newest = replace(known, run=source.run) if known else source  # status has no run
    lineage = (*ours, newest, *before)[: state.config.keep]
    state = replace(with_world(state, restored=source, base=source.step), lineage=lineage)
    return _forget_stale(state)


def settle_fresh_start(state: State, base: int) -> State:
    """Note that the current world, which made steps and reported no restore, began at step `base`: the
    lineage loses checkpoints beyond it."""
    world_id = lead_started_in(state)
    lineage = tuple(ref for ref in state.lineage if ref.world_id == world_id or ref.step <= base)
    return _forget_stale(replace(with_world(state, base=base), lineage=lineage))


def _forget_stale(state: State) -> State:
    """Drop an older grant, now that the checkpoint from which the current world resumed is known: the grant
    was either for that checkpoint, or was never finished."""
    if state.pending is None or state.pending.world_id == lead_started_in(state):
        return state
    return replace(state, pending=None, grant=None)


def grant_next(state: State) -> State:
    """Grant the commit of the newest complete step, one at a time, and only while its savers live."""
    world_id, step = lead_started_in(state), _complete_step(state)
    if state.grant or state.world is None or world_id is None or step is None:
        return state
    if not state.lives(state.config.lead_slot):
        return state
    ref = CheckpointRef(step, world_id, run=state.config.job_uid)
    parent = state.lineage[0] if state.lineage else None
    grant = Grant(ref, state.world.plan.world_size, _files(state, step), parent)
    return replace(state, grant=grant, pending=ref)


def awaited_commit(state: State, now: float) -> str:
    """Condition that the last checkpoint still waits for, once all ranks are done; "": none, or the limit has
    passed."""
    if now - state.phase_since > AWAITED_COMMIT_SECONDS:
        return ""
    lead = ranks_of_member(state, state.config.lead_slot)
    if state.pending and lead and lead.known and present(state, state.config.lead_slot, now):
        return f"the manifest of step {state.pending.step} to be written"
    newest = state.lineage[0] if state.lineage else None
    if newest and not any(_is_same(newest, ref) for ref in state.acknowledged):
        return f"the operator to record that step {newest.step} is committed"
    return ""


def shards(state: State, step: int) -> dict[int, Shard]:
    """Shards of one step, written by ranks of the current world, by rank."""
    return {shard.rank: shard for shard in _shards(state) if shard.step == step}


def _shards(state: State) -> list[Shard]:
    """All shards of the current world; a shard counts only if reported by the agent of its rank."""
    world_id = lead_started_in(state)
    return [
        shard
        for member_ranks in ranks_of_members(state, savers(state))
        if member_ranks.known and member_ranks.agent
        for shard in member_ranks.agent.report.shards
        if shard.world_id == world_id and shard.rank in member_ranks.ranks
    ]


def savers(state: State) -> slotset.Slots:
    """Slots whose ranks save: all; with parameter servers the first of these."""
    return slotset.one(state.config.lead_slot) if state.config.servers else state.everybody


def _complete_step(state: State) -> int | None:
    """The newest step beyond the lineage for which every rank has written its shard. But first a step
    granted before a restart of ours: its manifest may be on its way, and is then the parent of the next."""
    size = state.world.plan.world_size if state.world and not state.config.servers else 1
    known = state.lineage[0].step if state.lineage else -1
    steps = [step for step, ranks in state.saved.items() if ranks == size and step > known]
    pending = (
        state.pending.step if state.pending and state.pending.world_id == lead_started_in(state) else None
    )
    return pending if pending in steps else max(steps, default=None)


def _files(state: State, step: int) -> tuple[ShardFile, ...]:
    return tuple(file for _, shard in sorted(shards(state, step).items()) for file in shard.files)
