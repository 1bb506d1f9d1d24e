"""The environment of a rank, or of the one command of a pod: the user's, with torchrun's variables and ours.
Pure.

A command that runs once per pod may be a launcher, or a script that starts processes by itself: it receives
addresses and counts (in PyTorchJob's and torchrun's variables), and starts a store of its own.
Where there are parameter servers, ROLE_* count workers and servers apart; RANK and WORLD_SIZE count all.
Limit: the agent's variables win over those of the user, except OMP_NUM_THREADS and PYTHONUNBUFFERED.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from ropeteam_trainer.checkpoint.decisions import manifest
from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import PodIdentity, RankPlan, WorkerConfig
from ropeteam_trainer.contract.world import Plan
from ropeteam_trainer.launchers import Rendezvous

_RENDEZVOUS_PORTS = range(20_000, 29_000)
"""Below the kernel's ephemeral ports, and ours."""
_NOT_FOR_RANKS = (config.CONFIG, config.TOKEN_FILE, config.SLOT, config.INCARNATION, config.POD_UID)
"""The agent's own settings: a rank must not read the token, nor take itself for an agent."""
_MAX_RESTARTS = 1000
"""TORCHELASTIC_MAX_RESTARTS. No limit of ours: those are in spec.recovery."""


def rank_environment(
    base: Mapping[str, str], settings: WorkerConfig, plan: Plan, identity: PodIdentity, rank: int
) -> dict[str, str]:
    """The environment of one rank: `base`, torchrun's variables, and ours for the library. Socket and page
    are added where they are created (processes/ranks.py). The slot must be a member of `plan`."""
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
        config.STORE_ADDRESS: f"{plan.store_host}:{plan.store_port}",
        config.WORLD: plan.world_id,
        config.RANK_PLAN: codec.encode(rank_plan(settings, plan, identity)).decode(),
    } | _role_variables(settings, plan, rank)
    return _with_defaults(base) | {name: str(value) for name, value in own.items()}


def _role_variables(settings: WorkerConfig, plan: Plan, rank: int) -> dict[str, object]:
    """ROLE_*: one role, or two where there are parameter servers, whose ranks follow those of workers."""
    if not settings.servers:
        return {"ROLE_NAME": "default", "ROLE_RANK": rank, "ROLE_WORLD_SIZE": plan.world_size}
    workers = settings.workers * settings.processes
    if rank < workers:
        return {"ROLE_NAME": "worker", "ROLE_RANK": rank, "ROLE_WORLD_SIZE": workers}
    return {"ROLE_NAME": "server", "ROLE_RANK": rank - workers, "ROLE_WORLD_SIZE": plan.world_size - workers}


def server_addresses(settings: WorkerConfig, plan: Plan) -> tuple[str, ...]:
    """`host:port` of each parameter server, in rank order. Empty if the job has none."""
    return tuple(
        f"{member.address}:{config.PARAMETER_SERVER_PORT}"
        for member in plan.members
        if settings.is_server(member.slot)
    )


def servers_secret(token: bytes) -> str:
    """The secret by which workers and parameter servers authenticate to each other: derived from the job's
    token, because ranks must not have the token itself."""
    return hmac.new(token, b"servers", hashlib.sha256).hexdigest()


def launcher_environment(
    base: Mapping[str, str], settings: WorkerConfig, plan: Plan, identity: PodIdentity
) -> dict[str, str]:
    """The environment of a command that runs once per pod: `base`, PyTorchJob's variables, and torchrun's own
    (PET_*), which a torchrun inside reads. RANK and WORLD_SIZE count such commands, not processes. A process
    of theirs hosts their store, at the rendezvous. The slot must be a member of `plan`.
    """
    member, place = plan.member(identity.slot), rendezvous(settings, plan, identity.slot)
    nodes = 1 if settings.worlds_per_pod else plan.slots
    assert member is not None
    address: dict[str, object] = {"MASTER_ADDR": place.address, "MASTER_PORT": place.port}
    count: dict[str, object] = {
        "NNODES": nodes,
        "NODE_RANK": place.node_rank,
        "NPROC_PER_NODE": member.processes,
    }
    own = address | count | {f"PET_{name}": value for name, value in (address | count).items()}
    own |= {"RANK": place.node_rank, "WORLD_SIZE": nodes, config.WORLD: plan.world_id}
    if member.processes == 1:  # the command is the rank, and may use the library
        own |= {"LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        own[config.RANK_PLAN] = codec.encode(rank_plan(settings, plan, identity)).decode()
    return _with_defaults(base) | {name: str(value) for name, value in own.items()}


def rendezvous(settings: WorkerConfig, plan: Plan, slot: int) -> Rendezvous:
    """The rendezvous of the command in `slot`: at the first member's pod for all; in its own pod if each pod
    forms a world of its own (`worlds_per_pod`)."""
    own = plan.member(slot)
    if settings.worlds_per_pod and own is not None:
        return Rendezvous(0, own.address, rendezvous_port(f"{settings.job_uid}/{slot}"))
    return Rendezvous(slot, plan.members[0].address, rendezvous_port(settings.job_uid))


def rendezvous_port(key: str) -> int:
    """The rendezvous port, derived from `key` (the job's UID, or UID/slot), so that all pods compute the same
    one. Limit: two jobs on one network (hostNetwork, a local cluster) may collide."""
    number = int(hashlib.sha256(key.encode()).hexdigest(), 16)
    return _RENDEZVOUS_PORTS[number % len(_RENDEZVOUS_PORTS)]


def interface_variables(address: str, interface: str | None) -> dict[str, str]:
    """Variables by which gloo and NCCL listen on the interface of the pod's address, not of its host name.
    Empty if that is unknown. NCCL refuses the loopback."""
    if interface is None:
        return {}
    is_loopback = address.startswith("127.")
    return {"GLOO_SOCKET_IFNAME": interface} | ({} if is_loopback else {"NCCL_SOCKET_IFNAME": interface})


def rank_plan(settings: WorkerConfig, plan: Plan, identity: PodIdentity) -> RankPlan:
    """The plan that the library reads in each rank of this pod, the same for all of them. It has the servers'
    secret only if the job has parameter servers."""
    return RankPlan(
        world_id=str(plan.world_id),
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
        line=str(plan.server_generation) if settings.servers else "",
        keys=identity.keys_file,
        trust=settings.trust,
        started=plan.started,
        saves_as=str(plan.started_in(settings.lead_slot)) if plan.started else "",
        replica_ranks=plan.replica_ranks,
        absent=plan.absent,
    )


def _with_defaults(base: Mapping[str, str]) -> dict[str, str]:
    """`base` without the agent's own settings, and with defaults that the user's values override."""
    inherited = {name: value for name, value in base.items() if name not in _NOT_FOR_RANKS}
    return {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | inherited
