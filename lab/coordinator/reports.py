"""Reports of agents, and an agent that applies its orders at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ropeteam_trainer.contract import OLDEST
from ropeteam_trainer.contract.config import CoordinatorConfig, Timeouts
from ropeteam_trainer.contract.messages import AgentReport, Orders, RankPhase, RankReport, Shard, StoreOffer
from ropeteam_trainer.contract.world import ProcessExit

JOB_UID = "job-uid"
KILLED = ProcessExit(None, 9, killed=True)
SIGKILL = ProcessExit(None, 9, fingerprint="signal 9", message="")
CLEAN = ProcessExit(0, None)


def raised(message: str = "ValueError: bad lr (train.py:31)", code: int = 1) -> ProcessExit:
    return ProcessExit(code, None, fingerprint=message, message=message)


GPU_FULL = replace(
    raised("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. (train.py:31)"),
    error_class="torch.OutOfMemoryError",
)


def config(workers: int = 2, **changes: Any) -> CoordinatorConfig:
    settings: dict[str, Any] = {"term": 1, "processes": 1, "timeouts": Timeouts()}
    return CoordinatorConfig("mnist", "default", JOB_UID, workers=workers, **{**settings, **changes})


def agent(slot: int, incarnation: int = 1, **changes: Any) -> AgentReport:
    uid, address = f"pod-{slot}-{incarnation}", f"10.0.0.{slot + 1}"
    report = AgentReport(slot, incarnation, uid, address, JOB_UID, term=1, node=f"node-{slot}")
    report = replace(report, contract=OLDEST, reports_groups=True)  # it is shown whole plans
    return replace(report, **changes)


def after_orders(report: AgentReport, orders: Orders, feature_level: int = 1) -> AgentReport:
    """Report of an agent that has applied its orders. Ranks start, or are dead, at once."""
    changes: dict[str, Any] = {"store": None, "lost": orders.lost}
    if orders.host_store:
        changes["store"] = StoreOffer(orders.host_store, report.address, 29500 + orders.host_store.n)
    if orders.plan is None and not report.stopped:
        changes |= {"stopped": True, "ranks": tuple(_dead(rank) for rank in report.ranks)}
    elif (
        orders.plan
        and report.plan
        and orders.plan.started_in(report.slot) == report.plan.started_in(report.slot)
    ):
        again = orders.plan.started if orders.plan.world_id != report.plan.world_id else ()
        ranks = tuple(_started(rank) if rank.rank in again else rank for rank in report.ranks)
        lost = tuple(_dead(rank) if rank.rank in orders.lost else rank for rank in ranks)
        changes |= {"plan": orders.plan, "ranks": lost}
    elif orders.plan and orders.plan != report.plan:
        ranks = tuple(RankReport(rank, RankPhase.STARTING) for rank in orders.plan.ranks(report.slot))
        changes |= {"plan": orders.plan, "stopped": False, "ranks": ranks, "feature_level": feature_level}
    if orders.pause:
        ranks = changes.get("ranks", report.ranks)
        changes["ranks"] = tuple(replace(rank, pause_received=True) for rank in ranks)
    if orders.complete:
        changes["completed"] = orders.complete
    if orders.grant:
        changes["granted"] = orders.grant.ref
        changes["committed"] = replace(orders.grant.ref, digest=f"digest-{orders.grant.ref.step}")
    unknown = tuple(shard for shard in report.shards if not _known(shard, orders))
    return replace(report, shards=unknown, **changes)


def _started(rank: RankReport) -> RankReport:
    return RankReport(rank.rank, RankPhase.STARTING)


def _dead(rank: RankReport) -> RankReport:
    return rank if rank.exit else replace(rank, phase=RankPhase.EXITED, exit=KILLED)


def _known(shard: Shard, orders: Orders) -> bool:
    return any((ref.world_id, ref.step) == (shard.world_id, shard.step) for ref in orders.lineage)
