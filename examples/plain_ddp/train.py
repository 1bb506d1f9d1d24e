"""An ordinary DDP training: it was written for torchrun and knows nothing of Ropeteam.

    torchrun --nproc-per-node 2 train.py CHECKPOINT_FILE [--steps N]

A network learns which of eight centres a point is nearest to. Every 10 steps rank 0 saves to CHECKPOINT_FILE;
a run that finds the file resumes from it. The last line is `accuracy 0.95...`.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def points(count: int, seed: int) -> TensorDataset:
    centres = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    x = 1.5 * torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, torch.cdist(x, centres).argmin(dim=1))


def save(path: Path, **state: object) -> None:
    fresh = path.with_suffix(".tmp")
    torch.save(state, fresh)
    fresh.rename(path)  # at no moment is there half a file


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = 0
    if options.checkpoint.exists():
        state = torch.load(options.checkpoint)
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    print(f"rank {rank} of {dist.get_world_size()} begins after step {step}, pid {os.getpid()}", flush=True)

    data = points(4096, seed=1)
    sampler = DistributedSampler(data, seed=step)
    loader = DataLoader(data, batch_size=64, sampler=sampler, num_workers=2, persistent_workers=True)
    while step < options.steps:
        sampler.set_epoch(step)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                if rank == 0:
                    state = {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    save(options.checkpoint, **state)
                    print(f"step {step} loss {loss.item():.3f}", flush=True)
                dist.barrier()
            if step == options.steps:
                break

    x, y = points(1024, seed=2).tensors
    with torch.no_grad():
        accuracy = (network(x).argmax(dim=1) == y).float().mean().item()
    if rank == 0:
        print(f"accuracy {accuracy:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
