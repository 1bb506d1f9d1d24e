"""Around a script that is planned: no real process group, and not one step of training.

shim.py ROOT KIND SCRIPT [arguments]      as the agent's shim of ranks, which runs the script
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])

from ropeteam_trainer.agent.script import rankmain
from ropeteam_trainer.contract import config
from ropeteam_trainer.partition.answer import Answer
from ropeteam_trainer.planning import answers


def prepare() -> None:
    """Before the script. Does nothing where there is no torch: then the script says so itself."""
    try:
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        from torch.optim.optimizer import register_optimizer_step_pre_hook
    except ImportError:
        return
    from ropeteam_trainer.planning.measure import join

    def stand_in(*_: Any, **__: Any) -> None:
        join(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))

    dist.init_process_group = stand_in
    DistributedDataParallel.__init__ = _copies  # type: ignore[assignment,method-assign]
    register_optimizer_step_pre_hook(_steps)


def _copies(_: Any, module: Any, *__: Any, **___: Any) -> NoReturn:
    """Where a script makes copies by itself: its backward pass would need the others."""
    numbers = sum(p.numel() for p in module.parameters())
    answers.end(Answer(without_wrap=f"puts {numbers:,} parameters into DistributedDataParallel"))


def _steps(optimizer: Any, *_: Any) -> None:
    """At the first step of any optimizer, while there is a plan to be made."""
    if config.PLAN in os.environ:
        numbers = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        answers.end(Answer(without_wrap=f"trains {numbers:,} parameters with {type(optimizer).__name__}"))


if __name__ == "__main__":
    prepare()
    rankmain.main(sys.argv[1], sys.argv[2], sys.argv[3:])
