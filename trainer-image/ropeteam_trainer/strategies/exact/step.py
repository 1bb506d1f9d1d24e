"""A step under Exact: this replica's micro-batches, and the sum of all replicas' gradients.

The gradient of a micro-batch is a function of the parameters, its samples, and a random seed that is made of
the job's seed, the step and the micro-batch. Nothing in it knows the number of replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ropeteam_trainer.contract.strategy import StrategyError
from ropeteam_trainer.data.decisions.plan import Leaf, mix
from ropeteam_trainer.partition.reductiontree import Node
from ropeteam_trainer.strategies.exact.buffers import RunningStatistics
from ropeteam_trainer.strategies.exact.exchange import BucketShape, Exchange
from ropeteam_trainer.strategies.exact.gradients import Flat, GradientTree, add_along
from ropeteam_trainer.strategies.model.microbatch import ModelArguments, check_loss, slices
from ropeteam_trainer.system.notice import notice

Connect = Callable[[Sequence[BucketShape]], Exchange]
"""Makes the exchange of such buckets with the other replicas."""


class ExactStep:
    """Steps of one model, in `leaves` micro-batches."""

    def __init__(
        self,
        parts: Sequence[nn.Module],
        leaves: int,
        seed: int,
        connect: Connect,
        computes: str,
        group: dist.ProcessGroup | None,
    ) -> None:
        """seed: of all ranks. computes: description of what the bits depend on. group: ranks that share each
        micro-batch; None: this one alone."""
        self._parts, self._computes = parts, computes
        parameters = self._trained()
        self._parameters = parameters
        self._statistics = RunningStatistics({n: m for part in parts for n, m in part.named_modules()})
        self._tree = GradientTree(parameters, leaves, self._send)
        self._leaves, self._seed, self._group = leaves, seed, group
        self._shard = dist.get_rank(group) if group is not None else 0
        self._numbers: dict[Node, torch.Tensor] = {}
        """Sums of what is no gradient: the loss, which parameters are used, changes of statistics."""
        self._results: list[Flat] = []
        self._numbers_count = 1 + self._tree.count + self._statistics.numel
        shapes = [bucket.shape for bucket in self._tree.buckets]
        self._exchange = connect([*shapes, BucketShape(self._numbers_count, torch.float64)])
        cuda = {p.device.index for p in parameters if p.device.type == "cuda"}
        if torch.cuda.is_initialized():  # where parameters are offloaded, dropout is still there
            cuda.add(torch.cuda.current_device())
        self._cuda_devices = sorted(cuda)
        self._done = 0
        """Number of the exchanges that are done. All replicas have the same."""
        self._step, self._calls = -1, 0
        """Step of the last run(), and the number of runs in it."""
        self._is_broken = False
        """Whether a run has begun, but not ended: its gradients may be with other replicas."""

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self._seed, "computes": self._computes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the seed of a checkpoint. Says if the bits may differ from here on."""
        self._seed = state["seed"]
        if state["computes"] != self._computes and (not dist.is_initialized() or dist.get_rank() == 0):
            notice(
                f"the checkpoint was made with {state['computes']}, and this job has {self._computes}: from "
                "here on its losses and weights may differ in their last bits"
            )

    def run(
        self, compute: Callable[..., torch.Tensor], batch: ModelArguments, leaves: Sequence[Leaf], step: int
    ) -> torch.Tensor:
        """Run forward and backward passes over this replica's `leaves` of a step, whose samples are those of
        `batch` in this order, and set each parameter's grad to the gradient of the mean loss over the samples
        of all replicas. Returns that mean loss. Raises TypeError as accumulate_gradients(), StrategyError if
        job.batches() has not dealt the batch, ReplicaLost."""
        if not leaves:
            raise StrategyError(
                "spec.strategy.sync: Exact deals the micro-batches of a step in job.batches(), and this "
                "script loads its data by other means; use job.batches(), or sync AllReduce"
            )
        if self._is_broken:
            raise StrategyError(
                "spec.strategy.sync: under Exact a call of model() cannot be tried again after an error, for "
                "a part of its gradients may be sent; let the error end the script: it is restarted"
            )
        if [id(p) for p in self._trained()] != [id(p) for p in self._parameters]:
            raise StrategyError(
                "spec.strategy.sync: Exact adds the gradients of the parameters that job.wrap() got, and "
                "others require gradients now; set requires_grad before job.wrap()"
            )
        self._is_broken = True
        self._step, self._calls = step, self._calls + 1 if step == self._step else 0
        self._tree.begin_step()
        self._statistics.begin_step()
        self._numbers.clear()
        self._results = [bucket.new_result() for bucket in self._tree.buckets]
        pieces = slices(batch, [max(len(leaf.ids), 1) for leaf in leaves])
        with torch.random.fork_rng(devices=self._cuda_devices):
            for leaf, piece in zip(leaves, pieces, strict=True):
                torch.manual_seed(mix(self._seed, step, self._calls, leaf.number, self._shard))
                loss = self._run_leaf(compute, piece, leaf, leaf is leaves[-1])
        total = self._finish().to(loss)
        self._is_broken = False
        return total

    def _trained(self) -> list[nn.Parameter]:
        return [p for part in self._parts for p in part.parameters() if p.requires_grad]

    def close(self) -> None:
        """End the connections to other replicas."""
        self._exchange.close()

    def _run_leaf(
        self, compute: Callable[..., torch.Tensor], batch: ModelArguments, leaf: Leaf, is_last: bool
    ) -> torch.Tensor:
        """Forward and backward pass over one micro-batch. Returns its loss."""
        self._statistics.begin_leaf()
        self._tree.begin_leaf(leaf.number, is_last)
        loss = compute(*batch.inputs, **batch.named)
        check_loss(loss)
        (loss * leaf.weight).backward()
        with torch.no_grad():
            self._tree.end_leaf()
            first = torch.tensor([float(loss) * leaf.weight], dtype=torch.float64, device="cpu")
            used = torch.tensor([*self._tree.used()], dtype=torch.float64, device="cpu")
            changes = [change * leaf.weight for change in self._statistics.changes()]
            add_along(self._numbers, leaf.number, torch.cat([first, used, *changes]), self._leaves)
        return loss.detach()

    def _send(self, bucket: int) -> None:
        """Add a bucket's sums to the exchange. Called during the last backward pass."""
        nodes = {node: flat.values.cpu() for node, flat in self._tree.buckets[bucket].sums.items()}
        self._exchange.add(self._done, bucket, nodes, self._results[bucket].values)

    @torch.no_grad()
    def _finish(self) -> torch.Tensor:
        """Wait for the sums of all replicas, and set gradients and statistics. Returns the loss."""
        last = len(self._tree.buckets)
        numbers = torch.empty(self._numbers_count, dtype=torch.float64, device="cpu")
        self._exchange.add(self._done, last, self._numbers, numbers)
        self._exchange.wait(self._done, last)
        used = iter(numbers[1 : 1 + self._tree.count].tolist())
        for number, (bucket, result) in enumerate(zip(self._tree.buckets, self._results, strict=True)):
            self._exchange.wait(self._done, number)
            bucket.set_gradients(result, used)
        means = torch.cat([numbers[:1], numbers[1 + self._tree.count :]])
        if self._group is not None:  # the weights of parts are made for the mean over these ranks
            dist.all_reduce(means, group=self._group)
            means /= dist.get_world_size(self._group)
        self._statistics.end_step(means[1:])
        self._done += 1
        return means[0]
