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
    """One condition of a job. lastTransitionTime changes with status only, not with the message."""

    type: ConditionType
    """Type of the condition."""
    status: str = Field(max_length=7, pattern="^(True|False|Unknown)$")
    """Status of the condition: True, False or Unknown."""
    reason: str = Field(min_length=1, max_length=1024, pattern="^[A-Za-z]([A-Za-z0-9]*)$")
    """Reason for the status, one CamelCase word for programs."""
    message: str = Field(default="", max_length=32768)
    """Details for people: what, where, and the next step."""
    last_transition_time: AwareDatetime
    """Last time that the status changed."""
    observed_generation: int = Field(default=0, ge=0)
    """Generation of the spec that the condition is about."""

    @property
    def holds(self) -> bool:
        """Whether the status is True; of an Unknown one it is not."""
        return self.status == "True"

    def replaced_by(self, new: Condition) -> Condition:
        """`new`, which keeps this condition's lastTransitionTime if the status is the same."""
        if new.status != self.status:
            return new
        return new.model_copy(update={"last_transition_time": self.last_transition_time})
