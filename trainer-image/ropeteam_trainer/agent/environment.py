"""The environment of a rank: the user's, with torchrun's variables and ours. Pure.

A command that runs once per pod for several ranks is a launcher itself: it gets where and how many, not RANK,
and no store of ours, because it brings up its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from ropeteam_trainer.checkpoint import manifest
from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import RankPlan, WorkerConfig
from ropeteam_trainer.contract.world import Plan

LAUNCHER_PORT = 29500
"""Where launchers meet by default; the pod's address is ours alone."""
_NOT_FOR_RANKS = (config.CONFIG, config.TOKEN_FILE, config.SLOT, config.INCARNATION, config.POD_UID)
_MAX_RESTARTS = 1000


def rank_environment(
    base: Mapping[str, str], settings: WorkerConfig, plan: Plan, slot: int, rank: int
) -> dict[str, str]:
    """torchrun's contract for one rank. The socket and the page are added where they are made."""
    member, first = plan.member(slot), plan.first_rank(slot)
    assert member is not None
    group = plan.members.index(member)
    own = {
        "RANK": rank,
        "WORLD_SIZE": plan.world_size,
        "LOCAL_RANK": rank - first,
        "LOCAL_WORLD_SIZE": member.processes,
        "GROUP_RANK": group,
        "GROUP_WORLD_SIZE": len(plan.members),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": plan.world_size,
        "ROLE_NAME": "default",
        "MASTER_ADDR": plan.store_host,
        "MASTER_PORT": plan.store_port,
        "TORCHELASTIC_RESTART_COUNT": plan.restart_count,
        "TORCHELASTIC_MAX_RESTARTS": _MAX_RESTARTS,
        "TORCHELASTIC_RUN_ID": settings.job_uid,
        "TORCHELASTIC_USE_AGENT_STORE": True,
        config.EPOCH: plan.epoch,
        config.RANK_PLAN: codec.encode(rank_plan(settings, plan)).decode(),
    }
    return _defaults(base) | {name: str(value) for name, value in own.items()}


def launcher_environment(base: Mapping[str, str], plan: Plan, slot: int) -> dict[str, str]:
    """For a launcher that starts the ranks of a pod by itself."""
    member = plan.member(slot)
    assert member is not None
    own = {
        "NNODES": len(plan.members),
        "NODE_RANK": plan.members.index(member),
        "NPROC_PER_NODE": member.processes,
        "WORLD_SIZE": plan.world_size,
        "MASTER_ADDR": plan.members[0].address,
        "MASTER_PORT": LAUNCHER_PORT,
        config.EPOCH: plan.epoch,
    }
    return _defaults(base) | {name: str(value) for name, value in own.items()}


def interface_names(address: str, interface: str | None) -> dict[str, str]:
    """Where gloo and NCCL listen: on the interface of the pod's address, not where its host name leads."""
    if interface is None:
        return {}
    is_loopback = address.startswith("127.")
    return {"GLOO_SOCKET_IFNAME": interface} | ({} if is_loopback else {"NCCL_SOCKET_IFNAME": interface})


def rank_plan(settings: WorkerConfig, plan: Plan) -> RankPlan:
    return RankPlan(
        epoch=str(plan.epoch),
        restore=tuple(manifest.ref_text(ref) for ref in plan.restore),
        lineage_known=bool(plan.restore),
        checkpoint=settings.checkpoint,
        resume=settings.resume,
        resume_step=settings.resume_step,
        job=settings.job,
        job_uid=settings.job_uid,
        strategy=settings.strategy,
    )


def _defaults(base: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in base.items() if name not in _NOT_FOR_RANKS}
    return {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | kept
