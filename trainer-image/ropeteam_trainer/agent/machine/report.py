"""AgentReport: the state that an agent reports to its coordinator. Pure."""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.agent.machine import hang, keepingrules
from ropeteam_trainer.agent.machine.state import AgentState, RankState
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.messages import AgentReport, Progress, RankPhase, RankReport
from ropeteam_trainer.contract.world import CheckpointRef, Plan


def agent_report(state: AgentState) -> AgentReport:
    """The report of this state. `number` and `contract` are set by the connection that sends it (link.py)."""
    config, identity, world, plan = state.config, state.identity, state.world, state.desired_plan
    return AgentReport(
        slot=identity.slot,
        incarnation=identity.incarnation,
        pod_uid=identity.pod_uid,
        address=identity.pod_ip,
        job_uid=config.job_uid,
        term=state.term,
        node=identity.node,
        applied_orders=state.applied_orders,
        feature_level=state.feature_level,
        launcher=state.launch.text,
        plan=_reported_plan(world.plan, identity.slot) if world else None,
        stopped=state.stopped,
        ranks=tuple(_rank_report(rank, state.feature_level) for rank in world.ranks) if world else (),
        store=max(state.stores, key=lambda offer: offer.world_id, default=None),
        lost_store=plan.world_id if plan and state.has_lost_store_of(plan) else None,
        lost=keepingrules.lost_ranks(state),
        groups=world.groups if world else (),
        reports_groups=True,
        shards=world.shards if world else (),
        committed=state.committed,
        granted=replace(state.grant.ref, digest="") if state.grant else None,
        restored=world.restored if world else None,
        ancestors=_ancestors(state),
        progress=_progress(state),
        terminating=state.exit_by is not None,
        completed=state.completed,
        problem=state.problem,
        superseded=state.superseded,
        supports_claim=config.checkpoint is not None,
        pending_disk_request=state.pending_disk_request,
    )


def _ancestors(state: AgentState) -> tuple[CheckpointRef, ...]:
    """Ancestors of the restored checkpoint, as found on disk by the claim; () where nothing was restored.

    Independent of the job's status, which may name checkpoints of an abandoned lineage after a restore of
    etcd.
    """
    restored = state.world.restored if state.world else None
    if restored is None:
        return ()
    keys = [(ref.world_id, ref.step) for ref in state.restore]
    found = zip(keys, state.ancestors, strict=False)
    return next((past for key, past in found if key == (restored.world_id, restored.step)), ())


def urgent_part(report: AgentReport) -> AgentReport:
    """The part of a report that cannot wait for the next lease: all but numbers that change with every step.

    Applied orders (`applied_orders`) are urgent too: only then can the coordinator rely on them.
    """
    ranks = tuple(replace(rank, step=0, steps_here=min(rank.steps_here, 1)) for rank in report.ranks)
    return replace(report, ranks=ranks, progress=Progress())


def needs_current_steps(state: AgentState) -> bool:
    """Whether the lease must be renewed by a whole report, which carries steps: always from slot 0, whose
    progress is shown to people, and from all slots while a pause is ordered."""
    pausing = state.orders is not None and state.orders.pause is not None
    return state.identity.slot == 0 or pausing


def _reported_plan(plan: Plan, slot: int) -> Plan:
    """The plan with its own slot alone; a coordinator of the previous release requires all that it sent."""
    return plan.part(slot) if plan.whole else plan


def _rank_report(rank: RankState, feature_level: int) -> RankReport:
    # The message on a pause or drain may be here before the heartbeat of its step was read.
    step = max(rank.heartbeat.step, rank.pause_received or 0, rank.paused or 0, rank.drained or 0)
    return RankReport(
        rank.rank,
        _rank_phase(rank, feature_level),
        step,
        rank.heartbeat.steps_here,
        rank.exit,
        rank.joins,
        rank.hang,
        rank.regroups,
        pause_received=rank.pause_received is not None if rank.acknowledges_pause else None,
        stop_at=rank.sent.stop_at,
        dying=rank.exit is not None and rank.alive,
    )


def _rank_phase(rank: RankState, feature_level: int) -> RankPhase:
    """First match wins: an exit is final, and a rank that drained may also look paused."""
    if rank.exit is not None:
        return RankPhase.EXITED
    if rank.drained is not None:
        return RankPhase.DRAINED
    if rank.waits:
        return RankPhase.PAUSED
    if rank.heartbeat.steps_here > 0:
        return RankPhase.RUNNING
    # Without the library no step is ever reported: a rank counts as running once it is started.
    uses_library = rank.has_library or feature_level >= FeatureLevel.STEPS
    return RankPhase.STARTING if rank.started_at is None or uses_library else RankPhase.RUNNING


def _progress(state: AgentState) -> Progress:
    """Progress of the lowest local rank."""
    if state.world is None:
        return Progress()
    world, lowest = state.world, state.world.ranks[0]
    return Progress(
        step=lowest.heartbeat.step,
        total_steps=world.total_steps,
        loss=world.loss,
        samples_per_second=round(hang.samples_per_second(lowest), 3),
        phase=lowest.heartbeat.phase,
    )
