"""What a question of `decide` answers: a status, or actions, and always a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from ropeteam.api.status import JobStatus
from ropeteam.core.objects.actions import Action
from ropeteam.core.status.conditions import Fact


@dataclass(frozen=True)
class Answer:
    """If `status` with `facts` differs from what is saved, the actions wait for the next round."""

    why: str
    status: JobStatus
    state: str
    """The word in the column STATE."""
    facts: tuple[Fact, ...] = ()
    actions: tuple[Action, ...] = ()
    again: float | None = None
    """Look again after so many seconds at the latest."""
