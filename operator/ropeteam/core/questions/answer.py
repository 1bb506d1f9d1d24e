"""The answer to a question of `decide`: a status, or actions, and always a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from ropeteam.api.status import JobStatus
from ropeteam.core.objects.actions import Action
from ropeteam.core.status.conditions import Fact


@dataclass(frozen=True)
class Answer:
    """Actions wait for the next reconcile if `status` with `facts` differs from the saved one."""

    why: str
    status: JobStatus
    state: str
    """Text of the column STATE."""
    facts: tuple[Fact, ...] = ()
    actions: tuple[Action, ...] = ()
    again: float | None = None
    """Look again after so many seconds at the latest."""
