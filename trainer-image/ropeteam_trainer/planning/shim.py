"""Shim for a script's dry run: no real process group, and not one step of training.

shim.py ROOT KIND SCRIPT [arguments]      like the agent's shim of ranks, which runs the script
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])

from ropeteam_trainer.agent.script import rankmain
from ropeteam_trainer.contract import config
from ropeteam_trainer.partition.answer import DryRunResult
from ropeteam_trainer.planning import answers


def prepare() -> None:
    """Patch torch before the script runs. Does nothing without torch: the script fails by itself then."""
    try:
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        from torch.optim.optimizer import register_optimizer_step_pre_hook
    except ImportError:
        return
    from ropeteam_trainer.planning.measure import join

    def fake_init_process_group(*_: Any, **__: Any) -> None:
        join(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))

    dist.init_process_group = fake_init_process_group
    DistributedDataParallel.__init__ = _end_at_ddp  # type: ignore[assignment,method-assign]
    register_optimizer_step_pre_hook(_end_at_first_step)


def _end_at_ddp(_: Any, module: Any, *__: Any, **___: Any) -> NoReturn:
    """End a script that uses DDP by itself: its backward pass would need the other ranks."""
    numbers = sum(p.numel() for p in module.parameters())
    answers.end(DryRunResult(without_wrap=f"puts {numbers:,} parameters into DistributedDataParallel"))


def _end_at_first_step(optimizer: Any, *_: Any) -> None:
    """End the script at the first step of any optimizer, before wrap() has been called."""
    if config.DRY_RUN in os.environ:
        numbers = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        answers.end(
            DryRunResult(without_wrap=f"trains {numbers:,} parameters with {type(optimizer).__name__}")
        )


if __name__ == "__main__":
    prepare()
    rankmain.main(sys.argv[1], sys.argv[2], sys.argv[3:])
