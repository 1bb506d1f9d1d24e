"""A small model with dropout on the GPU: its losses, to the last bit, depend on every step before.

    train.py STEPS PRECISION [BALLAST_PER_CENT]

PRECISION: fp32, bf16 or fp16 (with a loss scale). A rank alone exchanges by NCCL; several share the first
GPU, by gloo. BALLAST_PER_CENT: of the GPU's memory is taken and kept, so that a second process of the job
finds none until the first has given it back. A file named by $TOO_MUCH makes rank 0 allocate once more than
the GPU has.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ropeteam_trainer

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def main() -> None:
    steps, precision = int(sys.argv[1]), TYPES[sys.argv[2]]
    alone = os.environ["WORLD_SIZE"] == "1"
    dist.init_process_group("cpu:gloo,cuda:nccl" if alone else "gloo")
    job = ropeteam_trainer.init(device="cuda:0")
    total = torch.cuda.mem_get_info()[1]
    ballast = torch.empty(total * int((sys.argv[3:] or ["0"])[0]) // 100, dtype=torch.uint8, device="cuda")
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.2), nn.Linear(256, 64)).cuda()
    wrapped = DistributedDataParallel(model, device_ids=[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=precision is torch.float16)
    done = job.restore(model=model, optimizer=optimizer, scaler=scaler)
    print(f"begins after step {done} beside {len(ballast)} bytes", flush=True)
    too_much = Path(os.environ.get("TOO_MUCH", "/nonexistent"))
    for _ in range(done, steps):
        if job.rank == 0 and too_much.exists():
            too_much.unlink()
            torch.empty(2 * total, dtype=torch.uint8, device="cuda")
        inputs = torch.randn(32, 64, device="cuda")
        with torch.autocast("cuda", precision, enabled=precision is not torch.float32):
            loss = (wrapped(inputs) - inputs.roll(1, 1)).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        time.sleep(0.02)
        job.report(loss=loss, samples=32, total_steps=steps)


main()
