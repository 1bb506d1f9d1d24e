"""Two small additions to libraries of others, made when a script imports them; no line of it changes.

    transformers.trainer             its Trainer tells the agent of steps, their total and the loss
    torch.nn.parallel.data_parallel  a warning at the first DataParallel: it does not span ranks
Promise: an addition that fails says so in one line on stderr, and the script goes on as without it. A script
that imports neither pays one dictionary look-up per import. ROPETEAM_HOOKS=none switches both off. Limit: for
scripts that rankmain.py runs; a launcher's or a shell's own children import what is there.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from ropeteam_trainer.agent.script.childhooks import hook_into

Hook = Callable[[Any], None]


def install() -> None:
    """Before the script runs. A module that is there already, because this rank was forked, is taken now."""
    if os.environ.get("ROPETEAM_HOOKS") == "none":
        return
    hook_into(_HOOKS)


def _report_progress(trainer: Any) -> None:
    from ropeteam_trainer.huggingface import ReportProgress

    trainer.DEFAULT_CALLBACKS.append(ReportProgress)


def _warn_of_data_parallel(data_parallel: Any) -> None:
    kind = data_parallel.DataParallel
    original = kind.__init__

    @functools.wraps(original)
    def warn_once(self: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__ = original
        print(_DATA_PARALLEL, file=sys.stderr, flush=True)
        original(self, *args, **kwargs)

    kind.__init__ = warn_once


_DATA_PARALLEL = (
    "ropeteam: torch.nn.DataParallel splits a batch over the GPUs of one process only. Ranks exchange "
    "nothing through it: each trains a model of its own. Use torch.nn.parallel.DistributedDataParallel, or "
    "job.wrap(model, optimizer), with one process per GPU (spec.processesPerWorker)."
)
_HOOKS: dict[str, Hook] = {
    "transformers.trainer": _report_progress,
    "torch.nn.parallel.data_parallel": _warn_of_data_parallel,
}
