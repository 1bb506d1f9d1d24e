"""What users read, and the operator's only memory. Written once per decision, with resourceVersion."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AwareDatetime, Field, field_validator

from ropeteam.api.conditions import Condition, ConditionType
from ropeteam.api.model import StatusModel


class FormerCoordinatorStatus(StatusModel):
    """A coordinator pod that was superseded and may still live."""

    term: int = Field(ge=0)
    """Its term."""
    pod_uid: str = Field(default="", max_length=64)
    """Its pod."""
    node: str = Field(default="", max_length=253)
    """Where that pod was."""
    lease_seconds: int = Field(default=0, ge=0)
    """As below, of that pod."""


class CoordinatorStatus(StatusModel):
    """The job's coordinator pod."""

    term: int = Field(default=0, ge=0)
    """Number of the coordinator pod; saved before that pod is created. 0: none was needed yet."""
    boot: int = Field(default=0, ge=0)
    """Restarts of its container, as it told."""
    pod_uid: str = Field(default="", max_length=64)
    """The pod of this term, once seen; if that pod is gone, a new term begins."""
    address: str = Field(default="", max_length=64)
    """Numeric address of the job's Service, as handed to the workers."""
    node: str = Field(default="", max_length=253)
    """Node of the pod of this term."""
    former: tuple[FormerCoordinatorStatus, ...] = Field(default=(), max_length=16)
    """Those of earlier terms that nothing proves to have ended. While there is one, no replaced pod of a
    script that writes its own checkpoints is taken to have ended by time."""
    lease_seconds: int = Field(default=0, ge=0)
    """With recovery.selfFence: it answers no agent any more when no operator has heard of it for so long. 0:
    it makes no such promise."""
    since: AwareDatetime | None = None
    """When this term was decided on."""
    faults: int = Field(default=0, ge=0)
    """For the operator: coordinator pods lost in a row without an answer between; paces the next one."""


class SlotStatus(StatusModel):
    """One worker's place."""

    slot: int = Field(ge=0)
    """0 .. workers-1, then the parameter servers."""
    incarnation: int = Field(default=1, ge=1)
    """Number of the pod in this slot, from 1; never reset."""
    pod_uid: str = Field(default="", max_length=64)
    """UID of the pod of this incarnation, once seen; if that pod is gone, the slot gets another
    incarnation."""
    replaced_at: AwareDatetime | None = None
    """For the operator: when the current incarnation was decided on (not set for the first)."""
    old_pod_uid: str = Field(default="", max_length=64)
    """For the operator: the pod that this incarnation replaces, the old one."""
    old_pod_gone: bool = True
    """For the operator: whether the old pod can no longer write, because its container has ended or
    fenceSeconds and a margin have passed. True also where there never was one."""
    relieves: bool = False
    """For the operator: the old pod was asked to leave and still holds the slot; this incarnation takes over
    when that one has saved."""
    avoid_node: str = Field(default="", max_length=253)
    """Node that the current incarnation prefers to avoid."""
    faults: int = Field(default=0, ge=0)
    """For the operator: pods of this slot lost in a row without a running world between; paces the next
    one."""


class WorkersStatus(StatusModel):
    """How many workers there are."""

    desired: int = Field(default=0, ge=0)
    """spec.workers."""
    ready: int = Field(default=0, ge=0)
    """Workers whose trainer container runs and whose agent is registered."""
    lost: int = Field(default=0, ge=0)
    """Workers being replaced."""
    summary: str = Field(default="", max_length=32)
    """ready/desired, for the column."""


class ProgressStatus(StatusModel):
    """How far training is. At most 30 s old; `ropeteam watch` is live."""

    step: int = Field(default=0, ge=0)
    """Last step that all ranks have made."""
    total_steps: int | None = Field(default=None, ge=0)
    """As the script told; absent if it did not."""
    percent: int | None = Field(default=None, ge=0, le=100)
    """step of totalSteps."""
    eta_seconds: int | None = Field(default=None, ge=0)
    """Seconds to the end at the current pace."""
    samples_per_second: str = Field(default="", max_length=32)
    """Over the whole job, decimal text."""
    loss: str = Field(default="", max_length=32)
    """Last reported loss, decimal text."""
    time: AwareDatetime | None = None
    """When this was true."""
    summary: str = Field(default="", max_length=32)
    """percent, for the column."""
    eta: str = Field(default="", max_length=32)
    """etaSeconds, for the column."""


class CheckpointRefStatus(StatusModel):
    """A committed checkpoint."""

    step: int = Field(ge=0)
    """Step after which the state was saved."""
    epoch: str = Field(max_length=64)
    """World that saved it: term.boot.n."""
    digest: str = Field(default="", max_length=64)
    """sha256 of its manifest."""


class CheckpointStatus(StatusModel):
    """The newest durable checkpoint."""

    step: int = Field(ge=0)
    """Step after which it was saved."""
    time: AwareDatetime | None = None
    """When it was committed."""
    location: str = Field(default="", max_length=1024)
    """Folder inside the container."""
    lineage: tuple[CheckpointRefStatus, ...] = Field(default=(), max_length=10)
    """Committed checkpoints that exist, newest first; a restore follows this, never the order of folders."""


class ChargeStatus(StatusModel):
    """One incident that spent budget."""

    id: str = Field(max_length=64)
    """Incident id."""
    time: AwareDatetime
    """When it was charged, by the job's clock; leaves the window after windowSeconds."""


class FailuresStatus(StatusModel):
    """The failure budget."""

    charged: int = Field(default=0, ge=0)
    """Incidents within the window that count."""
    allowed: int = Field(default=0, ge=0)
    """spec.recovery.maxFailures."""
    free: int = Field(default=0, ge=0)
    """Incidents that do not count: evictions, lost nodes, deleted pods."""
    summary: str = Field(default="", max_length=32)
    """charged/allowed, for the column."""
    charges: tuple[ChargeStatus, ...] = Field(default=(), max_length=1001)
    """For the operator: the incidents behind `charged`."""
    last_epoch: str = Field(default="", max_length=64)
    """For the operator: newest world whose end is recorded here; older reports of the coordinator are known
    already."""


class StagesStatus(StatusModel):
    """Milliseconds from the fault to each stage of the recovery."""

    stopped: int | None = Field(default=None, ge=0)
    """All ranks of the old world dead."""
    planned: int | None = Field(default=None, ge=0)
    """Next world planned."""
    started: int | None = Field(default=None, ge=0)
    """All its ranks started."""
    first_step: int | None = Field(default=None, ge=0)
    """All ranks have made a step: recovered."""


class IncidentStatus(StatusModel):
    """One fault with all its consequences."""

    id: str = Field(max_length=64)
    """World that it ended (term.boot.n), or pod-<slot>-<incarnation> for a fault outside any world."""
    attempt: int = Field(default=0, ge=0)
    """Of which start of the whole gang. 0: an earlier release has not kept it."""
    time: AwareDatetime
    """When it was seen."""
    cause: str = Field(max_length=64)
    """Error, Signal, OutOfMemory, Hang, StartTimeout, PodFailed, PodDeleted, Evicted, NodeLost, AgentLost,
    StorageUnavailable, RetriedFree, Unknown."""
    charged: bool = False
    """Whether it spends the budget."""
    slot: int = Field(ge=0)
    """Where it began."""
    rank: int | None = Field(default=None, ge=0)
    """Which rank, if one rank began it."""
    node: str = Field(default="", max_length=253)
    """Node of that slot."""
    stages: StagesStatus = StagesStatus()
    """Where the recovery's time went."""
    steps_lost: int | None = Field(default=None, ge=0)
    """Steps that had to be repeated."""
    message: str = Field(default="", max_length=4096)
    """What happened; for an exception, the script's last lines."""
    settled: bool = False
    """Cause and charge are final."""


class ClockStatus(StatusModel):
    """The job's clock: what the failure window and activeDeadlineSeconds go by. It goes on with clocks of the
    operators that nobody sets."""

    job: AwareDatetime
    """What it said when this status was written."""
    wall: AwareDatetime
    """What the clock of the operator said that wrote it."""


class JobStatus(StatusModel):
    """The state of the job: for people, and the operator's memory."""

    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that this status speaks of."""
    state: str = Field(default="", max_length=32)
    """One word: Pending, Starting, Running, Recovering, Restarting, Suspending, Suspended, Complete,
    Failed, Invalid."""
    reason: str = Field(default="", max_length=1024)
    """Why it is in that state: the reason of the condition that says so. For the column."""
    last_fault: str = Field(default="", max_length=128)
    """Cause and slot of the newest incident, for the column."""
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """Accepted, Suspended, Running, Recovering, Finished, Complete, Failed, Stalled, Degraded."""
    attempt: int = Field(default=0, ge=0)
    """Starts of the whole gang. 0: not started yet."""
    coordinator: CoordinatorStatus = CoordinatorStatus()
    """The job's coordinator."""
    start_time: AwareDatetime | None = None
    """When the job was first started, or last resumed, by its own clock."""
    completion_time: AwareDatetime | None = None
    """When it ended as Complete or Failed."""
    workers: WorkersStatus = WorkersStatus()
    """How many workers there are."""
    user: int | None = Field(default=None, ge=1)
    """As whom this attempt's container `trainer` runs because Pod Security refuses it as written. Absent: as
    image and template say."""
    drops_capabilities: bool = False
    """For the operator: this attempt's container `trainer` has no capabilities, unless the template speaks of
    them. False: it began under an earlier release, and pods that are replaced get what the others have."""
    slots: tuple[SlotStatus, ...] = Field(default=(), max_length=4096)
    """The workers' places and which pod holds each."""
    launcher: str = Field(default="", max_length=256)
    """How the command is started, as the agents chose."""
    rung: int = Field(default=0, ge=0, le=5)
    """How much of the library the script uses: 0 none, 1 init, 2 restore, 3 batches."""
    progress: ProgressStatus | None = None
    """How far training is."""
    checkpoint: CheckpointStatus | None = None
    """The newest durable checkpoint."""
    failures: FailuresStatus = FailuresStatus()
    """The failure budget."""
    avoided_nodes: tuple[Annotated[str, Field(max_length=253)], ...] = Field(default=(), max_length=16)
    """Nodes that replacements prefer to avoid."""
    incidents: tuple[IncidentStatus, ...] = Field(default=(), max_length=10)
    """The last ten, oldest first."""
    drained: bool = False
    """For the operator, while suspending: the coordinator has said that all ranks have stopped."""
    drain_since: AwareDatetime | None = None
    """For the operator: when it asked all ranks to save and stop, because the job is
    suspended or started anew."""
    rests_until: AwareDatetime | None = None
    """The gang found room for a part of its pods only, gave it back, and asks for all of it again then."""
    shape: str = Field(default="", max_length=64)
    """For the operator: digest of the fields that shape pods, as of this attempt. A change of one while pods
    run is refused."""
    restarted_at: str = Field(default="", max_length=64)
    """For the operator: the value of spec.restartedAt that has been acted upon."""
    clock: ClockStatus | None = None
    """For the operator: the job's clock, as of this status."""
    coordinator_fault_since: AwareDatetime | None = None
    """Since when the coordinator has not answered; only for the reason CoordinatorUnreachable."""

    @field_validator("conditions", mode="before")
    @classmethod
    def _known(cls, told: Any) -> Any:
        """A newer operator may have written others, as it may have other fields."""
        if not isinstance(told, list):
            return told
        return [each for each in told if not isinstance(each, dict) or each.get("type") in [*ConditionType]]

    def condition(self, kind: ConditionType) -> Condition | None:
        return next((each for each in self.conditions if each.type == kind), None)

    def holds(self, kind: ConditionType) -> bool:
        found = self.condition(kind)
        return found is not None and found.holds

    @property
    def finished(self) -> bool:
        """Terminal: nothing but cleaning up happens to this job any more."""
        return self.holds(ConditionType.COMPLETE) or self.holds(ConditionType.FAILED)
