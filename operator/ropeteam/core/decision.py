"""The result of `decide`: status, actions, events, desired state, when to look again, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ropeteam.api.status import JobStatus
from ropeteam.core.objects.actions import Action
from ropeteam_trainer.contract.desired import Desired


@dataclass(frozen=True)
class Announcement:
    """A Kubernetes event, sent after the status that justifies it was written."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Decision:
    """Intent before effect: a status that opens something new comes with no actions; the next reconcile
    carries them out.

    `status` is the status to save; equal to the observed one means no write.
    """

    status: JobStatus
    actions: tuple[Action, ...]
    why: str
    announcements: tuple[Announcement, ...] = ()
    desired: Desired | None = None
    """Desired state to send to the coordinator once `status` is saved. None: no coordinator to send it to."""
    requeue_after_seconds: float | None = None
    """Seconds until the next look, even if nothing happens. None: only when something changes."""
