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
    """Intent before effect: a decision that changes status has no actions; the next one has them, once that
    status is saved. A finished job is an exception, since its end is saved already.
    """

    status: JobStatus
    """Status to save. Equal to the observed one: nothing is written."""
    actions: tuple[Action, ...]
    """Requests to the API server, sent concurrently; each is idempotent."""
    why: str
    """Sentence for the operator's log."""
    announcements: tuple[Announcement, ...] = ()
    """Events to send once `status` is saved."""
    desired: Desired | None = None
    """Desired state to send to the coordinator once `status` is saved. None: no coordinator to send it to."""
    requeue_after_seconds: float | None = None
    """Seconds until the next reconcile, even if nothing happens. 0: at once. None: only when something
    changes."""
