"""A small character-level GPT, trained on English documentation.

    python -m ropeteam_trainer.recipes.char_gpt [--text FILE] [--epochs N] [--global-batch N]

The text is `pydoc_data.topics` of the standard library (465,048 characters), or any text file. It is split
into fixed windows; the first 90 % of the text are for training, the last 10 % for validation. About 116,000
parameters; the validation loss falls from 4.6 (guessing) to below 1.65, in about a minute on two cores.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  # the name everybody knows
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

import ropeteam_trainer
from ropeteam_trainer.contract.strategy import StrategyError, TensorSplit
from ropeteam_trainer.recipes import common

CONTEXT, WIDTH, HEADS, LAYERS = 64, 64, 4, 2


class Embed(nn.Module):
    """Token and position embeddings."""

    def __init__(self, symbols: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(symbols, WIDTH), nn.Embedding(CONTEXT, WIDTH)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """letters: (batch, context); returns (batch, context, width)."""
        places = torch.arange(letters.shape[1], device=letters.device)
        embedded: torch.Tensor = self.letters(letters) + self.places(places)
        return embedded


class Block(nn.Module):
    """Transformer block: attention and an MLP, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, context, width); returns the same shape. A rank may have only some of the heads."""
        normed = self.norm_1(x)
        query, key, value = (
            layer(normed).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(attended.transpose(1, 2).flatten(2))
        down: torch.Tensor = self.down(F.gelu(self.up(self.norm_2(x))))
        return x + down


class Head(nn.Module):
    """Norm and projection to a score for each symbol."""

    def __init__(self, symbols: int) -> None:
        super().__init__()
        self.norm, self.guess = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, symbols, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, context, width); returns (batch, context, symbols): scores of the next symbol."""
        scores: torch.Tensor = self.guess(self.norm(x))
        return scores


class CharGPT(nn.Sequential):
    """GPT as a sequence of layers, so that it can be split into the stages of a pipeline."""

    def __init__(self, symbols: int) -> None:
        blocks = {f"block_{number}": Block() for number in range(LAYERS)}
        super().__init__(OrderedDict(embed=Embed(symbols), **blocks, head=Head(symbols)))

    def tensor_plan(self, split: TensorSplit) -> dict[str, ParallelStyle]:
        """Style of each layer: attention heads and hidden units are split by columns, the layers that combine
        them by rows. Raises StrategyError if the heads cannot be split."""
        if HEADS % split.ranks:
            raise StrategyError(
                f"spec.strategy.parallelism.tensor: {HEADS} heads cannot be shared equally by {split.ranks} "
                "ranks; use 2 or 4"
            )
        columns = {f"block_*.{name}": ColwiseParallel() for name in ("query", "key", "value", "up")}
        rows = {f"block_*.{name}": RowwiseParallel() for name in ("mix", "down")}
        return {**columns, **rows}


def loss_of(scores: torch.Tensor, letters: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy per letter. scores: (batch, context, symbols); letters: (batch, context)."""
    return F.cross_entropy(scores.flatten(0, 1), letters.flatten())


def read_text(path: Path | None) -> str:
    """Text of the file; None: Python's own documentation. Ends the program with exit code 2 if the file
    cannot be read."""
    if path is None:
        from pydoc_data.topics import topics

        return "\n".join(topics[name] for name in sorted(topics))
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        common.exit_with_error(f"--text {path}: cannot be read as UTF-8 text ({error})")


def windows_of(text: str) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Training and validation windows (each: count x (context + 1) letters, as numbers), and the number of
    symbols. Ends the program with exit code 2 if the text is too short."""
    symbols = {letter: number for number, letter in enumerate(sorted(set(text)))}
    letters = torch.tensor([symbols[letter] for letter in text])
    boundary = len(letters) * 9 // 10
    parts = letters[:boundary], letters[boundary:]
    if len(parts[1]) <= CONTEXT:
        common.exit_with_error(
            f"--text: {len(text)} characters are too few, at least {10 * (CONTEXT + 1)} are needed"
        )
    train, validation = (part.unfold(0, CONTEXT + 1, CONTEXT) for part in parts)
    return train, validation, len(symbols)


def main() -> None:
    """Train, evaluate, and print the results on rank 0."""
    parser = argparse.ArgumentParser(description="Train a small character model.")
    parser.add_argument("--text", type=Path, help="a UTF-8 text file; default: Python's own documentation")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--global-batch", type=int, default=36)
    parser.add_argument("--learning-rate", type=float, default=6e-3)
    options = parser.parse_args()
    data, validation, symbols = windows_of(read_text(options.text))

    torch.manual_seed(0)  # the same first weights on all ranks
    job = ropeteam_trainer.init(device="cpu")
    model: nn.Module = CharGPT(symbols)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, betas=(0.9, 0.98), fused=True
    )
    model, optimizer = job.wrap(model, optimizer, loss=loss_of)
    size = job.global_batch or options.global_batch
    total = -(-len(data) // size) * options.epochs
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: common.warmup_then_cosine(n, 40, total)
    )

    job.restore(model=model, optimizer=optimizer, scheduler=scheduler)
    for batch in job.batches(data, global_batch=size, epochs=options.epochs):
        loss = model(batch[:, :-1], batch[:, 1:])
        optimizer.zero_grad()
        (loss * job.batch_weight).backward()
        optimizer.step()
        scheduler.step()
        job.report(loss=loss, total_steps=total)
        if job.step % 50 == 0 or job.step == 1:
            common.print_on_rank_0(job, f"step {job.step}/{total} loss {loss.item():.3f}")

    with job.phase("eval"), torch.no_grad():
        parts = common.own_batches(job, validation, 64)
        own_sum = sum(model(part[:, :-1], part[:, 1:]).item() * len(part) for part in parts)
        loss_sum, count = common.summed_over_ranks(own_sum, sum(len(part) for part in parts))
    figures = {"validation_loss": round(loss_sum / count, 4), "windows": int(count), "steps": job.step}
    common.print_result(job, **figures, weights=common.digest(model))


if __name__ == "__main__":
    main()
