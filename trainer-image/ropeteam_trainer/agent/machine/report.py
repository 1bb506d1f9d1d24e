"""AgentReport: the state that an agent reports to its coordinator. Pure."""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.agent.machine import hang
from ropeteam_trainer.agent.machine.state import RankState, State
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.messages import AgentReport, Progress, RankPhase, RankReport
from ropeteam_trainer.contract.world import CheckpointRef, Plan


def report(state: State) -> AgentReport:
    config, identity, world = state.config, state.identity, state.world
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
        ranks=tuple(_rank(rank, state.feature_level) for rank in world.ranks) if world else (),
        store=max(state.stores, key=lambda offer: offer.world_id, default=None),
        groups=world.groups if world else (),
        reports_groups=True,
        shards=world.shards if world else (),
        committed=state.committed,
        granted=replace(state.grant.ref, digest="") if state.grant else None,
        restored=world.restored if world else None,
        ancestors=_ancestors(state),
        progress=_progress(state),
        terminating=state.leave_by is not None,
        completed=state.completed,
        problem=state.problem,
        superseded=state.superseded,
        pending_disk_request=state.pending_disk_request,
    )


def _ancestors(state: State) -> tuple[CheckpointRef, ...]:
    """Ancestors of the restored checkpoint, independent of the job's status: after a restore of etcd that may
    name checkpoints of an abandoned lineage."""
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


def steps_matter(state: State) -> bool:
    """Whether each lease must carry steps: always those of slot 0, and all while a pause is ordered."""
    pausing = state.orders is not None and state.orders.pause is not None
    return state.identity.slot == 0 or pausing


def _reported_plan(plan: Plan, slot: int) -> Plan:
    """The plan with its own slot alone; a coordinator of the previous release requires all that it sent."""
    return plan.part(slot) if plan.whole else plan


def _rank(rank: RankState, feature_level: int) -> RankReport:
    step = max(rank.heartbeat.step, rank.paused or 0, rank.drained or 0)
    return RankReport(
        rank.rank,
        _phase(rank, feature_level),
        step,
        rank.heartbeat.steps_here,
        rank.exit,
        rank.joins,
        rank.hang,
    )


def _phase(rank: RankState, feature_level: int) -> RankPhase:
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


def _progress(state: State) -> Progress:
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
