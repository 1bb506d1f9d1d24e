"""Ways to form worlds, wrong and right ones: `python worlds.py WAY [SECONDS]`, one function per way.

own.toml says under which launcher each runs and what is right for it. Each proves its group by a sum over
it. Limits: all pods share one loopback, so a port of a pod is derived from its slot.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore, HashStore  # type: ignore[attr-defined]
from torch.multiprocessing.spawn import spawn as spawn_ranks

SLOT = int(os.environ.get("NODE_RANK") or os.environ.get("GROUP_RANK") or 0)
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
LOCAL, PROCESSES = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
PORT = 31200
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0


def train(seconds: float = SECONDS, group: dist.ProcessGroup | None = None) -> None:
    """Sums over the group until rank 0 of it has done so for long enough."""
    deadline, goes_on = time.monotonic() + seconds, True
    while goes_on:
        count = torch.ones(1)
        dist.all_reduce(count, group=group)
        assert count.item() == dist.get_world_size(group), f"the sum over the group is {count.item()}"
        late = torch.tensor(float(time.monotonic() > deadline))
        dist.all_reduce(late, op=dist.ReduceOp.MAX, group=group)
        goes_on = not late.item()
        time.sleep(0.05)
    print("trained in a world of", dist.get_world_size(group), flush=True)


def phase(seconds: float = SECONDS, **arguments) -> None:
    """One default process group from its beginning to its end."""
    dist.init_process_group("gloo", **arguments)
    train(seconds)
    dist.destroy_process_group()


def at(port: int, rank: int, size: int) -> dict[str, Any]:
    return {"init_method": f"tcp://127.0.0.1:{port}", "rank": rank, "world_size": size}


def alone() -> dict[str, Any]:
    return {"store": HashStore(), "rank": 0, "world_size": 1}


def other(way: str, *argv: object, **variables: object) -> subprocess.Popen[bytes]:
    """This file once more, as a process of this rank's own."""
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    return subprocess.Popen([sys.executable, __file__, way, *map(str, argv)], env=environment)


# ---- wrong, unless noted otherwise


def env() -> None:
    """Right, where the launcher is."""
    phase()


def tcp() -> None:
    phase(**at(PORT + SLOT, 0, 1))


def file() -> None:
    place = Path(tempfile.mkdtemp()) / "store"
    phase(store=FileStore(str(place), 1), rank=0, world_size=1)


def hashed() -> None:
    phase(**alone())


def explicit() -> None:
    phase(rank=0, world_size=1)


def _spawned(local: int, size: int, first: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    os.environ["RANK"] = str(first + local)
    phase()


def spawn(size: int = 1) -> None:
    spawn_ranks(_spawned, (size, 0, PORT + SLOT), nprocs=size)


def spawn_two() -> None:
    spawn(2)


def halves() -> None:
    """Each pod a group of its ranks."""
    phase(**at(PORT + SLOT, LOCAL, PROCESSES))


def all_but_one() -> None:
    if RANK == WORLD - 1:
        time.sleep(SECONDS)
    else:
        phase(**at(PORT, RANK, WORLD - 1))


def one_leaves() -> None:
    """Rank 0 ends, rank 1 continues: each alone."""
    phase(SECONDS if RANK == 0 else 100 * SECONDS, **alone())


def torchrun_of_its_own() -> None:
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PET_", "TORCHELASTIC_"))
    }
    command = [
        "torchrun",
        "--nproc-per-node=1",
        f"--master-port={PORT + SLOT}",
        __file__,
        "env",
        str(SECONDS),
    ]
    subprocess.run(command, env=clean, check=True)


def no_group() -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        torch.ones(64, 64) @ torch.ones(64, 64)
        time.sleep(0.05)


# ---- right: a group of all ranks forms, whatever forms beside it


def accelerated() -> None:
    from accelerate import Accelerator

    Accelerator()
    train()


def preflight() -> None:
    phase(0, **alone())
    phase()


def preflight_pairs() -> None:
    phase(1, **at(PORT + RANK // 2, RANK % 2, 2))
    phase()


def preflight_process() -> None:
    assert other("hashed", 0).wait() == 0
    phase()


def evaluator() -> None:
    beside = other("hashed", SECONDS)
    phase()
    assert beside.wait() == 0


def server(size: int = 2) -> None:
    """An inference server of `size` processes in each pod, which outlives nobody."""
    mine = [] if LOCAL else [other("member", SECONDS, RANK=rank, WORLD_SIZE=size) for rank in range(size)]
    phase()
    assert all(each.wait() == 0 for each in mine)


def member() -> None:
    phase(**at(PORT + 10 + SLOT, RANK, WORLD))


def server_first() -> None:
    """A server is up, with as many processes as the job has ranks, before the job's own group forms."""
    mine = (
        [] if LOCAL else [other("member", SECONDS + 5, RANK=rank, WORLD_SIZE=WORLD) for rank in range(WORLD)]
    )
    time.sleep(SECONDS)
    phase()
    assert all(each.wait() == 0 for each in mine)


def phases() -> None:
    phase(1)
    phase()


def phases_elsewhere() -> None:
    phase(1)
    phase(**at(PORT + 20, RANK, WORLD))


def smaller_second() -> None:
    phase()
    phase(**at(PORT + 30 + SLOT, 0, 1))


def fewer_go_on() -> None:
    """As an elastic program does: rank 0 continues without the last one, which is done."""
    phase(1)
    if RANK < WORLD - 1:
        phase(**at(PORT + 40, RANK, WORLD - 1))


def subgroups() -> None:
    dist.init_process_group("gloo")
    own = [dist.new_group([rank]) for rank in range(WORLD)]
    train(1, own[RANK])
    train()
    dist.destroy_process_group()


def mesh() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    found = init_device_mesh("cpu", (WORLD, 1), mesh_dim_names=("replicate", "shard"))
    train(1, found["shard"].get_group())
    train()
    dist.destroy_process_group()


def workers() -> None:
    from torch.utils.data import DataLoader, TensorDataset

    dist.init_process_group("gloo")
    for _ in DataLoader(TensorDataset(torch.ones(64, 1)), num_workers=2, multiprocessing_context="spawn"):
        pass
    train()
    dist.destroy_process_group()


def rpc() -> None:
    from torch.distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{PORT + 50}")
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=WORLD, rpc_backend_options=options)
    phase()
    assert rpc.rpc_sync(f"worker{(RANK + 1) % WORLD}", max, args=(1, 2)) == 2
    rpc.shutdown()


def side_channel() -> None:
    FileStore(str(Path(tempfile.mkdtemp()) / "store"), 1).set("mine", "1")
    phase()


def forkserver() -> None:
    with multiprocessing.get_context("forkserver").Pool(2) as pool:
        phase()
        assert pool.map(abs, [-1, -2]) == [1, 2]


def imports_only() -> None:
    assert subprocess.run([sys.executable, "-c", "import torch.distributed"]).returncode == 0
    phase()


def leaves_early() -> None:
    """The last rank is done at once; the others have no collective any more."""
    phase(1)
    if RANK < WORLD - 1:
        time.sleep(SECONDS)


def spawn_all() -> None:
    """Once per pod, two processes each, one world of all."""
    port = int(os.environ["MASTER_PORT"])
    place = functools.partial(_placed, os.environ["MASTER_ADDR"], port)
    spawn_ranks(place, (2 * WORLD, 2 * RANK), nprocs=2)


def _placed(host: str, port: int, local: int, size: int, first: int) -> None:
    phase(init_method=f"tcp://{host}:{port}", rank=first + local, world_size=size)


def library() -> None:
    import ropeteam_trainer

    job = ropeteam_trainer.init()
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    for step in range(5):
        train(SECONDS / 5)
        job.report(loss=1.0 / (1 + step), samples=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
