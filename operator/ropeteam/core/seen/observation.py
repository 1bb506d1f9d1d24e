"""Observation of one job at one moment: everything that `decide` may read. Serialisable, so that `ropeteam
snapshot` can save it and `ropeteam explain` decide it again.
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
    """Role of a pod in its job: the value of its label ropeteam.dev/role."""

    WORKER = "worker"
    SERVER = "server"
    """Parameter server. It holds a slot as workers do, after theirs."""
    COORDINATOR = "coordinator"


class ContainerSeen(Observed):
    """Status of the trainer's container, of the coordinator's, or of an init container."""

    name: str = ""
    """Set for an init container only."""
    running: bool = False
    waiting_reason: str = ""
    """state.waiting.reason: `ImagePullBackOff`, `CrashLoopBackOff` ..."""
    waiting_message: str = ""
    exit_code: int | None = None
    """Set while it is terminated. Of a worker, whose restartPolicy is Never, that is for good, and the only
    proof of its end."""
    exit_reason: str = ""
    """`OOMKilled`, `Error`, `Completed` ..."""
    exit_message: str = ""
    restarts: int = 0
    """restartCount."""


class PodSeen(Observed):
    """One pod of the job, whichever slot, incarnation or term."""

    name: str
    uid: str
    role: Role
    slot: int = -1
    """-1: none, as of a coordinator."""
    incarnation: int = 0
    term: int = 0
    """Of a coordinator; 0 of other pods."""
    phase: str = "Pending"
    reason: str = ""
    """status.reason (`Evicted`, `NodeLost` ...), or else the reason of the condition DisruptionTarget."""
    message: str = ""
    node: str = ""
    """spec.nodeName. Empty: not scheduled yet."""
    node_lost: bool = False
    """The node is NotReady or unreachable, or its object is gone."""
    deleting: bool = False
    """The pod has a deletionTimestamp: it is terminating."""
    delete_at: datetime | None = None
    """metadata.deletionTimestamp: the end of its grace period. None while `deleting`: that counts as over."""
    init: ContainerSeen = ContainerSeen()
    """The first init container that has not succeeded; empty when all have."""
    created: datetime | None = None
    """metadata.creationTimestamp, by the API server's clock."""
    scheduler: str = ""
    """spec.schedulerName."""
    scheduled: str = ""
    """Status of PodScheduled: `True`, `False`; empty: no scheduler has set it yet."""
    gates: tuple[str, ...] = ()
    """Scheduling gates, by name."""
    queued: bool = False
    """Whether the pod has the label that Kueue sets on pods it manages."""
    grouped: bool = False
    """Whether the pod is in a group of Kubernetes' own gang scheduling."""
    scheduled_message: str = ""
    """Message of PodScheduled=False, as the scheduler wrote it."""
    container: ContainerSeen = ContainerSeen()
    contract: int = VERSION
    """Version of the contract that a coordinator was created for."""
    key_id: str = ""
    """Id of the operator's key that its token is derived from, read from the name of its Secret."""

    @property
    def ended(self) -> bool:
        """Whether its container has exited, or its phase is terminal: it never runs again, except a
        coordinator's, which the kubelet restarts. No proof on a lost node (classify.is_end_reported)."""
        return self.container.exit_code is not None or self.phase in ("Succeeded", "Failed")


class HeldSlot(Observed):
    """For how long the coordinator is known to have an incarnation in a slot. Measured by the monotonic clock
    of this operator process, which no step of a wall clock moves."""

    slot: int
    incarnation: int
    seconds: float
    """Seconds since the coordinator first confirmed this incarnation: older ones have received no answer."""


class SilentCoordinator(Observed):
    """For how long a coordinator with a lease has been without an acknowledgement. Measured as HeldSlot
    is."""

    term: int
    seconds: float
    """Seconds since this operator received the last report of that term; without one, since it began to
    lead: the operator before it may have received reports until then."""


class ServiceSeen(Observed):
    """The job's Service."""

    name: str
    uid: str
    cluster_ip: str
    """Empty: not allocated yet."""
    term: int
    """Term in its selector: the coordinator pod that it leads to."""


class PolicySeen(Observed):
    """State of the job's NetworkPolicy, known from create requests: the operator never reads one."""

    name: str = ""
    """Name of the one that this operator process has created, or that existed. Empty: none yet."""
    refusal: str = ""
    """Reason why the last create request failed, and what to do (policy.refusal_message). Empty: none
    failed."""


class Refusal(Observed):
    """Refusal of this job's worker pod, as written, by the API server in a dry run."""

    message: str
    user: int | None = None
    """UID as which the pod would be admitted (core/objects/nonroot.py). None: that would not help."""

    @property
    def by_pod_security(self) -> bool:
        """Whether Pod Security refuses the pod; else RBAC, a quota, a webhook or validation does."""
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
    """Reason why `spec` was left out, as too large or no object. Empty: it was not."""
    status: JobStatus
    """Status as saved."""
    pods: tuple[PodSeen, ...] = ()
    """All pods with the label of this job's UID, also of replaced incarnations and terms."""
    service: ServiceSeen | None = None
    secret_exists: bool = False
    """Whether this process knows that the Secret of `key_id` was created or existed."""
    policy: PolicySeen = PolicySeen()
    secret_age: float = 0.0
    """Seconds since the API server confirmed the Secret, by the clock of this process. Somebody may have
    deleted it since."""
    key_id: str = ""
    """Short id of the operator key that this job's token is derived from: part of the Secret's name."""
    written_at: datetime | None = None
    """Time at which this operator last wrote the job's status; None: not since it started."""
    refusal: Refusal | None = None
    """Refusal of a dry run of the worker pod (one request per generation). None: none is known."""
    report: JobReport | None = None
    """The coordinator's report, unchecked for job and term (View.report). None: not requested, or no
    answer."""
    report_error: str = ""
    """Reason why there is no report, if it was requested."""
    reachable_seconds: float = 0.0
    """Seconds since the first answer of this boot of the coordinator, by the clock of this process."""
    held_slots: tuple[HeldSlot, ...] = ()
    """Slots whose previous pod may still write. Counted from zero when coordinator or operator restart."""
    silent_coordinators: tuple[SilentCoordinator, ...] = ()
    """The current coordinator and previous ones, if they have a lease (leaseSeconds). Counted from zero when
    the operator restarts."""
    dead_nodes: tuple[str, ...] = ()
    """Nodes of previous coordinators on which nothing runs any more, as somebody has confirmed: tainted
    out-of-service, or deleted where the installation takes that as proof."""
    ended_pods: tuple[str, ...] = ()
    """UIDs of previous pods that are gone, and whose end the kubelet had reported before."""
    defaults: Defaults = Defaults()
