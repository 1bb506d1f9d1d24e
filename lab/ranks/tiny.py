"""A tiny GPT that every technique can split, and the training that each of them is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
)

from ropeteam_trainer.contract.strategy import TensorParallel

BATCH = 24


@dataclass(frozen=True)
class Size:
    symbols: int = 32
    length: int = 16
    """Letters of a sample."""
    width: int = 32
    heads: int = 4
    blocks: int = 4


SMALL = Size()


class Embed(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.letters = nn.Embedding(size.symbols, size.width)
        self.places = nn.Embedding(size.length, size.width)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        return self.letters(letters) + self.places(torch.arange(letters.shape[1], device=letters.device))


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.mix = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width, bias=False)
        self.of_a_head = width // size.heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm_1(x)
        query, key, value = (
            layer(normed).unflatten(-1, (-1, self.of_a_head)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Head(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size.width)
        self.guess = nn.Linear(size.width, size.symbols, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.guess(self.norm(x))


class Tiny(nn.Sequential):
    def __init__(self, size: Size = SMALL) -> None:
        super().__init__()
        self.blocks = size.blocks
        self.embed = Embed(size)
        for number in range(size.blocks):
            self.add_module(f"block{number}", Block(size))
        self.head = Head(size)

    def tensor_plan(self, settings: TensorParallel) -> Mapping[str, ParallelStyle]:
        plan: dict[str, ParallelStyle] = {}
        for number in range(self.blocks):
            block = f"block{number}"
            plan |= {f"{block}.{name}": ColwiseParallel() for name in ("query", "key", "value", "up")}
            plan |= {f"{block}.{name}": RowwiseParallel() for name in ("mix", "down")}
        plan["head.guess"] = ColwiseParallel(
            output_layouts=Shard(-1) if settings.loss else Replicate(), use_local_output=not settings.loss
        )
        return plan | (_sequence_parallel(settings, self.blocks) if settings.sequence else {})


def _sequence_parallel(settings: TensorParallel, blocks: int) -> dict[str, ParallelStyle]:
    """Between the split layers, each rank has a part of the sequence."""
    plan: dict[str, ParallelStyle] = {
        "embed.letters": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "embed.places": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
        "head.norm": SequenceParallel(),
        "head.guess": ColwiseParallel(
            input_layouts=Shard(1),
            output_layouts=Shard(-1) if settings.loss else Replicate(),
            use_local_output=not settings.loss,
        ),
    }
    for number in range(blocks):
        block = f"block{number}"
        plan |= {f"{block}.norm_1": SequenceParallel(), f"{block}.norm_2": SequenceParallel()}
        plan |= {
            f"{block}.{name}": ColwiseParallel(input_layouts=Shard(1))
            for name in ("query", "key", "value", "up")
        }
        plan |= {f"{block}.{name}": RowwiseParallel(output_layouts=Shard(1)) for name in ("mix", "down")}
    return plan


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def batch(step: int, size: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """Letters, half of which follow from the one before."""
    letters = torch.randint(
        0, SMALL.symbols, (size, SMALL.length + 1), generator=torch.Generator().manual_seed(1000 + step)
    )
    letters[:, 1::2] = (letters[:, 0:-1:2] * 3 + 1) % SMALL.symbols
    return letters[:, :-1].contiguous(), letters[:, 1:].contiguous()


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "SGD without momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def wide() -> nn.Sequential:
    """33 MB of layers, more than one bucket of gradients."""
    return nn.Sequential(*(nn.Linear(768, 768) for _ in range(13)), nn.Linear(768, 768, bias=False))


MODELS: dict[str, Callable[[], nn.Module]] = {"tiny": Tiny, "wide": wide}
LOSSES: dict[str, Callable[..., torch.Tensor]] = {"tiny": loss_of, "wide": F.mse_loss}


def batch_for(model: str, step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return batch(step, size) if model == "tiny" else (torch.ones(size, 768), torch.zeros(size, 768))


def made(optimizer: str, model: str = "tiny") -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    chosen = MODELS[model]()
    return chosen, OPTIMIZERS[optimizer](chosen.parameters())
