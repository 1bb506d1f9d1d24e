"""The lineage of checkpoints: what was granted, what is known to be written, what a world went on from.

Order: every rank of the running epoch (with parameter servers: the rank of the first one) reports its shard
of one step -> grant (the commit point) to the agent of the leading rank -> it reports the manifest as written
-> the lineage grows by one. A grant that was not confirmed before its world ended is tried first by the next
world; what that one restored from settles whether it was written.
A checkpoint is filed under the epoch that started the leading rank, which may live on in later ones.
Promise: the lineage grows only by grants of the current epoch, and what a world goes on from is never lost
from it; what the job's status names is kept, however long the operator is away. After a restart of the
coordinator the agents' `granted` and `committed` rebuild all this.
"""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.contract.messages import AgentReport, Grant, Shard
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile
from ropeteam_trainer.coordinator.membership.state import slotset
from ropeteam_trainer.coordinator.membership.state.state import (
    Moment,
    State,
    lead_born,
    present,
    ranks_of_member,
    ranks_of_members,
    with_world,
)

LAST_WORD_SECONDS = 600
"""For how long pods whose training is done wait for the last checkpoint to be committed and known. An
operator that is upgraded, or elected anew, is back by then; and finished pods hold GPUs."""


def restore_candidates(state: State) -> tuple[CheckpointRef, ...]:
    """Where the next world goes on from, best first."""
    return ((state.pending,) if state.pending else ()) + state.lineage


def kept(state: State) -> tuple[CheckpointRef, ...]:
    """What may not be pruned: our lineage, newest first, then all else that status may name. Nothing is
    pruned by a world that has not committed or restored anything."""
    if not state.lineage:
        return ()
    named = (ref for answer in state.answered for ref in answer)
    return tuple(dict.fromkeys((*state.lineage, *state.acknowledged, *named)))


def answer(state: State) -> State:
    """The operator hears of our lineage, and may save it."""
    return replace(state, answered=(*state.answered, state.lineage)[-2:])


def absorb(state: State, report: AgentReport, at: Moment) -> State:
    """What an accepted agent says about commits."""
    if report.committed and report.committed.digest and _is_news(state, report, report.committed):
        state = _confirm(state, report.committed, at)
    if report.granted and state.pending is None and _is_news(state, report, report.granted):
        state = replace(state, pending=replace(report.granted, digest=""))
    return _settle_restore(state, report)


def _is_news(state: State, report: AgentReport, ref: CheckpointRef) -> bool:
    """It extends the lineage. Steps only grow along a lineage; epochs do not compare, the first ref may be
    another job's.

    What was written for a world that was left behind is no news once a later world went on from something
    else.
    """
    if state.lineage and ref.step <= state.lineage[0].step:
        return False
    if state.world is None or not state.lives(state.config.lead_slot):
        return report.plan is None or ref.epoch == report.plan.born(report.slot) or report.restored is None
    if state.world.plan.origin is not None and ref.epoch >= state.world.plan.line:
        return True  # parameter servers went on from memory: all that this line has written is its past
    return ref.epoch == lead_born(state) or (state.world.base is None and _same(ref, state.pending))


def _same(one: CheckpointRef, other: CheckpointRef | None) -> bool:
    """The same checkpoint, its digest known or not."""
    return other is not None and (one.epoch, one.step) == (other.epoch, other.step)


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
    """The agent of the leading rank tells what the current world went on from: that is the lineage now."""
    world, source = state.world, report.restored
    if world is None or not state.running or source is None or world.restored is not None:
        return state
    if not world.has(report) or report.slot != state.config.lead_slot:
        return state
    known = next((ref for ref in state.lineage if _same(ref, source)), None)
    ours = tuple(ref for ref in state.lineage if ref.epoch == lead_born(state) and ref.step > source.step)
    before = tuple(ref for ref in state.lineage if ref.step < source.step)
    if known is None:  # status was behind, and may name a line that was left
        before = report.past or before
    newest = replace(known, run=source.run) if known else source  # status tells of no run
    lineage = (*ours, newest, *before)[: state.config.keep]
    state = replace(with_world(state, restored=source, base=source.step), lineage=lineage)
    return _forget_stale(state)


def settle_fresh_start(state: State, base: int) -> State:
    """The current world made steps and told of no restore: it began at step `base`, so nothing beyond that is
    its past."""
    epoch = lead_born(state)
    lineage = tuple(ref for ref in state.lineage if ref.epoch == epoch or ref.step <= base)
    return _forget_stale(replace(with_world(state, base=base), lineage=lineage))


def _forget_stale(state: State) -> State:
    """What the current world went on from is known: an older grant was either that, or never finished."""
    if state.pending is None or state.pending.epoch == lead_born(state):
        return state
    return replace(state, pending=None, grant=None)


def grant_next(state: State) -> State:
    """Let the newest complete step be committed, one at a time, and only while those who save it live."""
    epoch, step = lead_born(state), _complete_step(state)
    if state.grant or state.world is None or epoch is None or step is None:
        return state
    if not state.lives(state.config.lead_slot):
        return state
    ref = CheckpointRef(step, epoch, run=state.config.job_uid)
    parent = state.lineage[0] if state.lineage else None
    grant = Grant(ref, state.world.plan.world_size, _files(state, step), parent)
    return replace(state, grant=grant, pending=ref)


def last_word(state: State, now: float) -> str:
    """All ranks are done: what is still to happen to the last checkpoint; "": nothing, or it was waited for
    long enough."""
    if now - state.phase_since > LAST_WORD_SECONDS:
        return ""
    lead = ranks_of_member(state, state.config.lead_slot)
    if state.pending and lead and lead.known and present(state, state.config.lead_slot, now):
        return f"the manifest of step {state.pending.step} to be written"
    newest = state.lineage[0] if state.lineage else None
    if newest and not any(_same(newest, ref) for ref in state.acknowledged):
        return f"the operator to save that step {newest.step} is committed"
    return ""


def shards(state: State, step: int) -> dict[int, Shard]:
    """The shards of one step that ranks of the current world have written, by rank."""
    return {shard.rank: shard for shard in _shards(state) if shard.step == step}


def _shards(state: State) -> list[Shard]:
    """All shards of the current world; a rank's shard counts only from the agent that owns the rank."""
    epoch = lead_born(state)
    return [
        shard
        for crew in ranks_of_members(state, savers(state))
        if crew.known and crew.agent
        for shard in crew.agent.report.shards
        if shard.epoch == epoch and shard.rank in crew.ranks
    ]


def savers(state: State) -> slotset.Slots:
    """Whose ranks save: all; with parameter servers the first of these."""
    return slotset.one(state.config.lead_slot) if state.config.servers else state.everybody


def _complete_step(state: State) -> int | None:
    """The newest step beyond the lineage of which every rank has written its shard. But first one that was
    granted before a restart of ours: its manifest may be on its way, and is then the parent of the next."""
    size = state.world.plan.world_size if state.world and not state.config.servers else 1
    known = state.lineage[0].step if state.lineage else -1
    steps = [step for step, ranks in state.saved.items() if ranks == size and step > known]
    pending = state.pending.step if state.pending and state.pending.epoch == lead_born(state) else None
    return pending if pending in steps else max(steps, default=None)


def _files(state: State, step: int) -> tuple[ShardFile, ...]:
    return tuple(file for _, shard in sorted(shards(state, step).items()) for file in shard.files)
