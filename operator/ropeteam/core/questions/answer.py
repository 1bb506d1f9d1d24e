"""The answer to a question of `decide`: a status, or actions, and always a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from ropeteam.api.status import JobStatus
from ropeteam.core.objects.actions import Action
from ropeteam.core.status.conditions import ConditionFact


@dataclass(frozen=True)
class Answer:
    """Actions wait for the next reconcile if `status` with `facts` differs from the saved one."""

    why: str
    status: JobStatus
    state: str
    """Text of the column STATE."""
    facts: tuple[ConditionFact, ...] = ()
    actions: tuple[Action, ...] = ()
    requeue_after_seconds: float | None = None
    """Reconcile again after so many seconds at the latest."""
    is_last: bool = False
    """No status is saved from now on, nothing is sent to the coordinator, and no time is awaited."""
