"""Steps with an all-reduce in each; after the third, rank 1 hangs in the loading of its data.

hangs.py sleeps|in-c        in-c: on a lock, below the interpreter and with its lock held
"""

import ctypes
import sys
import time

import torch
import torch.distributed as dist

import ropeteam_trainer


def load(how: str, hangs: bool) -> torch.Tensor:
    if hangs and how == "sleeps":
        time.sleep(1000)
    if hangs:
        libc, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        for _ in range(2):
            libc.pthread_mutex_lock(lock)  # twice
    return torch.ones(4)


def main() -> None:
    job = ropeteam_trainer.init()  # which forms the process group
    for step in range(1, 1000):
        batch = load(sys.argv[1], hangs=dist.get_rank() == 1 and step == 4)
        dist.all_reduce(batch)
        job.report(total_steps=1000)


main()
