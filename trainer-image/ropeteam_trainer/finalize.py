"""The end of a script: what was trained since the last checkpoint is saved, before the process group goes.

    the script destroys the default group -> what is being written is awaited; then the last step is written,
                                             and the agent is not told of it yet
    the script has ended well             -> it is told; or written now, if the group is still there
So a script that forms another group and trains on, or that fails after all, has the checkpoints of its
cadence and no other. Nothing waits while an exception is in flight: peers would not come. Limit: what has
kept destroy_process_group under another name since before init() calls torch's own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ropeteam_trainer.checkpoint.saving import Checkpoints
from ropeteam_trainer.rank.agentlink import Heartbeat
from ropeteam_trainer.rank.world import World

END_SECONDS = 60.0
"""So long a rank that has ended waits for the others, to save with them."""


class End:
    def __init__(
        self, world: World, heart: Heartbeat, checkpoints: Checkpoints | None, save: Callable[[bool], None]
    ) -> None:
        """save(tell): of all ranks together; whether the agent hears of it now."""
        self._world, self._heart, self._checkpoints, self._save = world, heart, checkpoints, save
        self._tried = 0
        """The step after which ranks have met last, or waited for each other in vain."""
        self.failed = False
        self._over = False

    def note_failure(self, report: Callable[..., Any], *error: Any) -> None:
        """An excepthook: an uncaught exception is about to end the script."""
        self.failed = True
        report(*error)

    def group_goes(self) -> None:
        """The script is about to destroy the default group."""
        if self._checkpoints is None or self._over or self.failed or _is_failing():
            return
        with self._heart.during("checkpoint"):
            self._checkpoints.wait()
            self._save_once(self._checkpoints, tell=False)
            self._checkpoints.leave_group()

    def script_is_over(self) -> None:
        """Once, in the exit handler."""
        self._over = True
        if self._checkpoints is not None and self._heart.script_has_ended and not self.failed:
            self._save_once(self._checkpoints, tell=True)
            self._checkpoints.tell()

    def _save_once(self, checkpoints: Checkpoints, *, tell: bool) -> None:
        """If anything is owed, and all ranks come here after the same step."""
        step = self._heart.step
        if step > max(0, checkpoints.newest) and step != self._tried:
            self._tried = step
            if self._world.meets(f"end/{step}", END_SECONDS):
                self._save(tell)


def before_destroying(act: Callable[[], None]) -> None:
    """From now on `act()` is called before the default process group is destroyed, by whatever module."""
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
    """Whether an exception is in flight, or has ended the script (as rankmain.py tells exit handlers)."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    return error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0))
