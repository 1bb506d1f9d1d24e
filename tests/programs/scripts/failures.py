"""Ways to fail, once a world has formed: `python failures.py RANK WAY [LAUNCHER]`; see own.toml.

RANK fails (`all`: each, the last at once and the others a moment later), the others wait for it in a
collective, as training does. With LAUNCHER this process starts the one that fails, by that means.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn as spawn_ranks


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise KeyError("no words")


def value() -> None:
    raise ValueError("the learning rate is a lie")


def nested() -> None:
    import innermost  # type: ignore[import-not-found]

    innermost.load("shard-7")


def lines() -> None:
    raise RuntimeError("the first of three lines\n  the second\nthe third")


def unspeakable() -> None:
    raise Unspeakable


def late() -> None:
    """Every rank fails, this one last."""
    time.sleep(0 if dist.get_rank() == dist.get_world_size() - 1 else 4)
    raise ValueError(f"no sample for rank {dist.get_rank()}")


def syntax() -> None:
    import broken  # type: ignore[import-not-found]  # noqa: F401


def missing() -> None:
    import not_installed_anywhere  # type: ignore[import-not-found]  # noqa: F401


def asserts() -> None:
    assert torch.zeros(1).item() == 1, "the loss is not one"


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segv() -> None:
    ctypes.string_at(0)


def abort() -> None:
    os.abort()


def exit3() -> None:
    sys.exit(3)


def exit4() -> None:
    os._exit(4)


def leave() -> None:
    """With 0, as if all were done."""
    sys.exit(0)


def main(victim: str, way: str) -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    if victim in ("all", str(dist.get_rank())):
        globals()[way]()
    while True:
        dist.all_reduce(torch.ones(1))
        time.sleep(0.05)


# ---- by which means the one that fails is started


def _member(local: int, victim: str, way: str, size: int) -> None:
    os.environ |= {"RANK": str(local), "WORLD_SIZE": str(size)}
    main(victim, way)


def spawn(victim: str, way: str) -> None:
    """All ranks of a job of one pod."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "31301"}
    spawn_ranks(_member, (victim, way, 2), nprocs=2)


def process(victim: str, way: str) -> None:
    child = multiprocessing.Process(target=main, args=(victim, way))
    child.start()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"the trainer ended with {child.exitcode}")


def chain(victim: str, way: str) -> None:
    subprocess.run([sys.executable, __file__, victim, way], check=True)


def chain_twice(victim: str, way: str) -> None:
    subprocess.run([sys.executable, __file__, victim, way, "chain"], check=True)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        globals()[sys.argv[3]](*sys.argv[1:3])
    else:
        main(*sys.argv[1:3])
