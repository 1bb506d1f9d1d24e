"""Turn shares of the data plan into batches of tensors.

Promise: the order of batches is the plan's, with or without worker processes, and nothing here draws from the
training's random generators. Limit: what a data set draws at random inside worker processes is not restored.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from ropeteam_trainer.data.plan import DataPlan, Position, Share

Collate = Callable[[list[Any]], Any]


def shares(
    plan: DataPlan, start: Position, epochs: int, rank: int, world: int
) -> Iterator[tuple[Position, Share]]:
    """This rank's shares from `start` to the end of `epochs` data epochs, each with the position after it."""
    at = start
    while at.epoch < epochs:
        after = plan.after(at)
        yield after, plan.share(at, rank, world)
        at = after


def load(
    dataset: Any, planned: Iterator[tuple[Position, Share]], workers: int, collate: Collate | None
) -> Iterator[tuple[Position, Share, Any]]:
    """The batches of `planned`. `dataset` is a tensor, a sequence, or a map-style Dataset.

    Tensors are indexed at once; other samples go through `collate` (default: torch's default_collate).
    """
    collate = collate or default_collate
    if workers == 0:
        for after, share in planned:
            yield after, share, _fetch(dataset, _indices(share), collate)
        return
    planned, again = itertools.tee(planned)
    loader = DataLoader(
        dataset,
        batch_sampler=(_indices(share) for _, share in again),
        num_workers=workers,
        collate_fn=collate,
        generator=torch.Generator(),  # else it draws from, and so disturbs, the training's generator
    )
    for (after, share), batch in zip(planned, loader, strict=True):
        yield after, share, batch


def _indices(share: Share) -> list[int]:
    return list(share.ids) or [share.filler]


def _fetch(dataset: torch.Tensor | Sequence[Any], indices: list[int], collate: Collate) -> Any:
    if isinstance(dataset, torch.Tensor):
        return dataset[torch.tensor(indices)]
    return collate([dataset[index] for index in indices])
