"""The answer of `decide`: what to remember, what to do, whom to tell, when to look again, and why."""

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
    """Intent before effect: a status that opens something new comes with no actions; the next round carries
    them out.

    `status` is what status should be; equal to the observed one means no write.
    """

    status: JobStatus
    actions: tuple[Action, ...]
    why: str
    announcements: tuple[Announcement, ...] = ()
    desired: Desired | None = None
    """What to tell the coordinator once `status` is saved; None: there is none to tell."""
    look_again_seconds: float | None = None
    """At the latest after this long, even if nothing happens. None: only when something changes."""
