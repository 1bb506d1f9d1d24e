"""Shim for a script's dry run: it has no real process group, and takes not one step of training.

shim.py ROOT KIND SCRIPT [arguments]      arguments of agent/script/rankmain.py, which runs the script
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


def patch_torch() -> None:
    """Patch torch before the script runs: process groups do not communicate, and DDP and an optimizer's first
    step end the script. Does nothing without torch: the script fails by itself then."""
    try:
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        from torch.optim.optimizer import register_optimizer_step_pre_hook
    except ImportError:
        return
    from ropeteam_trainer.planning.measure import join_fake_world

    def fake_init_process_group(*_: Any, **__: Any) -> None:
        join_fake_world(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))

    dist.init_process_group = fake_init_process_group
    DistributedDataParallel.__init__ = _end_at_ddp  # type: ignore[assignment,method-assign]
    register_optimizer_step_pre_hook(_end_at_first_step)


def _end_at_ddp(_: Any, module: Any, *__: Any, **___: Any) -> NoReturn:
    """In the place of DDP's constructor: end a script that does not use job.wrap(). Its backward pass would
    need the other ranks."""
    numbers = sum(p.numel() for p in module.parameters())
    answers.write_result_and_exit(
        DryRunResult(without_wrap=f"puts {numbers:,} parameters into DistributedDataParallel")
    )


def _end_at_first_step(optimizer: Any, *_: Any) -> None:
    """Hook before each step of any optimizer: end the script, unless job.wrap() was called, which deletes
    DRY_RUN and may step to measure."""
    if config.DRY_RUN in os.environ:
        numbers = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        answers.write_result_and_exit(
            DryRunResult(without_wrap=f"trains {numbers:,} parameters with {type(optimizer).__name__}")
        )


if __name__ == "__main__":
    patch_torch()
    rankmain.main(sys.argv[1], sys.argv[2], sys.argv[3:])
