"""What the operator saw of one job at one moment: everything `decide` may know. Serialisable, so that it can
be replayed.
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


class Seen(BaseModel):
    """Base of all that was observed: frozen values."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Role(StrEnum):
    WORKER = "worker"
    SERVER = "server"
    """Of parameters. It holds a slot as workers do, after theirs."""
    COORDINATOR = "coordinator"


class ContainerSeen(Seen):
    """The trainer container (or the coordinator's), or an init container."""

    name: str = ""
    """Of an init container."""
    running: bool = False
    waiting_reason: str = ""
    waiting_message: str = ""
    exit_code: int | None = None
    """Set once it has terminated (restartPolicy Never) - the only truth about a worker's end."""
    exit_reason: str = ""
    """`OOMKilled`, `Error`, `Completed` ..."""
    exit_message: str = ""
    restarts: int = 0


class PodSeen(Seen):
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
    """Its node is NotReady/unreachable, or gone."""
    deleting: bool = False
    delete_at: datetime | None = None
    """metadata.deletionTimestamp: when its grace ends. None while deleting: taken as over."""
    init: ContainerSeen = ContainerSeen()
    """The first init container that has not succeeded; empty when all have."""
    created: datetime | None = None
    scheduler: str = ""
    """spec.schedulerName."""
    scheduled: str = ""
    """PodScheduled: `True`, `False`; empty: no scheduler has said anything yet."""
    gates: tuple[str, ...] = ()
    """Scheduling gates, by name."""
    queued: bool = False
    """Kueue has taken it."""
    grouped: bool = False
    """It is in a group of Kubernetes' own gang scheduling."""
    scheduled_message: str = ""
    """Message of PodScheduled=False: the scheduler's own words."""
    container: ContainerSeen = ContainerSeen()
    contract: int = VERSION
    """Of a coordinator: which one it was made for."""
    key_id: str = ""
    """Of the operator's key that its token comes of, as the name of its Secret tells."""

    @property
    def ended(self) -> bool:
        """Its trainer container can never run again."""
        return self.container.exit_code is not None or self.phase in ("Succeeded", "Failed")


class HeldSeen(Seen):
    """By the clock of this operator process: no step of a wall clock moves it, no other machine shares it."""

    slot: int
    incarnation: int
    seconds: float
    """Since when the coordinator is known to know that this incarnation holds the slot: it answers no older
    pod."""


class UnheardSeen(Seen):
    """By the clock of this operator process, as HeldSeen."""

    term: int
    seconds: float
    """For how long no operator can have heard of the coordinator of this term: since we did, or began."""


class ServiceSeen(Seen):
    name: str
    uid: str
    cluster_ip: str
    term: int
    """From its selector: which coordinator pod it leads to."""


class PolicySeen(Seen):
    """What is known of the job's NetworkPolicy: it is never read, only created."""

    name: str = ""
    """The one that this operator process has made, or found. Empty: none yet."""
    refusal: str = ""
    """Why the last try failed, and the way out."""


class Refusal(Seen):
    """The API server's answer to a dry run of this job's worker pod."""

    message: str
    user: int | None = None
    """It takes the pod if it runs as this user (core/objects/nonroot.py)."""

    @property
    def by_pod_security(self) -> bool:
        return 'violates PodSecurity "' in self.message


class Observation(Seen):
    """All that is known about one job at `now`."""

    now: datetime
    job_time: datetime | None = None
    """By the job's clock (controller/reconcile/jobclock.py). None: as `now`."""
    metadata: Metadata
    spec: dict[str, Any]
    """As written by the user, unparsed: it may be invalid."""
    spec_fault: str = ""
    """Why it was left out, if it was."""
    status: JobStatus
    pods: tuple[PodSeen, ...] = ()
    service: ServiceSeen | None = None
    secret_exists: bool = False
    policy: PolicySeen = PolicySeen()
    secret_age: float = 0.0
    """Seconds since the API server said so, by the clock of this process. It may have been deleted since."""
    key_id: str = ""
    """Short id of the operator key of this job: part of the Secret's name."""
    written_at: datetime | None = None
    """When this operator last wrote the job's status; None: not since it started."""
    refusal: Refusal | None = None
    """The server refused a dry run of the worker pod (asked once per generation)."""
    report: JobReport | None = None
    """The coordinator's answer; None: not asked, or not reached."""
    report_error: str = ""
    """Why there is none, if it was asked."""
    answered_for: float = 0.0
    """Seconds since the first answer of this boot of the coordinator, by the clock of this process."""
    held: tuple[HeldSeen, ...] = ()
    """Of slots whose former pod may still write. Counted anew when coordinator or operator restart."""
    unheard: tuple[UnheardSeen, ...] = ()
    """Of the coordinator and those before it that make a promise (leaseSeconds). Counted anew when the
    operator restarts."""
    dead_nodes: tuple[str, ...] = ()
    """Of nodes of former coordinators: those on which nothing runs any more, as somebody vouches: tainted
    out-of-service, or deleted where the installation says that this proves it."""
    ended_pods: tuple[str, ...] = ()
    """UIDs of former pods that are gone, and of which the kubelet had told before that they had ended."""
    defaults: Defaults = Defaults()
