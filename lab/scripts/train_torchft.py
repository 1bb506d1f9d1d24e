"""train_exact.py with torchft in place of the library, for the benchmark `recovery`: a replica of one rank.

    train_torchft.py FOLDER

RANK: number of the replica. TORCHFT_LIGHTHOUSE: address. There is no DataLoader and no checkpoint: a
replica that joins gets the state of another.
"""

import importlib
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
log = (folder / f"rank-{rank}.jsonl").open("a", buffering=1)


def log_event(kind: str, step: int = 0) -> None:
    log.write(json.dumps({"kind": kind, "step": step, "pid": os.getpid(), "t": time.time()}) + "\n")


def main() -> None:
    log_event("start")
    import torch
    from torch import nn
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    torchft: Any = importlib.import_module("torchft")  # not one of our dependencies
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=10)), min_replica_size=1,
        load_state_dict=load, rank=0, world_size=1, replica_id=f"replica_{rank}",
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        store_addr="localhost", store_port=store.port, timeout=timedelta(seconds=10),
        quorum_timeout=timedelta(seconds=30),
    )  # fmt: skip
    wrapped, steps = torchft.DistributedDataParallel(manager, model), torchft.Optimizer(manager, optimizer)
    while manager.current_step() < 10_000:
        before = manager.current_step()
        steps.zero_grad()
        wrapped(torch.randn(16, 512)).square().mean().backward()
        steps.step()
        if manager.current_step() > before:
            log_event("step", manager.current_step())
        time.sleep(0.05)


main()
