"""A small GPT learns to write English documentation, letter by letter.

    python -m ropeteam_trainer.recipes.char_gpt [--text FILE] [--epochs N] [--global-batch N]

The text is `pydoc_data.topics` of the standard library (465,048 characters), or any text file. It is cut into
fixed windows; the first 90 % of the text train, the last 10 % validate. About 116,000 parameters; the
validation loss falls from 4.6 (guessing) to below 1.65. On two cores that takes about a minute.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  # the name everybody knows
from torch import nn

import ropeteam_trainer
from ropeteam_trainer.recipes import common

CONTEXT, WIDTH, HEADS, LAYERS = 64, 64, 4, 2


class Block(nn.Module):
    """Attention, then two layers of thinking, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, context, width); the same shape comes out."""
        batch, length, _ = x.shape
        heads = self.query_key_value(self.norm_1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        down: torch.Tensor = self.down(F.gelu(self.up(self.norm_2(x))))
        return x + down


class CharGPT(nn.Module):
    def __init__(self, symbols: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(symbols, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, symbols, bias=False)

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        """windows: (batch, context + 1) letters; returns the loss of guessing each from those before it."""
        x = self.letters(windows[:, :-1]) + self.places.weight
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def read_text(path: Path | None) -> str:
    """Ends the program with exit code 2 if `path` cannot be read."""
    if path is None:
        from pydoc_data.topics import topics

        return "\n".join(topics[name] for name in sorted(topics))
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        common.stop(f"--text {path}: cannot be read as text ({error})")


def windows_of(text: str) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Training and validation windows (each: count x (context + 1) letters), and the number of symbols."""
    symbols = {letter: number for number, letter in enumerate(sorted(set(text)))}
    letters = torch.tensor([symbols[letter] for letter in text])
    cut = len(letters) * 9 // 10
    parts = letters[:cut], letters[cut:]
    if len(parts[1]) <= CONTEXT:
        common.stop(
            f"the text is too short: {len(text)} characters, at least {10 * (CONTEXT + 1)} are needed"
        )
    train, validation = (part.unfold(0, CONTEXT + 1, CONTEXT) for part in parts)
    return train, validation, len(symbols)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small character model.")
    parser.add_argument("--text", type=Path, help="a UTF-8 text file; default: Python's own documentation")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--global-batch", type=int, default=36)
    parser.add_argument("--learning-rate", type=float, default=6e-3)
    options = parser.parse_args()
    data, validation, symbols = windows_of(read_text(options.text))

    torch.manual_seed(0)  # the same first weights on all ranks
    job = ropeteam_trainer.init(device="cpu")
    model = common.data_parallel(CharGPT(symbols), job, data[:2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, betas=(0.9, 0.98), fused=True)
    total = -(-len(data) // options.global_batch) * options.epochs
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: common.warmup_then_cosine(n, 40, total)
    )

    job.restore(model=model, optimizer=optimizer, scheduler=scheduler)
    for batch in job.batches(data, global_batch=options.global_batch, epochs=options.epochs):
        loss = model(batch)
        optimizer.zero_grad()
        (loss * job.batch_weight).backward()
        optimizer.step()
        scheduler.step()
        job.report(loss=loss, total_steps=total)
        if job.step % 50 == 0 or job.step == 1:
            common.say(job, f"step {job.step}/{total} loss {loss.item():.3f}")

    with job.phase("eval"), torch.no_grad():
        parts = [part for part in torch.split(common.my_part(job, validation), 64) if len(part)]
        own_sum = sum(model(part).item() * len(part) for part in parts)
        loss_sum, count = common.summed(job, own_sum, sum(len(part) for part in parts))
    common.result(job, validation_loss=round(loss_sum / count, 4), windows=int(count), steps=job.step)


if __name__ == "__main__":
    main()
