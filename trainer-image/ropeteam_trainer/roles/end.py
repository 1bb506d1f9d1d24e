"""End of a script: save the steps since the last checkpoint, before the process group is destroyed.

    the script destroys the default group -> wait for pending writes; then write the last step, not reported
                                             to the agent yet
    the script has succeeded              -> report it; or write it now, if the group still exists
So a script that forms another group and trains on, or that fails after all, has the checkpoints of its
interval and no other. Nothing waits while an exception is in flight: peers would not come. Limit: code that
has bound destroy_process_group to another name before init() calls torch's own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ropeteam_trainer.checkpoint.disabled import DisabledCheckpoints
from ropeteam_trainer.checkpoint.saving import Checkpoints
from ropeteam_trainer.rank.agentlink import HeartbeatWriter
from ropeteam_trainer.rank.world import World

END_SECONDS = 60.0
"""Limit for which a rank that has ended waits for the others, to save with them."""


class ScriptEnd:
    """Saves the last step at most once, either before the script destroys the process group or at exit."""

    def __init__(
        self,
        world: World,
        heart: HeartbeatWriter,
        checkpoints: Checkpoints | DisabledCheckpoints,
        save: Callable[[int, bool], None],
        has_all_ranks: Callable[[], bool],
    ) -> None:
        """save: RankRole.save_now, called by all ranks together. has_all_ranks: as in RankRole."""
        self._world, self._heart, self._checkpoints, self._save = world, heart, checkpoints, save
        self._has_all_ranks = has_all_ranks
        self._attempted_step = 0
        """Step that was last tried: the barrier is not repeated for it, even if it timed out."""
        self.failed = False
        """Whether an uncaught exception has ended the script."""
        self._exiting = False

    def record_failure(self, report: Callable[..., Any], *error: Any) -> None:
        """Record that an uncaught exception ends the script, then call report(*error). For sys.excepthook;
        report: the previous hook."""
        self.failed = True
        report(*error)

    def save_before_group_is_destroyed(self) -> None:
        """Wait for pending writes and save the last step, not reported to the agent yet. Nothing after a
        failure: the other ranks would not come."""
        if self._exiting or self.failed or _is_failing():
            return
        with self._heart.during("checkpoint"):
            self._checkpoints.wait()
            self._save_once(report=False)
            self._checkpoints.leave_group()

    def save_and_report_last_step(self) -> None:
        """Save the last step, if that is not done, and report it. Nothing if the script has not ended
        regularly. Called once, by the exit handler."""
        self._exiting = True
        if self._heart.script_has_ended and not self.failed:
            self._save_once(report=True)
            self._checkpoints.report()

    def _save_once(self, *, report: bool) -> None:
        """Save the last step if it is not saved yet, and all ranks arrive here after the same step within
        END_SECONDS; those that are lost are not awaited. One attempt for each step."""
        step = self._heart.step
        if not self._checkpoints.is_unsaved(step) or step == self._attempted_step:
            return
        self._attempted_step = step
        if not self._has_all_ranks() or self._world.barrier(f"end/{step}", END_SECONDS):
            self._save(step, report)


def call_before_group_is_destroyed(act: Callable[[], None]) -> None:
    """Patch torch.distributed.destroy_process_group(), also where it was imported by name, to call `act()`
    before it destroys the default process group."""
    original = dist.destroy_process_group

    @functools.wraps(original)
    def destroy_process_group(group: dist.ProcessGroup | None = None) -> None:
        if dist.is_initialized() and group in (None, dist.GroupMember.WORLD):
            act()
        original(group)

    for module in [*sys.modules.values()]:  # `from torch.distributed import ...` has a copy
        if getattr(module, "__dict__", {}).get(original.__name__) is original:
            setattr(module, original.__name__, destroy_process_group)


def _is_failing() -> bool:
    """Whether an exception is in flight, or has ended the script (rankmain.py sets sys.last_value then)."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    return error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0))
