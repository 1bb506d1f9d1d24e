"""Two ranks save while the disk of one of them fails, in each place where it can.

disk_faults.py FOLDER     the result has, for each step, what rank 0 and rank 1 have written
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from ropeteam_trainer.checkpoint import reader
from ropeteam_trainer.checkpoint.decisions.manifest import METADATA, folder
from ropeteam_trainer.checkpoint.objects.stateful import SavedObjects
from ropeteam_trainer.checkpoint.objects.tensorshard import shard_of
from ropeteam_trainer.checkpoint.writer import ShardWriter
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId
from ropeteam_trainer.rank.exchange import CONTRACT
from ropeteam_trainer.rank.world import World

WORLD_ID = WorldId(1, 0, 1)
world, root = World.join("cpu", 60), Path(sys.argv[1])
torch.manual_seed(0)
model = nn.Linear(501, 64)
fully_shard(model)
for name in ("one", "two"):  # ranks may disagree on a buffer
    model.register_buffer(name, torch.tensor(float(world.rank)))
whole = model.weight.full_tensor().detach().clone()  # type: ignore[attr-defined]
files: dict[int, tuple[ShardFile, ...]] = {}
writer = ShardWriter(root, WORLD_ID, world, files.__setitem__)


@contextmanager
def small_files(rank: int) -> Iterator[None]:
    """A disk that is full, but for a few small files: what write() says then is EFBIG."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if world.rank == rank:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def save(step: int) -> None:
    """Train as soon as save() is back: what is saved must be the state before."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    small = {f"rank-{world.rank}.pt": {"rng": 1}} | ({"state.pt": {"step": step}} if world.rank == 0 else {})
    writer.start(step, SavedObjects({"model": model}).state(with_others=True), small)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float(step))
    writer.wait()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), before, strict=True):
            parameter.copy_(value)


save(1)
for failing in (0, 1):
    with small_files(failing):
        save(2 + failing)
place = root / folder(CheckpointRef(4, WORLD_ID))
if world.rank == 0:
    (place / f"{METADATA}.tmp").mkdir(parents=True)  # rank 0 fails when all have written
dist.barrier()
save(4)
if world.rank == 0:
    (root / "step-5").touch()  # no rank can make its folder
dist.barrier()
save(5)
save(6)

ref = CheckpointRef(6, WORLD_ID)
saved = reader.load_metadata(
    root,
    ref,
    [file for of_rank in world.gather(files[6], CONTRACT) for file in of_rank],
)
into = {"model.weight": torch.zeros_like(model.weight)}
into |= {f"model.{name}": torch.ones(()) for name in ("one", "two")}
reader.fill_shards(
    root,
    ref,
    saved,
    {name: shard for name, tensor in into.items() if (shard := shard_of(tensor))},
    lambda: None,
)
same = torch.equal(into["model.weight"].full_tensor(), whole)  # type: ignore[attr-defined]
buffers = [into["model.one"].item(), into["model.two"].item()]
left = sorted(str(path.relative_to(root)) for path in root.glob("step-[2345]/*/*"))
written = {step: [file.name for file in each] for step, each in files.items()}
all_written, all_same = world.gather(written), world.gather(same)
if world.rank == 0:
    print(
        "RESULT",
        json.dumps({"written": all_written, "same": all_same, "left": left, "buffers": buffers}),
        flush=True,
    )
writer.close()
world.leave(10)
