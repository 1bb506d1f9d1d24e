"""Train under Ropeteam: progress, checkpoints and exactly-once data for a script that keeps its own loop.

    job = ropeteam_trainer.init()
    job.restore(model=model, optimizer=optimizer)
    for batch in job.batches(dataset, global_batch=96):
        ...
        job.report(loss=loss, samples=len(batch))

Everything works without the operator too: `python x.py` and `torchrun x.py` run the same script.
The import is light (standard library only); torch is imported by `init()`.

    job.py           the public API; joining.py: init()
    roles/           differences between ranks that train, workers of parameter servers, and servers
    data/            exactly-once data
    checkpoint/      checkpoints of any layout
    strategies/      techniques of distributed training
    rank/            the process group, and the channels to the agent
    huggingface.py   progress of transformers' Trainer
    recipes/         trainings on real data
    planning/        dry runs of a script for `ropeteam plan`
    agent/           the first process of a worker pod
    coordinator/     which processes form the world
    launchers/       parsing of a job's command
    partition/       how a strategy splits a world, and what that costs
    contract/        interfaces between operator, coordinator, agent and rank
    system/          additions to the standard library
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["Job", "init"]

if TYPE_CHECKING:
    from ropeteam_trainer.job import Job
    from ropeteam_trainer.joining import init


def __getattr__(name: str) -> Any:
    if name in __all__:
        from ropeteam_trainer import job, joining

        return job.Job if name == "Job" else joining.init
    raise AttributeError(f"module 'ropeteam_trainer' has no attribute {name!r}")
