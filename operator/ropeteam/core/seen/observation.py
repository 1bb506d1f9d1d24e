"""Observation of one job at one moment: everything that `decide` may read. Serialisable, so that it can be
replayed.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

from ropeteam.api.defaults import Defaults
from ropeteam.api.job import Metadata
from ropeteam.api.status import JobStatus
from ropeteam_trainer.contract import VERSION
from ropeteam_trainer.contract.desired import JobReport


class Observed(BaseModel):
    """Base class of observed values: frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Role(StrEnum):
    WORKER = "worker"
    SERVER = "server"
    """Parameter server. It holds a slot as workers do, after theirs."""
    COORDINATOR = "coordinator"


class ContainerSeen(Observed):
    """The trainer container (or the coordinator's), or an init container."""

    name: str = ""
    """Set for an init container."""
    running: bool = False
    waiting_reason: str = ""
    waiting_message: str = ""
    exit_code: int | None = None
    """Set once it has terminated (restartPolicy Never): the only proof of a worker's end."""
    exit_reason: str = ""
    """`OOMKilled`, `Error`, `Completed` ..."""
    exit_message: str = ""
    restarts: int = 0


class PodSeen(Observed):
    """One pod of the job, whichever slot, incarnation or term."""

    name: str
    uid: str
    role: Role
    slot: int = -1
    incarnation: int = 0
    term: int = 0
    phase: str = "Pending"
    reason: str = ""
    """status.reason: `Evicted`, `NodeLost`, `DeadlineExceeded` ..."""
    message: str = ""
    node: str = ""
    node_lost: bool = False
    """The node is NotReady/unreachable, or gone."""
    deleting: bool = False
    delete_at: datetime | None = None
    """metadata.deletionTimestamp: the end of its grace period. None while deleting: taken as over."""
    init: ContainerSeen = ContainerSeen()
    """The first init container that has not succeeded; empty when all have."""
    created: datetime | None = None
    scheduler: str = ""
    """spec.schedulerName."""
    scheduled: str = ""
    """Status of PodScheduled: `True`, `False`; empty: no scheduler has set it yet."""
    gates: tuple[str, ...] = ()
    """Scheduling gates, by name."""
    queued: bool = False
    """Whether Kueue manages it."""
    grouped: bool = False
    """Membership in a group of Kubernetes' own gang scheduling."""
    scheduled_message: str = ""
    """Message of PodScheduled=False, as the scheduler wrote it."""
    container: ContainerSeen = ContainerSeen()
    contract: int = VERSION
    """Version of the contract that a coordinator was created for."""
    key_id: str = ""
    """Id of the operator's key that its token is derived from, read from the name of its Secret."""

    @property
    def ended(self) -> bool:
        """Whether its trainer container can never run again."""
        return self.container.exit_code is not None or self.phase in ("Succeeded", "Failed")


class HeldSlot(Observed):
    """Time measured by the clock of this operator process: no step of a wall clock moves it, no other machine
    shares it."""

    slot: int
    incarnation: int
    seconds: float
    """Seconds since the coordinator is known to have this incarnation in the slot: older ones get no
    answer."""


class SilentCoordinator(Observed):
    """Time measured by the clock of this operator process, as in HeldSlot."""

    term: int
    seconds: float
    """Seconds for which no operator can have received anything of the coordinator of this term: since we did,
    or since we started."""


class ServiceSeen(Observed):
    name: str
    uid: str
    cluster_ip: str
    term: int
    """Term in its selector: the coordinator pod that it leads to."""


class PolicySeen(Observed):
    """State of the job's NetworkPolicy: it is never read, only created."""

    name: str = ""
    """Name of the one that this operator process has created, or found. Empty: none yet."""
    refusal: str = ""
    """Reason why the last request failed, and what to do."""


class Refusal(Observed):
    """The API server's answer to a dry run of this job's worker pod."""

    message: str
    user: int | None = None
    """User as which the pod would be admitted (core/objects/nonroot.py)."""

    @property
    def by_pod_security(self) -> bool:
        return 'violates PodSecurity "' in self.message


class Observation(Observed):
    """State of one job at `now`, as the operator read it."""

    now: datetime
    job_time: datetime | None = None
    """Time by the job's clock (controller/reconcile/jobclock.py). None: as `now`."""
    metadata: Metadata
    spec: dict[str, Any]
    """Spec as written by the user, unparsed: it may be invalid."""
    spec_error: str = ""
    """Reason why it was left out, if it was."""
    status: JobStatus
    pods: tuple[PodSeen, ...] = ()
    service: ServiceSeen | None = None
    secret_exists: bool = False
    policy: PolicySeen = PolicySeen()
    secret_age: float = 0.0
    """Seconds since the API server confirmed it, by the clock of this process. It may be deleted by now."""
    key_id: str = ""
    """Short id of the operator key of this job: part of the Secret's name."""
    written_at: datetime | None = None
    """Time at which this operator last wrote the job's status; None: not since it started."""
    refusal: Refusal | None = None
    """Refusal of a dry run of the worker pod (one request per generation)."""
    report: JobReport | None = None
    """The coordinator's report; None: not requested, or not reached."""
    report_error: str = ""
    """Reason why there is none, if it was requested."""
    reachable_seconds: float = 0.0
    """Seconds since the first answer of this boot of the coordinator, by the clock of this process."""
    held_slots: tuple[HeldSlot, ...] = ()
    """Slots whose previous pod may still write. Counted from zero when coordinator or operator restart."""
    silent_coordinators: tuple[SilentCoordinator, ...] = ()
    """The coordinator, and previous ones that have a lease (leaseSeconds). Counted from zero when the
    operator restarts."""
    dead_nodes: tuple[str, ...] = ()
    """Nodes of previous coordinators on which nothing runs any more, as somebody has confirmed: tainted
    out-of-service, or deleted where the installation takes that as proof."""
    ended_pods: tuple[str, ...] = ()
    """UIDs of previous pods that are gone, and whose end the kubelet had reported before."""
    defaults: Defaults = Defaults()
