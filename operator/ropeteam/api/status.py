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
    """Term of the pod."""
    pod_uid: str = Field(default="", max_length=64)
    """UID of the pod. Empty if it is not known."""
    node: str = Field(default="", max_length=253)
    """Node of the pod. Empty if it is not known."""
    lease_seconds: int = Field(default=0, ge=0)
    """Value of status.coordinator.leaseSeconds in that term."""


class CoordinatorStatus(StatusModel):
    """The pod that decides which processes form the world."""

    term: int = Field(default=0, ge=0)
    """Number of the coordinator pod, which grows with each new one. It is saved before that pod is created.
    0: no pod was needed yet."""
    boot: int = Field(default=0, ge=0)
    """Number of restarts of its container, as the coordinator reports it."""
    pod_uid: str = Field(default="", max_length=64)
    """UID of the pod of this term. Empty until the operator has observed the pod. If that pod is gone, a new
    term begins."""
    address: str = Field(default="", max_length=64)
    """Cluster IP of the job's Service, which workers connect to. Empty until the Service exists."""
    node: str = Field(default="", max_length=253)
    """Node of the pod of this term. Empty until the pod has one."""
    previous: tuple[PreviousCoordinatorStatus, ...] = Field(default=(), max_length=16)
    """Coordinator pods of earlier terms that may still run, for scripts that write their own checkpoints.
    While there is one, the passing of time does not prove that a replaced pod has ended. Empty if all are
    known to have ended."""
    lease_seconds: int = Field(default=0, ge=0)
    """Number of seconds without contact to an operator after which this coordinator answers no agent. It is
    set from spec.recovery.selfFence at the start of the term. 0: no such limit."""
    start_time: AwareDatetime | None = None
    """Time at which the operator decided on this term."""
    consecutive_failures: int = Field(default=0, ge=0)
    """For the operator: number of coordinator pods in a row that were lost before they reported. It sets the
    backoff of the next one."""


class SlotStatus(StatusModel):
    """A slot: a position in the job, held by one pod at a time."""

    slot: int = Field(ge=0)
    """Number of the slot: workers from 0, then parameter servers."""
    incarnation: int = Field(default=1, ge=1)
    """Number of the pod in this slot, from 1. It grows with each replacement, and is never reset."""
    pod_uid: str = Field(default="", max_length=64)
    """UID of the pod of this incarnation. Empty until the operator has observed the pod. If that pod is gone,
    the slot gets another incarnation."""
    replacement_time: AwareDatetime | None = None
    """For the operator: time at which it decided on this incarnation. Absent for the first one."""
    previous_pod_uid: str = Field(default="", max_length=64)
    """For the operator: UID of the pod that this incarnation replaces. Empty if there is none, or if several
    may still run."""
    previous_pod_fenced: bool = True
    """For the operator: whether no replaced pod can write any more. True if the container of each has ended,
    or spec.recovery.fenceSeconds and a margin have passed. Also true if no pod was replaced."""
    handover_pending: bool = False
    """For the operator: whether the replaced pod is terminating and still holds the slot. This incarnation
    takes over when that pod has saved."""
    avoid_node: str = Field(default="", max_length=253)
    """Node that new pods avoid if they can, because a pod of this slot was lost or failed there. Empty if
    there is none."""
    consecutive_failures: int = Field(default=0, ge=0)
    """For the operator: number of pods of this slot in a row that were lost before their world trained. It
    sets the backoff of the next one."""


class WorkersStatus(StatusModel):
    """Numbers of pods of workers and parameter servers."""

    desired: int = Field(default=0, ge=0)
    """Number of pods of the current attempt. Before the first attempt, the number that spec defines."""
    ready: int = Field(default=0, ge=0)
    """Number of pods whose container `trainer` runs and whose agent is registered with the coordinator. 0
    when the job has ended."""
    replacing: int = Field(default=0, ge=0)
    """Number of pods that replace a lost one, and whose world does not train yet."""
    summary: str = Field(default="", max_length=32)
    """Ready and desired pods as text, for the column READY."""


class ProgressStatus(StatusModel):
    """Progress of training."""

    step: int = Field(default=0, ge=0)
    """Last step that rank 0 has reported."""
    total_steps: int | None = Field(default=None, ge=0)
    """Number of steps of the whole training. Absent if the script does not report it."""
    percent: int | None = Field(default=None, ge=0, le=100)
    """Percentage of status.progress.totalSteps that is done. Absent if that is absent."""
    eta_seconds: int | None = Field(default=None, ge=0)
    """Estimated number of seconds until the last step. Absent if it is not known."""
    samples_per_second: str = Field(default="", max_length=32)
    """Number of samples per second of the whole job, as decimal text. Empty if it is not known."""
    loss: str = Field(default="", max_length=32)
    """Last loss that rank 0 has reported, as decimal text. Empty if it reports none."""
    time: AwareDatetime | None = None
    """Time at which the operator received these values."""
    summary: str = Field(default="", max_length=32)
    """Value of status.progress.percent as text, for the column PROGRESS."""
    eta: str = Field(default="", max_length=32)
    """Value of status.progress.etaSeconds as text, for the column ETA."""


class CheckpointRefStatus(StatusModel):
    """A committed checkpoint."""

    step: int = Field(ge=0)
    """Step after which the state was saved."""
    world: str = Field(default="", max_length=64)
    """World that saved it, as <term>.<boot>.<number>."""
    digest: str = Field(default="", max_length=64)
    """SHA-256 of its manifest, in hexadecimal digits."""


class CheckpointStatus(StatusModel):
    """The newest committed checkpoint."""

    step: int = Field(ge=0)
    """Step after which the state was saved."""
    time: AwareDatetime | None = None
    """Time at which it was committed."""
    location: str = Field(default="", max_length=1024)
    """Folder of the checkpoint in the container `trainer`."""
    lineage: tuple[CheckpointRefStatus, ...] = Field(default=(), max_length=10)
    """Committed checkpoints of the job that exist, newest first. Ranks restore the first valid one."""


class ChargeStatus(StatusModel):
    """An incident that is charged to the failure budget."""

    id: str = Field(max_length=64)
    """Value of status.incidents[].id."""
    time: AwareDatetime
    """Time of the fault by the clock of the job (status.clock). spec.recovery.windowSeconds counts from
    it."""


class FailuresStatus(StatusModel):
    """The failure budget."""

    charged: int = Field(default=0, ge=0)
    """Number of charged incidents within spec.recovery.windowSeconds."""
    allowed: int = Field(default=0, ge=0)
    """Value of spec.recovery.maxFailures."""
    not_charged: int = Field(default=0, ge=0)
    """Number of incidents of the whole life of the job that are not charged, for example evictions and lost
    nodes."""
    summary: str = Field(default="", max_length=32)
    """Charged and allowed incidents as text, for the column FAILURES."""
    charges: tuple[ChargeStatus, ...] = Field(default=(), max_length=1001)
    """For the operator: incidents that status.failures.charged counts."""
    last_world: str = Field(default="", max_length=64)
    """For the operator: newest world whose end is recorded here. Incidents of older worlds have been
    counted."""


class RecoveryTimesStatus(StatusModel):
    """Milliseconds from the fault to each stage of the recovery."""

    stopped: int | None = Field(default=None, ge=0)
    """Milliseconds until all ranks of the previous world have ended. Absent before."""
    planned: int | None = Field(default=None, ge=0)
    """Milliseconds until the next world is planned. Absent before."""
    started: int | None = Field(default=None, ge=0)
    """Milliseconds until all ranks of that world are started. Absent before."""
    first_step: int | None = Field(default=None, ge=0)
    """Milliseconds until all ranks have made a step: the job has recovered. Absent before."""


class IncidentStatus(StatusModel):
    """An incident: one fault with all its consequences."""

    id: str = Field(max_length=64)
    """World that it ended, as <term>.<boot>.<number>. For a fault outside any world
    pod-<slot>-<incarnation>."""
    attempt: int = Field(default=0, ge=0)
    """Value of status.attempt at that time. 0: recorded by a release that did not store it."""
    time: AwareDatetime
    """Time at which the fault was detected."""
    cause: str = Field(max_length=64)
    """Cause of the fault. Charged: Error, Signal, OutOfMemory, Hang, StartTimeout, PodFailed, Unknown. Not
    charged: PodDeleted, Evicted, NodeLost, AgentLost, StorageUnavailable, RetriedFree."""
    charged: bool = False
    """Whether the incident is charged to the failure budget."""
    slot: int = Field(ge=0)
    """Slot in which the fault began."""
    rank: int | None = Field(default=None, ge=0)
    """Rank in which the fault began. Absent if it is not the fault of one rank."""
    node: str = Field(default="", max_length=253)
    """Node of that slot. Empty if it is not known."""
    recovery_milliseconds: RecoveryTimesStatus = RecoveryTimesStatus()
    """Milliseconds from the fault to each stage of the recovery."""
    steps_lost: int | None = Field(default=None, ge=0)
    """Number of steps that are repeated after it. Absent until the next world has resumed."""
    message: str = Field(default="", max_length=4096)
    """Description of the fault for people, followed by the last lines that the rank wrote."""
    final: bool = False
    """Whether cause and charge are final. Only final incidents count in status.failures."""


class ClockStatus(StatusModel):
    """The clock of the job, which measures spec.recovery.windowSeconds and spec.activeDeadlineSeconds. It
    advances with monotonic clocks of the operators."""

    job: AwareDatetime
    """Time by the clock of the job when this status was written."""
    wall: AwareDatetime
    """Time by the wall clock of the operator when it wrote this status."""


class JobStatus(StatusModel):
    """Most recently observed state of the job. Only the operator writes it. A field that is absent or empty
    is not known yet, unless it says otherwise. Fields for the operator are its memory, and may change with
    any release."""

    observed_generation: int = Field(default=0, ge=0)
    """Value of metadata.generation of the spec that this status is about."""
    state: str = Field(default="", max_length=32)
    """State of the job in one word, for the column STATE. Pending: not all pods run. Starting: all pods run,
    but no step was made. Running: all ranks have made a step. Recovering: no step was made since a fault.
    Restarting, Suspending: ranks save and stop. Suspended: no pod runs. Complete, Failed: the job has ended.
    Invalid: the job cannot start as it is written. Programs read status.conditions."""
    reason: str = Field(default="", max_length=1024)
    """Reason of the condition that explains the state, for the column REASON."""
    last_incident: str = Field(default="", max_length=128)
    """Cause and slot of the newest incident, for the column LAST-INCIDENT. Empty if there was none."""
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """Conditions of the job. One that was never determined is absent."""
    attempt: int = Field(default=0, ge=0)
    """Number of starts of the whole gang. 0: the job was not started yet."""
    coordinator: CoordinatorStatus = CoordinatorStatus()
    """The pod that decides which processes form the world."""
    start_time: AwareDatetime | None = None
    """Time at which the job was started or last resumed, by the clock of the job (status.clock).
    spec.activeDeadlineSeconds counts from it. Absent before the first start."""
    completion_time: AwareDatetime | None = None
    """Time at which the job ended as Complete or Failed. Absent before."""
    workers: WorkersStatus = WorkersStatus()
    """Numbers of pods of workers and parameter servers."""
    run_as_user: int | None = Field(default=None, ge=1)
    """UID as which the container `trainer` of this attempt runs, because Pod Security refuses it as written.
    Absent if the image and spec.template define the user."""
    capabilities_dropped: bool = False
    """For the operator: whether the container `trainer` of this attempt drops all capabilities that
    spec.template does not set. False if the attempt began under an earlier release."""
    slots: tuple[SlotStatus, ...] = Field(default=(), max_length=4096)
    """Slots of workers and parameter servers, and the pod that holds each. Empty before the first start."""
    launcher: str = Field(default="", max_length=256)
    """Description of how agents start the command, for example PerRank (python). Empty until an agent has
    reported it."""
    feature_level: int = Field(default=0, ge=0, le=5)
    """Feature level of the script: how much of Ropeteam's library it uses. 0: nothing. 1: init(). 2:
    restore(). 3: batches(). 2 and 3 need spec.checkpoint. Each attempt begins with 0. Higher numbers are for
    later releases."""
    progress: ProgressStatus | None = None
    """Progress of training, as rank 0 reports it. If nothing else changes, it is written every 30 seconds at
    most. Absent before the first reported step."""
    checkpoint: CheckpointStatus | None = None
    """The newest committed checkpoint. Absent before the first one."""
    failures: FailuresStatus = FailuresStatus()
    """Failure budget: incidents that count, and how many are allowed."""
    avoided_nodes: tuple[Annotated[str, Field(max_length=253)], ...] = Field(default=(), max_length=16)
    """Nodes that new pods of this attempt avoid if they can."""
    incidents: tuple[IncidentStatus, ...] = Field(default=(), max_length=10)
    """The last ten incidents, oldest first."""
    drained: bool = False
    """For the operator: whether all ranks have stopped, as the coordinator reports, when the job is suspended
    or restarted."""
    drain_start_time: AwareDatetime | None = None
    """For the operator: time at which ranks were requested to save and stop, because the job is suspended or
    restarted. Absent otherwise."""
    backoff_end_time: AwareDatetime | None = None
    """Time at which all pods of the gang are created again. They were deleted because only some of them could
    be scheduled. Absent otherwise."""
    pod_spec_hash: str = Field(default="", max_length=64)
    """For the operator: digest of the fields of spec that define pods, as of this attempt. It shows whether
    they were changed while pods run."""
    observed_restarted_at: str = Field(default="", max_length=64)
    """For the operator: value of spec.restartedAt when this attempt began."""
    clock: ClockStatus | None = None
    """For the operator: the clock of the job, which measures spec.recovery.windowSeconds and
    spec.activeDeadlineSeconds. It advances with monotonic clocks of the operators."""
    coordinator_unreachable_start_time: AwareDatetime | None = None
    """Time at which the coordinator became unreachable for the operator. Absent while it is reachable."""

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
