"""A script for the benchmark `half`: a step is a fixed number of micro-batches, on any number of ranks.

    train_half.py FOLDER STEPS MICRO_BATCHES PAUSE [INTERVAL]

A micro-batch takes PAUSE seconds longer than it computes, as if each rank had a processor of its own. Without
INTERVAL the library trains under sync Exact (alone: all micro-batches); with it DistributedDataParallel,
whose ranks share the micro-batches, save every INTERVAL steps and resume from that. Logs when each rank
started and made each step; under Exact also the loss, and in `computed-RANK.jsonl` how many micro-batches it
computed in the step, with those of lost ranks.
"""

import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

FOLDER, STEPS, LEAVES, PAUSE = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
RANK, SAMPLES = int(os.environ.get("RANK", "0")), 8
log = (FOLDER / f"rank-{RANK}.jsonl").open("a", buffering=1)


def log_event(kind: str, **fields: Any) -> None:
    log.write(json.dumps({"kind": kind, "pid": os.getpid(), "t": time.time(), **fields}) + "\n")


log_event("start")  # before torch is imported by this script
import torch  # noqa: E402
from torch import nn  # noqa: E402


class Model(nn.Sequential):
    computed = 0
    """Micro-batches of this process."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The loss."""
        time.sleep(PAUSE)
        Model.computed += 1
        for layer in self:
            batch = layer(batch)
        return batch.square().mean()


def made() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    """Model, optimizer, and the samples of ten steps."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model(*[nn.Linear(256, 256) for _ in range(4)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return model, optimizer, torch.randn(10 * LEAVES * SAMPLES, 256)


def exact() -> None:
    import ropeteam_trainer
    from ropeteam_trainer.contract.strategy import Batch, Strategy, Sync, SyncType

    alone = Strategy(sync=Sync(SyncType.EXACT), batch=Batch(micro_batches=LEAVES))
    model, optimizer, data = made()
    job = ropeteam_trainer.init(device="cpu", strategy=None if "RANK" in os.environ else alone)
    model, optimizer = job.wrap(model, optimizer)
    job.restore(model=model, optimizer=optimizer)
    computed = (FOLDER / f"computed-{RANK}.jsonl").open("a", buffering=1)
    for batch in job.batches(data, global_batch=LEAVES * SAMPLES, epochs=STEPS):
        before = Model.computed
        optimizer.zero_grad()
        loss = model(batch)
        (loss * job.batch_weight).backward()
        optimizer.step()
        job.report(loss=loss)
        computed.write(json.dumps({"step": job.step, "computed": Model.computed - before}) + "\n")
        log_event("step", step=job.step, loss=float(loss.detach()).hex())
        if job.step >= STEPS:
            break
    log_event("end")


def by_hand(interval: int) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    plain, optimizer, data = made()
    model, world, step = DistributedDataParallel(plain), dist.get_world_size(), 0
    saved = FOLDER / "checkpoint.pt"
    if saved.exists():
        state = torch.load(saved)
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    mine = range(LEAVES * RANK // world, LEAVES * (RANK + 1) // world)
    while step < STEPS:
        optimizer.zero_grad()
        for number in mine:
            first = (step * LEAVES + number) * SAMPLES % len(data)
            with nullcontext() if number == mine[-1] else model.no_sync():
                (model(data[first : first + SAMPLES]) * world / LEAVES).backward()
        optimizer.step()
        step += 1
        if step % interval == 0:
            if RANK == 0:
                new = saved.with_suffix(".new")
                state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, new)
                new.rename(saved)
            dist.barrier()
        log_event("step", step=step)
    log_event("end")


if len(sys.argv) > 5:
    by_hand(int(sys.argv[5]))
else:
    exact()
