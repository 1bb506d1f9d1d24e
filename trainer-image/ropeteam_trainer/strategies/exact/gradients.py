"""This replica's part of the tree: sums of its micro-batches' gradients, in buckets, added as they come.

Autograd computes the gradients of one leaf at a time. As soon as a bucket has all of its gradients of a leaf,
they are added to the sum whose right sibling that leaf is, or else are a new sum. After the replica's last
leaf its sums are its maximal nodes; most_buffers() says how many there are at once.
A parameter that a micro-batch does not use counts as zero there; one that none uses has no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ropeteam_trainer.contract.strategy import StrategyError
from ropeteam_trainer.partition.cost import filled_buckets
from ropeteam_trainer.partition.reductiontree import Node, leaf, parent_and_sibling
from ropeteam_trainer.strategies.exact.sums import BucketShape


class Flat(NamedTuple):
    """A bucket's values as one tensor, and as one view for each parameter."""

    values: torch.Tensor
    views: list[torch.Tensor]


class Bucket:
    """Gradients of some parameters of one type, in a tree of so many leaves."""

    def __init__(self, parameters: Sequence[nn.Parameter], leaves: int) -> None:
        self.parameters, self._leaves = tuple(parameters), leaves
        self.sums: dict[Node, Flat] = {}
        self.used = [False] * len(parameters)
        """Whether the present leaf has a gradient of each parameter."""
        self.waiting: set[nn.Parameter] = set()
        """Parameters whose gradients of the present leaf are still to come."""
        ends = [0]
        for parameter in parameters:
            ends.append(ends[-1] + local(parameter).numel())
        self._bounds = [*pairwise(ends)]
        first = local(parameters[0])
        self.shape, self._device = BucketShape(ends[-1], first.dtype), first.device
        self._free: list[Flat] = []

    def begin_step(self) -> None:
        """Forget the sums of the last step, whose buffers are used again."""
        self._free += self.sums.values()
        self.sums.clear()

    def begin_leaf(self) -> None:
        self.waiting = {*self.parameters}

    def take(self, number: int) -> None:
        """Add the gradients of leaf `number`, which are taken out of the parameters' grad, along the tree.
        Raises StrategyError for sparse gradients."""
        grads = [self._taken(parameter) for parameter in self.parameters]
        self.used = [grad is not None for grad in grads]
        node, total = leaf(number), None
        while node != Node(0, self._leaves):
            parent, sibling = parent_and_sibling(node, self._leaves)
            if sibling not in self.sums:
                break
            other = self.sums.pop(sibling)
            if total is None:
                _add(other.views, grads)
            else:
                other.values.add_(total.values)
                self._free.append(total)
            node, total = parent, other
        self.sums[node] = total or self._copied(grads)

    def new_flat(self) -> Flat:
        """Buffer with any content."""
        if self._free:
            return self._free.pop()
        values = torch.empty(self.shape.numel, dtype=self.shape.dtype, device=self._device)
        return Flat(values, self._views(values))

    def new_result(self) -> Flat:
        """Buffer on the CPU for the sum of all replicas. Always a new one: the script may keep gradients."""
        return self.result_of(self.shape.new())

    def result_of(self, values: torch.Tensor) -> Flat:
        """The sum of all replicas, which is in this memory."""
        return Flat(values, self._views(values))

    def set_gradients(self, result: Flat, used: Iterator[float]) -> None:
        """Set the parameters' grad to the views of `result`. used: how many micro-batches use each."""
        for parameter, view in zip(self.parameters, result.views, strict=True):
            parameter.grad = _like(parameter, view.to(self._device)) if next(used) else None

    def _copied(self, grads: Sequence[torch.Tensor | None]) -> Flat:
        flat = self.new_flat()
        for view, grad in zip(flat.views, grads, strict=True):
            if grad is None:
                view.zero_()
            else:
                view.copy_(grad)
        return flat

    def _views(self, values: torch.Tensor) -> list[torch.Tensor]:
        pairs = zip(self.parameters, self._bounds, strict=True)
        return [values[begin:end].view(local(p).shape) for p, (begin, end) in pairs]

    def _taken(self, parameter: nn.Parameter) -> torch.Tensor | None:
        grad, parameter.grad = parameter.grad, None
        if grad is None:
            return None
        if grad.is_sparse:
            raise StrategyError(
                "spec.strategy.sync: Exact adds dense gradients only, and the model has an embedding with "
                "sparse=True; leave that out, or use AllReduce"
            )
        if isinstance(grad, DTensor) and isinstance(parameter, DTensor):
            grad = grad.redistribute(placements=parameter.placements)  # it may be a sum that is still partial
        return local(grad)


class GradientTree:
    """All buckets of a model. Order in each step: begin_step(); for each leaf of this replica, best in
    ascending order, begin_leaf(), backward passes, end_leaf(). `complete` is called with each bucket's number
    once its sums of all leaves are there, which is during the last backward pass."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], leaves: int, complete: Callable[[int], None]
    ) -> None:
        self._complete = complete
        self.buckets = [Bucket(part, leaves) for part in _in_buckets(parameters)]
        self.count = len(parameters)
        self._leaf, self._is_last, self._in_leaf = 0, False, False
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self._hook(number))

    def begin_step(self) -> None:
        for bucket in self.buckets:
            bucket.begin_step()

    def begin_leaf(self, number: int, is_last: bool) -> None:
        self._leaf, self._is_last, self._in_leaf = number, is_last, True
        for bucket in self.buckets:
            bucket.begin_leaf()

    def end_leaf(self) -> None:
        """Take what no hook has reported, such as the zeros of unused parameters."""
        for number, bucket in enumerate(self.buckets):
            if bucket.waiting:
                self._take(number)
        self._in_leaf = False

    def used(self) -> Iterator[bool]:
        """Whether each parameter has a gradient in the present leaf, by bucket."""
        for bucket in self.buckets:
            yield from bucket.used

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        bucket = self.buckets[number]

        def accumulated(parameter: Any) -> None:
            if not self._in_leaf:  # a backward pass of the script's own
                return
            if parameter not in bucket.waiting:
                raise StrategyError(
                    "spec.strategy.sync: Exact takes each gradient once in a backward pass, and one came "
                    "twice: checkpoint activations with use_reentrant=False, or use sync AllReduce"
                )
            bucket.waiting.discard(parameter)
            if not bucket.waiting:
                self._take(number)

        return accumulated

    def _take(self, number: int) -> None:
        bucket = self.buckets[number]
        bucket.waiting.clear()
        bucket.take(self._leaf)
        if self._is_last:
            self._complete(number)


def add_along(sums: dict[Node, torch.Tensor], number: int, values: torch.Tensor, leaves: int) -> None:
    """Add the values of leaf `number` to the sums of this replica, along the tree."""
    node = leaf(number)
    while node != Node(0, leaves):
        parent, sibling = parent_and_sibling(node, leaves)
        if sibling not in sums:
            break
        node, values = parent, sums.pop(sibling).add_(values)
    sums[node] = values


def local(values: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor; another tensor itself."""
    return values.to_local() if isinstance(values, DTensor) else values.detach()


def _like(parameter: nn.Parameter, values: torch.Tensor) -> torch.Tensor:
    """This rank's part of a gradient as a gradient of the parameter, which may be sharded."""
    if not isinstance(parameter, DTensor):
        return values
    return DTensor.from_local(
        values,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _in_buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters in the order in which their gradients come, in buckets of one type and device each."""
    kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in parameters:
        kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    for same in kinds.values():
        for bucket in filled_buckets([local(parameter).nbytes for parameter in same]):
            yield [same[index] for index in bucket]


def _add(views: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None]) -> None:
    """Add gradients in place. One that there is not is 0.0, as it would come from another replica: -0.0 + 0.0
    is 0.0."""
    there = [(view, grad) for view, grad in zip(views, grads, strict=True) if grad is not None]
    if there:
        torch._foreach_add_([view for view, _ in there], [grad for _, grad in there])
    for view, grad in zip(views, grads, strict=True):
        if grad is None:
            view.add_(0.0)
