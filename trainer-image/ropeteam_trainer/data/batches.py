"""Loading of the data plan's shares as batches of tensors.

Promise: the order of batches is the plan's, with or without worker processes or prefetch, and nothing here
uses the training's random generators. Limits: the random state of a data set inside worker processes is not
restored. With prefetch the data set runs in a thread of its own: its random draws interleave with those of
the training, so such a run is not reproducible; and it must not use CUDA.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from ropeteam_trainer.data.decisions.plan import DataPlan, Deal, Position, Share
from ropeteam_trainer.data.prefetch import prefetched
from ropeteam_trainer.rank.world import World

Collate = Callable[[list[Any]], Any]
Speeds = Callable[[int], "tuple[float, ...] | None"]
"""Function of the batch number in this call of batches(): the speeds that the parts follow."""
Loaded = Generator[tuple[Position, Share, Any]]
_AHEAD_PER_WORKER = 2
_one_at_a_time = threading.Lock()
"""A data set may have one file and one position in it. Batches are loaded ahead in a thread, and under sync
Exact those of a lost rank in another."""
_AGREED = ("samples", "global_batch", "seed", "epochs")


def equal_speeds(_number: int) -> tuple[float, ...] | None:
    """Speeds for equal parts."""
    return None


def require_equal_arguments(world: World, plan: DataPlan, epochs: int) -> None:
    """Raise ValueError on all ranks if their arguments of batches() differ: samples would be lost, ranks
    would hang. A collective."""
    mine = (plan.samples, plan.global_batch, plan.seed, epochs)
    theirs = world.gather(tuple(_plain(number) for number in mine))
    for rank, numbers in enumerate(theirs):
        for what, other, first in zip(_AGREED, numbers, theirs[0], strict=True):
            if other != first:
                raise ValueError(
                    f"batches() must get the same arguments on all ranks, but {what} = {first} on rank 0 "
                    f"and {other} on rank {rank}. Pass the whole data set on all ranks: batches() splits it."
                )


def _plain(number: Any) -> Any:
    """Number of Python for a number of NumPy's, which ranks do not send."""
    return number.item() if hasattr(number, "item") else number


def shares_from(
    plan: DataPlan,
    start: Position,
    epochs: int,
    rank: int,
    world: int,
    speeds: Speeds = equal_speeds,
    deal: Deal | None = None,
) -> Iterator[tuple[Position, Share]]:
    """This rank's shares of all batches from `start` to the end of `epochs` data epochs, each with the
    position after its batch. `speeds` is called when a share is drawn. deal: this rank's micro-batches under
    sync Exact."""
    at = start
    for number in itertools.count():
        if at.epoch >= epochs:
            return
        after = plan.after(at)
        yield after, plan.dealt_share(at, deal) if deal else plan.share(at, rank, world, speeds(number))
        at = after


def check_loading(workers: int, prefetch: int) -> None:
    """Raise ValueError for a negative prefetch, and for prefetch together with workers."""
    if prefetch < 0 or (prefetch and workers):
        raise ValueError(
            "prefetch must be 0 or more, and 0 with workers, which load ahead anyway: got "
            f"prefetch={prefetch} with workers={workers}. Change the arguments of batches(), or "
            "spec.strategy.batch.prefetch, which overrides its prefetch"
        )


def max_batches_ahead(workers: int, prefetch: int) -> int:
    """Limit on the shares that load_batches() may have drawn for batches that are not taken yet. At most one
    of the two is set (check_loading)."""
    return prefetch + 1 if prefetch else workers * _AHEAD_PER_WORKER


def load_batches(
    dataset: Any,
    planned: Iterator[tuple[Position, Share]],
    workers: int,
    collate: Collate | None,
    prefetch: int = 0,
) -> Loaded:
    """Batches of `planned`, in order, each with its position and share. `dataset`: a tensor, a sequence, or a
    map-style Dataset. With `workers` processes, or `prefetch` batches loaded ahead in a thread; not both.
    Without workers a tensor is indexed with all ids at once. Otherwise samples are read one by one, and go
    through `collate` (None: torch's default_collate). Close the generator to stop loading.
    """
    if workers:
        return _by_processes(dataset, planned, collate or default_collate, workers)
    fetched = ((after, share, load(dataset, share.loaded, collate)) for after, share in planned)
    return prefetched(fetched, prefetch) if prefetch else fetched


def _by_processes(
    dataset: Any, planned: Iterator[tuple[Position, Share]], collate: Collate, workers: int
) -> Loaded:
    """Batches loaded by DataLoader's workers. It returns batches alone, so their shares come from a second
    iterator."""
    planned, again = itertools.tee(planned)
    loader = DataLoader(
        dataset,
        batch_sampler=([*share.loaded] for _, share in again),
        num_workers=workers,
        prefetch_factor=_AHEAD_PER_WORKER,
        collate_fn=collate,
        generator=torch.Generator(),  # else it uses, and so disturbs, the training's generator
    )
    for (after, share), batch in zip(planned, loader, strict=True):
        yield after, share, batch


def load(dataset: torch.Tensor | Sequence[Any], indices: Sequence[int], collate: Collate | None) -> Any:
    """Batch of the samples with these indices, loaded in this thread. collate: None: torch's."""
    if isinstance(dataset, torch.Tensor):
        return dataset[torch.tensor([*indices])]
    with _one_at_a_time:
        return (collate or default_collate)([dataset[index] for index in indices])
