"""Conditions: facts about a job, each with a reason and a message that says what, where and the next step."""

from __future__ import annotations

from enum import StrEnum

from pydantic import AwareDatetime, Field

from ropeteam.api.model import StatusModel


class ConditionType(StrEnum):
    ACCEPTED = "Accepted"
    SUSPENDED = "Suspended"
    RUNNING = "Running"
    RECOVERING = "Recovering"
    FINISHED = "Finished"
    COMPLETE = "Complete"
    FAILED = "Failed"
    STALLED = "Stalled"
    DEGRADED = "Degraded"


class Condition(StatusModel):
    """A condition of the job."""

    type: ConditionType
    """Type of the condition. Accepted: the spec is valid, and the API server admits the pods. Suspended: the
    job is suspended. Running: all ranks have made a step. Recovering: a fault ended the world, and the next
    one has made no step yet. Finished: the job has ended, as Complete or Failed. Stalled: something keeps the
    job from training, and may need action. Degraded: the job continues with a problem."""
    status: str = Field(max_length=7, pattern="^(True|False|Unknown)$")
    """Status of the condition: True, False or Unknown."""
    reason: str = Field(min_length=1, max_length=1024, pattern="^[A-Za-z]([A-Za-z0-9]*)$")
    """Reason for the status, as one CamelCase word for programs."""
    message: str = Field(default="", max_length=32768)
    """Details for people: what is the case, where, and what to do next. Empty if there is nothing to add."""
    last_transition_time: AwareDatetime
    """Last time that the status changed. A change of the message alone does not count."""
    observed_generation: int = Field(default=0, ge=0)
    """Value of metadata.generation of the spec that the condition is about."""

    @property
    def holds(self) -> bool:
        """Whether the status is True; of an Unknown one it is not."""
        return self.status == "True"

    def replaced_by(self, new: Condition) -> Condition:
        """`new`, which keeps this condition's lastTransitionTime if the status is the same."""
        if new.status != self.status:
            return new
        return new.model_copy(update={"last_transition_time": self.last_transition_time})
