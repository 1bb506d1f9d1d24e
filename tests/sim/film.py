"""The film strip of a history: one line for each thing that happened, so that a failure reads as a story.

Only a replay is filmed: the same moves in the same world give the same history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropeteam.api.status import (
    CheckpointStatus,
    CoordinatorStatus,
    FailuresStatus,
    IncidentStatus,
    JobStatus,
    SlotStatus,
)

if TYPE_CHECKING:
    from tests.sim.clock import Clock

_BEGINNING, _END = 300, 60


class Film:
    def __init__(self, clock: Clock, on: bool) -> None:
        self._clock, self.on = clock, on
        self.lines: list[str] = []
        self._why = ""

    def write(self, who: str, what: str) -> None:
        if self.on:
            self.lines.append(f"{self._clock.now:8.2f}  {who:<22} {what}")

    def line(self, who: str, why: str) -> None:
        """A sentence that is written only when it changes."""
        if self.on and why != self._why:
            self._why = why
            self.write(who, why)

    def wrote_status(self, old: JobStatus, new: JobStatus, why: str) -> None:
        if not self.on:
            return
        changes = [
            f"{name}: {_short(before)} -> {_short(after)}"
            for name in (
                "state",
                "attempt",
                "coordinator",
                "slots",
                "checkpoint",
                "incidents",
                "failures",
                "drained",
            )
            if (before := getattr(old, name)) != (after := getattr(new, name))
        ]
        self.write("operator", f"saves [{'; '.join(changes)}] because {why}")

    def text(self) -> str:
        """All of it, or beginning and end."""
        left_out = len(self.lines) - _BEGINNING - _END
        if left_out <= 0:
            return "\n".join(self.lines)
        middle = f"          ... {left_out} lines ..."
        return "\n".join((*self.lines[:_BEGINNING], middle, *self.lines[-_END:]))


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_short, value)) + ")"
    if isinstance(value, SlotStatus):
        return f"{value.slot}:{value.incarnation}"
    if isinstance(value, IncidentStatus):
        return f"{value.id} {value.cause}{' settled' if value.final else ''}"
    if isinstance(value, CheckpointStatus):
        return ",".join(f"{ref.step}@{ref.world}" for ref in value.lineage)
    if isinstance(value, FailuresStatus):
        return f"{value.charged}/{value.allowed} charged, {value.not_charged} free"
    if isinstance(value, CoordinatorStatus):
        return f"term {value.term}.{value.boot}"
    return repr(value)
