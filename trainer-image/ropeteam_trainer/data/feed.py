"""Data of one rank: its position, its batches, the samples used since the last step.

One Feed per job; batches() may be called again, and continues where the last call ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ropeteam_trainer.data import batches as loading
from ropeteam_trainer.data.balancing import Balancer
from ropeteam_trainer.data.computetimer import ComputeTimer
from ropeteam_trainer.data.decisions.plan import DataPlan, Deal, Leaf, Position, Share
from ropeteam_trainer.data.substitution import TracedBatch
from ropeteam_trainer.rank.world import World


@dataclass(frozen=True)
class BatchRequest:
    """Arguments of the script's call of batches()."""

    dataset: Any
    plan: DataPlan
    epochs: int
    workers: int = 0
    prefetch: int = 0
    deal: Deal | None = None
    """This rank's micro-batches under sync Exact. None: it has a part of the batch."""
    balance: bool = False
    """Parts in proportion to measured speed."""
    model: nn.Module | None = None
    """Model with which the speed is measured."""
    collate: loading.Collate | None = None


class Feed:
    """Data of one rank. Order in each step: a batch of batches(), end_step(), reads of `taken` and `total`,
    reset_taken()."""

    def __init__(self, world: World) -> None:
        self.weight = 1.0
        """Weight of the last batch: see Share.weight."""
        self.leaves: tuple[Leaf, ...] = ()
        """Micro-batches of the last batch under sync Exact; empty without it."""
        self.taken: list[int] = []
        """Ids of this rank's samples since the last step."""
        self.total = 0
        """Number of samples of all ranks since the last step."""
        self.epoch = 0
        """Data epoch of the last batch that was taken."""
        self._world = world
        self._plan: DataPlan | None = None
        self._position = Position()
        self._saved: dict[str, int] | None = None
        self._clock: ComputeTimer | None = None
        self._loaded: loading.Loaded | None = None
        self._request: BatchRequest | None = None
        self._last: tuple[Position, TracedBatch] | None = None
        """The last batch, and its position. None: without sync Exact."""
        self._to_skip = 0
        self._is_checked = False
        """Under sync Exact: whether no call of batches() is compared with those of other ranks any more."""

    def join_begun(self) -> None:
        """Begin batches() without the others, which have begun it already."""
        self._is_checked = True

    def skip(self, count: int) -> None:
        """Skip so many of the next batches: steps that were done without this rank. The position advances
        over them; they are loaded and dropped."""
        self._to_skip += count

    def restore(self, saved: dict[str, int] | None) -> None:
        """Set the position at which the next batches() begins: a result of state(), or None for no change."""
        self._saved = saved

    def state(self) -> dict[str, int] | None:
        """Position for a checkpoint, and for a process that replaces this one: after the batches that are
        still to be skipped. None: batches() was not used, nor in a restored checkpoint."""
        if self._plan is None:
            return self._saved
        at = self._position
        for _ in range(self._to_skip):
            at = self._plan.after(at)
        return {
            "epoch": at.epoch,
            "offset": at.offset,
            "samples": self._plan.samples,
            "seed": self._plan.seed,
        }

    def batches_left(self, request: BatchRequest) -> int:
        """Number of batches that batches() with this request would yield. Raises ValueError if the data are
        not those of the checkpoint."""
        return request.plan.steps_left(
            _start_position(self._saved, request.plan, self._position), request.epochs
        )

    def batches(
        self,
        request: BatchRequest,
        rank: int,
        ways: int,
        loading_now: Callable[[], AbstractContextManager[None]],
        after_body: Callable[[], None] = lambda: None,
    ) -> Iterator[Any]:
        """Yield part `rank` of `ways` of each batch, to the end of the requested epochs. A collective when it
        starts, and with `balance` before some batches. `loading_now`: context in which a batch is awaited.
        `after_body` is called whenever the loop's body has run. Raises ValueError if the data are not those
        of the checkpoint, or arguments differ between ranks."""
        self._plan, self._request = request.plan, request
        self._position = _start_position(self._saved, request.plan, self._position)
        if not self._is_checked:
            loading.require_equal_arguments(self._world, request.plan, request.epochs)
        self._is_checked = request.deal is not None  # a rank that joins the others cannot take part
        balancer = self._balancer(request) if request.balance and ways > 1 else None
        speeds = balancer.speeds if balancer else loading.equal_speeds
        planned = loading.shares_from(
            request.plan, self._position, request.epochs, rank, ways, speeds, request.deal
        )
        self._loaded = loading.load_batches(
            request.dataset, planned, request.workers, request.collate, request.prefetch
        )
        with closing(self._loaded):
            while True:
                if balancer is not None:
                    balancer.begin_batch()
                with loading_now():
                    item = next(self._loaded, None)
                if item is None:
                    return
                after, share, batch = item
                if self._to_skip > 0:
                    self._to_skip -= 1
                    self._position = after
                    continue
                if request.deal is not None:
                    self._last = self._position, TracedBatch(batch)
                self._record_batch(after, share)
                yield batch
                after_body()

    def check_arguments(self, arguments: Any) -> None:
        """Raise UntracedArgument if other_leaves() would, for a call of model() with the last batch."""
        if self._last is not None:
            self._last[1].check(arguments, self._samples)

    @property
    def _samples(self) -> int:
        """Rows of the last batch: a micro-batch without samples has a filler."""
        return sum(max(len(leaf.ids), 1) for leaf in self.leaves)

    def other_leaves(self, numbers: Sequence[int], arguments: Any) -> tuple[tuple[Leaf, ...], Any]:
        """Micro-batches of another rank in the step of the last batch, and the arguments of model() for all
        of their samples. arguments: those of the script's call, with the last batch. Raises
        UntracedArgument."""
        assert self._last is not None
        assert self._request is not None
        assert self._request.deal is not None
        (at, traced), request = self._last, self._request
        share = request.plan.dealt_share(at, replace(self._request.deal, mine=numbers))
        self.taken += share.ids
        batch = loading.load(request.dataset, share.loaded, request.collate)
        return share.leaves, traced.with_samples_of(batch, arguments, self._samples)

    def end_step(self) -> None:
        """Stop the timer of this step, if speeds are measured. Call it once per step, before
        reset_taken()."""
        if self._clock is not None:
            self._clock.stop(len(self.taken))

    def reset_taken(self) -> None:
        """Begin to count the samples of the next step."""
        self.taken, self.total = [], 0

    def close(self) -> None:
        """Stop loading ahead. Hooks of the timer stay on the model."""
        if self._loaded is not None:
            self._loaded.close()
        self._clock = None

    def _record_batch(self, after: Position, share: Share) -> None:
        """Record a batch that the script gets now. `after`: the position after it."""
        self.epoch, self._position = self._position.epoch, after
        self.taken += share.ids
        self.total += share.total
        self.weight, self.leaves = share.weight, share.leaves

    def _balancer(self, request: BatchRequest) -> Balancer:
        """Balancer for one call of batches(). The timer is attached to the model once per job. Raises
        ValueError for a model that cannot be measured."""
        if self._clock is None:
            clock = ComputeTimer(self._world.device)
            clock.attach(request.model)
            self._clock = clock
        ahead = loading.max_batches_ahead(request.workers, request.prefetch)
        return Balancer(self._world, self._clock, request.plan.global_batch, ahead)


def _start_position(saved: dict[str, int] | None, plan: DataPlan, current: Position) -> Position:
    """Position at which batches() begins: the later one of the restored and the current. `saved`:
    Feed.state() in the checkpoint. Raises ValueError if the checkpoint was of other data."""
    if saved is None:
        return current
    for what, now in (("samples", plan.samples), ("seed", plan.seed)):
        if saved[what] != now:
            raise ValueError(
                f"the checkpoint was made with {what} = {saved[what]}, but batches() now has {now}: samples "
                "could not be used exactly once. Use the same data, or spec.resume.policy Never to begin at "
                "step 0."
            )
    return max(current, Position(saved["epoch"], saved["offset"]))
