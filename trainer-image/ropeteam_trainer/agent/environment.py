"""The environment of a rank: the user's, with torchrun's variables and ours. Pure.

A command that runs once per pod for several ranks is a launcher itself: it gets where and how many, not RANK,
and no store of ours, because it brings up its own.
Where there are parameter servers, ROLE_* count workers and servers apart; RANK and WORLD_SIZE count all.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from ropeteam_trainer.checkpoint import manifest
from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import PodIdentity, RankPlan, WorkerConfig
from ropeteam_trainer.contract.world import Plan

LAUNCHER_PORT = 29500
"""Where launchers meet by default; the pod's address is ours alone."""
_NOT_FOR_RANKS = (config.CONFIG, config.TOKEN_FILE, config.SLOT, config.INCARNATION, config.POD_UID)
_MAX_RESTARTS = 1000


def rank_environment(
    base: Mapping[str, str], settings: WorkerConfig, plan: Plan, identity: PodIdentity, rank: int
) -> dict[str, str]:
    """torchrun's contract for one rank. The socket and the page are added where they are made."""
    slot = identity.slot
    member, first = plan.member(slot), plan.first_rank(slot)
    assert member is not None
    own = {
        "RANK": rank,
        "WORLD_SIZE": plan.world_size,
        "LOCAL_RANK": rank - first,
        "LOCAL_WORLD_SIZE": member.processes,
        "GROUP_RANK": slot,
        "GROUP_WORLD_SIZE": plan.slots,
        "MASTER_ADDR": plan.store_host,
        "MASTER_PORT": plan.store_port,
        "TORCHELASTIC_RESTART_COUNT": plan.restart_count,
        "TORCHELASTIC_MAX_RESTARTS": _MAX_RESTARTS,
        "TORCHELASTIC_RUN_ID": settings.job_uid,
        "TORCHELASTIC_USE_AGENT_STORE": True,
        config.EPOCH: plan.epoch,
        config.RANK_PLAN: codec.encode(rank_plan(settings, plan, identity)).decode(),
    } | _role(settings, plan, rank)
    return _defaults(base) | {name: str(value) for name, value in own.items()}


def _role(settings: WorkerConfig, plan: Plan, rank: int) -> dict[str, object]:
    if not settings.servers:
        return {"ROLE_NAME": "default", "ROLE_RANK": rank, "ROLE_WORLD_SIZE": plan.world_size}
    workers = settings.workers * settings.processes
    if rank < workers:
        return {"ROLE_NAME": "worker", "ROLE_RANK": rank, "ROLE_WORLD_SIZE": workers}
    return {"ROLE_NAME": "server", "ROLE_RANK": rank - workers, "ROLE_WORLD_SIZE": plan.world_size - workers}


def server_addresses(settings: WorkerConfig, plan: Plan) -> tuple[str, ...]:
    """`host:port` of each parameter server, in rank order."""
    return tuple(
        f"{member.address}:{config.PARAMETER_SERVER_PORT}"
        for member in plan.members
        if settings.is_server(member.slot)
    )


def servers_secret(token: bytes) -> str:
    """Shown by workers and parameter servers to each other: derived, because a rank needs no key."""
    return hmac.new(token, b"servers", hashlib.sha256).hexdigest()


def launcher_environment(base: Mapping[str, str], plan: Plan, slot: int) -> dict[str, str]:
    """For a launcher that starts the ranks of a pod by itself."""
    member = plan.member(slot)
    assert member is not None
    own = {
        "NNODES": plan.slots,
        "NODE_RANK": slot,
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


def rank_plan(settings: WorkerConfig, plan: Plan, identity: PodIdentity) -> RankPlan:
    """The secret of parameter servers is told only where there are any."""
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
        servers=server_addresses(settings, plan),
        secret=servers_secret(identity.token) if settings.servers else "",
        line=str(plan.line) if settings.servers else "",
        keys=identity.keys_file,
        trust=settings.trust,
    )


def _defaults(base: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in base.items() if name not in _NOT_FOR_RANKS}
    return {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | kept
