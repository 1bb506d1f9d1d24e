"""Two small additions to third-party libraries, made when a script imports them; no line of it changes.

    transformers.trainer             its Trainer reports steps, their total and the loss to the agent
    torch.nn.parallel.data_parallel  a warning at the first DataParallel: it does not span ranks
Promise: an addition that fails prints one line to stderr, and the script continues without it. A script
that imports neither pays one dictionary look-up per import. ROPETEAM_HOOKS=none disables both. Limit: only
for scripts that rankmain.py runs; children of a launcher or a shell import the unchanged libraries.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from ropeteam_trainer.agent.script.childhooks import hook_into
from ropeteam_trainer.system.notice import notice

Hook = Callable[[Any], None]


def install() -> None:
    """Install the hooks; call it after childhooks.install, before the script runs. Modules that a forked rank
    has imported already are hooked at once."""
    if os.environ.get("ROPETEAM_HOOKS") == "none":
        return
    hook_into(_HOOKS)


def _hook_trainer(trainer: Any) -> None:
    """Hook into transformers.trainer: add a callback that reports progress to every Trainer made from now on.
    Imported here, because only such scripts need it."""
    from ropeteam_trainer.huggingface import ReportProgress

    trainer.DEFAULT_CALLBACKS.append(ReportProgress)


def _hook_data_parallel(data_parallel: Any) -> None:
    """Hook into torch.nn.parallel.data_parallel: print a warning at this process's first DataParallel."""
    data_parallel_class = data_parallel.DataParallel
    original = data_parallel_class.__init__

    @functools.wraps(original)
    def warn_once(self: Any, *args: Any, **kwargs: Any) -> None:
        data_parallel_class.__init__ = original
        notice(_DATA_PARALLEL)
        original(self, *args, **kwargs)

    data_parallel_class.__init__ = warn_once


_DATA_PARALLEL = (
    "torch.nn.DataParallel splits a batch over the GPUs of one process only. Ranks exchange "
    "nothing through it: each trains its own model. Use torch.nn.parallel.DistributedDataParallel, or "
    "job.wrap(model, optimizer), with one process per GPU (spec.processesPerWorker)."
)
_HOOKS: dict[str, Hook] = {
    "transformers.trainer": _hook_trainer,
    "torch.nn.parallel.data_parallel": _hook_data_parallel,
}
