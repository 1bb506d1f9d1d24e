"""What an agent tells its coordinator: its whole truth, projected from the state. Pure."""

from __future__ import annotations

from dataclasses import replace

from ropeteam_trainer.agent.machine import hang
from ropeteam_trainer.agent.machine.state import RankState, State
from ropeteam_trainer.contract.messages import AgentReport, Progress, RankPhase, RankReport
from ropeteam_trainer.contract.world import CheckpointRef, Plan


def report(state: State) -> AgentReport:
    config, me, world = state.config, state.identity, state.world
    return AgentReport(
        slot=me.slot,
        incarnation=me.incarnation,
        pod_uid=me.pod_uid,
        address=me.pod_ip,
        job_uid=config.job_uid,
        term=state.term,
        node=me.node,
        orders_seen=state.orders_seen,
        rung=state.rung,
        launcher=state.launch.text,
        plan=_told(world.plan, me.slot) if world else None,
        stopped=state.stopped,
        ranks=tuple(_rank(rank, state.rung) for rank in world.ranks) if world else (),
        store=max(state.stores, key=lambda offer: offer.epoch, default=None),
        groups=world.groups if world else (),
        tells_groups=True,
        shards=world.shards if world else (),
        committed=state.committed,
        granted=replace(state.grant.ref, digest="") if state.grant else None,
        restored=world.restored if world else None,
        past=_past(state),
        progress=_progress(state),
        leaving=state.leave_by is not None,
        completed=state.completed,
        problem=state.problem,
        superseded=state.superseded,
        disk_owes=state.disk_owes,
    )


def _past(state: State) -> tuple[CheckpointRef, ...]:
    """Whatever the job's status names: after a restore of etcd some of that is of a line that was left."""
    restored = state.world.restored if state.world else None
    if restored is None:
        return ()
    places = [(ref.epoch, ref.step) for ref in state.restore]
    found = zip(places, state.pasts, strict=False)
    return next((past for place, past in found if place == (restored.epoch, restored.step)), ())


def news(report: AgentReport) -> AgentReport:
    """The part of a report that cannot wait for the next lease: all but numbers that move with every step.

    That orders were applied is news too: only then can the coordinator rely on it.
    """
    ranks = tuple(replace(rank, step=0, steps_here=min(rank.steps_here, 1)) for rank in report.ranks)
    return replace(report, ranks=ranks, progress=Progress())


def steps_matter(state: State) -> bool:
    """Each lease tells how far the ranks are: those of slot 0 for all, and all where they are to stop."""
    pausing = state.orders is not None and state.orders.pause is not None
    return state.identity.slot == 0 or pausing


def _told(plan: Plan, slot: int) -> Plan:
    """Each agent tells of its own slot; a coordinator of the release before wants back what it gave."""
    return plan.part(slot) if plan.whole else plan


def _rank(rank: RankState, rung: int) -> RankReport:
    step = max(rank.beat.step, rank.paused or 0, rank.drained or 0)
    return RankReport(
        rank.rank, _phase(rank, rung), step, rank.beat.steps_here, rank.exit, rank.joins, rank.stands
    )


def _phase(rank: RankState, rung: int) -> RankPhase:
    if rank.exit is not None:
        return RankPhase.EXITED
    if rank.drained is not None:
        return RankPhase.DRAINED
    if rank.waits:
        return RankPhase.PAUSED
    if rank.beat.steps_here > 0:
        return RankPhase.RUNNING
    # Without the library no step is ever reported: being started is all there is to know.
    has_no_library = rank.started_at is not None and not rank.has_library and rung == 0
    return RankPhase.RUNNING if has_no_library else RankPhase.STARTING


def _progress(state: State) -> Progress:
    if state.world is None:
        return Progress()
    world, lowest = state.world, state.world.ranks[0]
    return Progress(
        step=lowest.beat.step,
        total_steps=world.total_steps,
        loss=world.loss,
        samples_per_second=round(hang.samples_per_second(lowest), 3),
        phase=lowest.beat.phase,
    )
