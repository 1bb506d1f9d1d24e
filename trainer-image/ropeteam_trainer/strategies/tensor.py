"""Tensor parallelism: each rank computes with a shard of every layer (horizontal split).

The model defines how each layer is split: a plan maps names of layers (`blocks.*.up`) to torch's styles,
ColwiseParallel, RowwiseParallel, SequenceParallel.
Use it inside a node, for layers too large for one rank, and to shorten a step once the batch cannot shrink.
Cost per rank and pair of split layers: one all-reduce of the activations forward, and backward one for each
layer that is split by columns (query, key and value apart: three), 2 (n-1)/n x 4 x batch x length x width
bytes each; memory of split layers 1/n. All ranks get the same batch.
Sources: Shoeybi et al., "Megatron-LM", 2019; Korthikanti et al., "Reducing Activation Recomputation"
(sequence parallelism), 2022 (torch.distributed.tensor.parallel).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, parallelize_module

from ropeteam_trainer.contract.strategy import StrategyError, TensorParallel, TensorSplit

ParallelizePlan = Mapping[str, ParallelStyle]
PlanMaker = Callable[[TensorSplit], ParallelizePlan]
"""Function of the script that returns {pattern of layers' names: style}."""


def split_layers(
    model: nn.Module, mesh: DeviceMesh, settings: TensorParallel, make: PlanMaker | None
) -> None:
    """Split layers in place, by the plan that `make` returns; None: the model's method tensor_plan().
    Parameters become DTensors. mesh: its tensor dimension. Raises StrategyError if there is no plan, or a
    split is not even; then nothing is split.
    """
    plan_maker: Any = make or getattr(model, "tensor_plan", None)
    if plan_maker is None:
        raise StrategyError(
            f"spec.strategy.parallelism.tensor: {type(model).__name__} has no plan for its split; give it a "
            "method tensor_plan(settings), or call job.wrap(..., tensor_plan=f), that returns "
            "{layer name: ColwiseParallel()}"
        )
    plan: ParallelizePlan = plan_maker(TensorSplit(settings.sequence, settings.loss, mesh.size()))
    names = {id(layer): name for name, layer in model.named_modules()}
    parallelize_module(model, mesh, {path: _EvenSplitCheck(style, names) for path, style in plan.items()})
    parallelize_module(model, mesh, dict(plan))


@dataclass
class _EvenSplitCheck(ParallelStyle):
    """Style that splits nothing, and checks that `style` would split evenly: torch allows unequal shards, but
    a layer that returns a plain tensor of its shard is followed by code that assumes equal ones.

    names: of the model's layers, by id.
    """

    style: ParallelStyle
    names: Mapping[int, str]

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Called by torch for each layer of the plan. Raises StrategyError for an uneven split."""
        style, ranks = self.style, device_mesh.size()
        if (
            isinstance(style, ColwiseParallel)
            and style.use_local_output
            and style.output_layouts[0].is_shard()
        ):
            columns: int = getattr(module, "out_features", getattr(module, "embedding_dim", 0))
            if columns % ranks:
                raise StrategyError(
                    f"spec.strategy.parallelism.tensor: the {columns} columns of layer "
                    f"{self.names[id(module)]!r} cannot be shared equally by {ranks} ranks; set tensor to a "
                    f"divisor of {columns}, for example {_divisor_at_most(columns, ranks)}"
                )
        return module


def _divisor_at_most(number: int, most: int) -> int:
    """The largest divisor of `number` that is at most `most`."""
    return next(each for each in range(most, 0, -1) if number % each == 0)
