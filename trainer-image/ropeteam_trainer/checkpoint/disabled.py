"""Checkpoints of a rank that saves none: no spec.checkpoint, or another rank saves for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropeteam_trainer.rank.agentlink import HeartbeatWriter


class DisabledCheckpoints:
    """Stand-in with the interface of saving.Checkpoints, whose methods do nothing."""

    every_steps: int | None = None
    every_seconds: float | None = None

    def register(
        self,
        objects: Mapping[str, Any],
        optional: Mapping[str, Any] | None = None,
        own: Mapping[str, Any] | None = None,
    ) -> None:
        pass

    def restore(self, heart: HeartbeatWriter) -> None:
        pass

    def due(self, step: int, some_rank_is_late: bool | None = None) -> bool:  # noqa: ARG002
        return False

    def is_unsaved(self, _: int) -> bool:
        return False

    def save(self, step: int, data: dict[str, int] | None, *, report: bool = True) -> None:
        pass

    def wait(self) -> None:
        pass

    def report(self) -> None:
        pass

    def leave_group(self) -> None:
        pass

    def close(self) -> None:
        pass
