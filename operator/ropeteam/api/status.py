"""Status of a TrainingJob: for users, and the operator's only memory. Written once per decision, with
resourceVersion. Stored objects of earlier releases are read, too (model.py)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AwareDatetime, Field, field_validator

from ropeteam.api.conditions import Condition, ConditionType
from ropeteam.api.model import StatusModel


class PreviousCoordinatorStatus(StatusModel):
    """A coordinator pod of an earlier term that may still run."""

    term: int = Field(ge=0)
    """Number of the coordinator pod."""
    pod_uid: str = Field(default="", max_length=64)
    """UID of the pod."""
    node: str = Field(default="", max_length=253)
    """Node of the pod."""
    lease_seconds: int = Field(default=0, ge=0)
    """leaseSeconds of that pod, as below."""


class CoordinatorStatus(StatusModel):
    """The job's coordinator pod."""

    term: int = Field(default=0, ge=0)
    """Number of the coordinator pod; saved before that pod is created. 0: none was needed yet."""
    boot: int = Field(default=0, ge=0)
    """Restarts of its container, as the coordinator reports them."""
    pod_uid: str = Field(default="", max_length=64)
    """UID of the pod of this term, once observed. If that pod is gone, a new term begins."""
    address: str = Field(default="", max_length=64)
    """Numeric address of the job's Service, as handed to the workers."""
    node: str = Field(default="", max_length=253)
    """Node of the pod of this term."""
    previous: tuple[PreviousCoordinatorStatus, ...] = Field(default=(), max_length=16)
    """Coordinator pods of earlier terms that nothing proves to have ended. While there is one, no replaced
    pod of a script that writes its own checkpoints counts as ended because time has passed."""
    lease_seconds: int = Field(default=0, ge=0)
    """With recovery.selfFence: seconds without contact to an operator after which this coordinator answers no
    agent any more. 0: no such limit."""
    start_time: AwareDatetime | None = None
    """Time at which this term was decided on."""
    consecutive_failures: int = Field(default=0, ge=0)
    """For the operator: coordinator pods lost in a row without a report between; sets the backoff of the next
    one."""


class SlotStatus(StatusModel):
    """A slot: a position in the job, held by one pod at a time."""

    slot: int = Field(ge=0)
    """Number of the slot: workers from 0, then parameter servers."""
    incarnation: int = Field(default=1, ge=1)
    """Number of the pod in this slot, from 1; never reset."""
    pod_uid: str = Field(default="", max_length=64)
    """UID of the pod of this incarnation, once observed. If that pod is gone, the slot gets another
    incarnation."""
    replacement_time: AwareDatetime | None = None
    """For the operator: time at which the current incarnation was decided on. Not set for the first."""
    previous_pod_uid: str = Field(default="", max_length=64)
    """For the operator: UID of the pod that this incarnation replaces."""
    previous_pod_fenced: bool = True
    """For the operator: whether the replaced pod can no longer write, because its container has ended or
    fenceSeconds and a margin have passed. True also where no pod was replaced."""
    handover_pending: bool = False
    """For the operator: the replaced pod is terminating and still holds the slot. This incarnation takes over
    when it has saved."""
    avoid_node: str = Field(default="", max_length=253)
    """Node that the current incarnation prefers to avoid."""
    consecutive_failures: int = Field(default=0, ge=0)
    """For the operator: pods of this slot lost in a row without a running world between; sets the backoff of
    the next one."""


class WorkersStatus(StatusModel):
    """Numbers of pods of workers and parameter servers."""

    desired: int = Field(default=0, ge=0)
    """Number of pods that the spec defines: workers and parameter servers."""
    ready: int = Field(default=0, ge=0)
    """Pods whose trainer container runs and whose agent is registered."""
    replacing: int = Field(default=0, ge=0)
    """Pods that are being replaced."""
    summary: str = Field(default="", max_length=32)
    """Ready and desired pods, for the printer column."""


class ProgressStatus(StatusModel):
    """Progress of training. At most 30 s old; `ropeteam watch` is live."""

    step: int = Field(default=0, ge=0)
    """Last step that rank 0 has reported."""
    total_steps: int | None = Field(default=None, ge=0)
    """Steps of the whole training, as the script reports them; absent if it does not."""
    percent: int | None = Field(default=None, ge=0, le=100)
    """Percentage of totalSteps that is done."""
    eta_seconds: int | None = Field(default=None, ge=0)
    """Estimated seconds until the last step."""
    samples_per_second: str = Field(default="", max_length=32)
    """Samples per second of the whole job, as decimal text."""
    loss: str = Field(default="", max_length=32)
    """Last reported loss, as decimal text."""
    time: AwareDatetime | None = None
    """Time at which this was measured."""
    summary: str = Field(default="", max_length=32)
    """Percentage done, for the printer column."""
    eta: str = Field(default="", max_length=32)
    """Estimated time until the last step, for the printer column."""


class CheckpointRefStatus(StatusModel):
    """A committed checkpoint."""

    step: int = Field(ge=0)
    """Step after which the state was saved."""
    world: str = Field(default="", max_length=64)
    """World that saved it, term.boot.n."""
    digest: str = Field(default="", max_length=64)
    """sha256 of its manifest."""


class CheckpointStatus(StatusModel):
    """The newest durable checkpoint."""

    step: int = Field(ge=0)
    """Step after which it was saved."""
    time: AwareDatetime | None = None
    """Time at which it was committed."""
    location: str = Field(default="", max_length=1024)
    """Folder of the checkpoint inside the container."""
    lineage: tuple[CheckpointRefStatus, ...] = Field(default=(), max_length=10)
    """Committed checkpoints that exist, newest first. Ranks restore in this order, not in that of folders."""


class ChargeStatus(StatusModel):
    """An incident charged to the failure budget."""

    id: str = Field(max_length=64)
    """ID of the incident."""
    time: AwareDatetime
    """Time at which it was charged, by the job's clock. It counts for spec.recovery.windowSeconds."""


class FailuresStatus(StatusModel):
    """The failure budget."""

    charged: int = Field(default=0, ge=0)
    """Number of charged incidents within the window."""
    allowed: int = Field(default=0, ge=0)
    """Value of spec.recovery.maxFailures."""
    not_charged: int = Field(default=0, ge=0)
    """Number of incidents that are not charged: evictions, lost nodes, deleted pods."""
    summary: str = Field(default="", max_length=32)
    """Charged and allowed incidents, for the printer column."""
    charges: tuple[ChargeStatus, ...] = Field(default=(), max_length=1001)
    """For the operator: the incidents behind `charged`."""
    last_world: str = Field(default="", max_length=64)
    """For the operator: newest world whose end is recorded here. Incidents of older worlds have been
    counted."""


class RecoveryTimesStatus(StatusModel):
    """Milliseconds from the fault to each stage of the recovery."""

    stopped: int | None = Field(default=None, ge=0)
    """Until all ranks of the previous world have ended."""
    planned: int | None = Field(default=None, ge=0)
    """Until the next world is planned."""
    started: int | None = Field(default=None, ge=0)
    """Until all ranks of that world are started."""
    first_step: int | None = Field(default=None, ge=0)
    """Until all ranks have made a step: the job has recovered."""


class IncidentStatus(StatusModel):
    """An incident: one fault with all its consequences."""

    id: str = Field(max_length=64)
    """World that it ended (term.boot.n), or pod-<slot>-<incarnation> for a fault outside any world."""
    attempt: int = Field(default=0, ge=0)
    """Value of status.attempt at that time. 0: recorded by a release that did not store it."""
    time: AwareDatetime
    """Time at which the fault was detected."""
    cause: str = Field(max_length=64)
    """Error, Signal, OutOfMemory, Hang, StartTimeout, PodFailed, PodDeleted, Evicted, NodeLost, AgentLost,
    StorageUnavailable, RetriedFree, Unknown."""
    charged: bool = False
    """Whether the incident is charged to the failure budget."""
    slot: int = Field(ge=0)
    """Slot in which it began."""
    rank: int | None = Field(default=None, ge=0)
    """Rank in which it began, if it was one rank."""
    node: str = Field(default="", max_length=253)
    """Node of that slot."""
    recovery_milliseconds: RecoveryTimesStatus = RecoveryTimesStatus()
    """Milliseconds from the fault to each stage of the recovery."""
    steps_lost: int | None = Field(default=None, ge=0)
    """Steps that had to be repeated."""
    message: str = Field(default="", max_length=4096)
    """Description; for an exception, the script's last lines."""
    final: bool = False
    """Whether cause and charge are final."""


class ClockStatus(StatusModel):
    """The job's clock, by which the failure window and activeDeadlineSeconds are measured. It advances with
    monotonic clocks of the operators."""

    job: AwareDatetime
    """The job's clock when this status was written."""
    wall: AwareDatetime
    """Wall clock of the operator that wrote this status, at that moment."""


class JobStatus(StatusModel):
    """The state of the job: for people, and the operator's memory."""

    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that this status is about."""
    state: str = Field(default="", max_length=32)
    """State of the job in one word: Pending, Starting, Running, Recovering, Restarting, Suspending,
    Suspended, Complete, Failed, Invalid."""
    reason: str = Field(default="", max_length=1024)
    """Reason of the condition that explains the state, for the printer column."""
    last_incident: str = Field(default="", max_length=128)
    """Cause and slot of the newest incident, for the printer column."""
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """Conditions of the job: Accepted, Suspended, Running, Recovering, Finished, Complete, Failed, Stalled,
    Degraded."""
    attempt: int = Field(default=0, ge=0)
    """Number of starts of the whole gang. 0: not started yet."""
    coordinator: CoordinatorStatus = CoordinatorStatus()
    """The job's coordinator."""
    start_time: AwareDatetime | None = None
    """Time at which the job was first started, or last resumed, by its own clock."""
    completion_time: AwareDatetime | None = None
    """Time at which the job ended as Complete or Failed."""
    workers: WorkersStatus = WorkersStatus()
    """Numbers of pods of workers and parameter servers."""
    run_as_user: int | None = Field(default=None, ge=1)
    """UID as which this attempt's container `trainer` runs, because Pod Security refuses it as written.
    Absent: as image and template define."""
    capabilities_dropped: bool = False
    """For the operator: whether all capabilities of this attempt's container `trainer` are dropped, unless
    the template sets them. False: the attempt began under an earlier release; replaced pods equal the
    others."""
    slots: tuple[SlotStatus, ...] = Field(default=(), max_length=4096)
    """Slots of workers and parameter servers, and the pod that holds each."""
    launcher: str = Field(default="", max_length=256)
    """How the agents start the command."""
    feature_level: int = Field(default=0, ge=0, le=5)
    """How much of the library the script uses: 0 none, 1 init(), 2 restore(), 3 batches(). 2 and 3 need
    spec.checkpoint. Higher values are for later releases."""
    progress: ProgressStatus | None = None
    """Progress of training."""
    checkpoint: CheckpointStatus | None = None
    """The newest durable checkpoint."""
    failures: FailuresStatus = FailuresStatus()
    """The failure budget."""
    avoided_nodes: tuple[Annotated[str, Field(max_length=253)], ...] = Field(default=(), max_length=16)
    """Nodes that replacements prefer to avoid."""
    incidents: tuple[IncidentStatus, ...] = Field(default=(), max_length=10)
    """The last ten incidents, oldest first."""
    drained: bool = False
    """For the operator, while suspending: whether all ranks have stopped, as the coordinator reports."""
    drain_start_time: AwareDatetime | None = None
    """For the operator: time at which all ranks were requested to save and stop, because the job is suspended
    or restarted."""
    backoff_end_time: AwareDatetime | None = None
    """Time at which all pods of the gang are created again. Only a part of them could be scheduled, and they
    were deleted, so that other jobs can use the resources."""
    pod_spec_hash: str = Field(default="", max_length=64)
    """For the operator: digest of the spec fields that define pods, as of this attempt. A change of one while
    pods run is refused."""
    observed_restarted_at: str = Field(default="", max_length=64)
    """For the operator: the value of spec.restartedAt for which the gang was restarted."""
    clock: ClockStatus | None = None
    """For the operator: the job's clock, as of this status."""
    coordinator_unreachable_start_time: AwareDatetime | None = None
    """Time at which the coordinator became unreachable. Explains the reason CoordinatorUnreachable."""

    @field_validator("conditions", mode="before")
    @classmethod
    def _drop_unknown_conditions(cls, conditions: Any) -> Any:
        """`conditions` of a stored object without types that only a newer operator knows, as its other
        unknown fields are dropped. What is no list, or no map in it, is left for pydantic to refuse."""
        if not isinstance(conditions, list):
            return conditions
        return [
            each for each in conditions if not isinstance(each, dict) or each.get("type") in [*ConditionType]
        ]

    def condition(self, kind: ConditionType) -> Condition | None:
        """None: the condition was not set yet."""
        return next((each for each in self.conditions if each.type == kind), None)

    def holds(self, kind: ConditionType) -> bool:
        """Whether the condition is True; one that is Unknown or not set is not."""
        found = self.condition(kind)
        return found is not None and found.holds

    @property
    def finished(self) -> bool:
        """Whether the job has ended, as Complete or Failed; that is final."""
        return self.holds(ConditionType.COMPLETE) or self.holds(ConditionType.FAILED)
