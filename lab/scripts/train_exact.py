"""A script that uses the library, for the benchmark `recovery`: model, batch of a rank and pause of
train_ddp.py, with a DataLoader worker.

    train_exact.py FOLDER STEPS [PAUSE [WIDTH]]

Logs when each rank started and made each step, with the loss, and after the last one the SHA-256 of the
parameters. PAUSE: seconds of each step. WIDTH: of the model's four layers.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

folder, steps, pause = Path(sys.argv[1]), int(sys.argv[2]), float([*sys.argv, "0.05"][3])
width = int(sys.argv[4]) if len(sys.argv) > 4 else 512
log = (folder / f"rank-{os.environ.get('RANK', '0')}.jsonl").open("a", buffering=1)


def log_event(kind: str, **fields: Any) -> None:
    log.write(json.dumps({"kind": kind, "pid": os.getpid(), "t": time.time(), **fields}) + "\n")


def main() -> None:
    log_event("start")
    import torch
    from torch import nn

    import ropeteam_trainer
    from ropeteam_trainer.contract.strategy import Batch, Strategy, Sync, SyncType

    alone = Strategy(sync=Sync(SyncType.EXACT), batch=Batch(micro_batches=6))
    job = ropeteam_trainer.init(device="cpu", strategy=None if "RANK" in os.environ else alone)
    torch.manual_seed(0)

    class Model(nn.Sequential):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            """The loss."""
            return super().forward(batch).square().mean()

    model: nn.Module = Model(*[nn.Linear(width, width) for _ in range(4)])
    data = torch.randn(480, width)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = job.wrap(model, optimizer)
    job.restore(model=model, optimizer=optimizer)
    for batch in job.batches(data, global_batch=48, epochs=steps, workers=1):
        optimizer.zero_grad()
        loss = model(batch)
        (loss * job.batch_weight).backward()
        optimizer.step()
        job.report(loss=loss)
        log_event("step", step=job.step, loss=float(loss.detach()).hex())
        if job.step >= steps:
            break
        time.sleep(pause)
    whole = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    log_event("end", digest=hashlib.sha256(whole).hexdigest())


main()
