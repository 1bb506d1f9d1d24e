"""The answer to a question of `decide`: a status, or actions, and always a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from ropeteam.api.status import JobStatus
from ropeteam.core.objects.actions import Action
from ropeteam.core.status.conditions import ConditionFact


@dataclass(frozen=True)
class Answer:
    """Result of one question. Actions wait for the next reconcile if `status` with `facts` differs from
    the saved status; decide.py sees to that."""

    why: str
    """Sentence for the operator's log and for events."""
    status: JobStatus
    """Status to save, still without `facts`, counts of pods and texts for columns."""
    state: str
    """Value of status.state, the column STATE."""
    facts: tuple[ConditionFact, ...] = ()
    """Conditions to set. Types that are not here keep their saved value."""
    actions: tuple[Action, ...] = ()
    requeue_after_seconds: float | None = None
    """Reconcile again after so many seconds at the latest. None: this answer sets no limit."""
    is_last: bool = False
    """The job is being deleted: no status is saved, nothing is sent to the coordinator, no time is
    awaited."""
