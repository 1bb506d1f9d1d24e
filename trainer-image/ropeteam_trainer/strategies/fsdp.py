"""Sharded data parallelism: each rank keeps 1/n of every parameter, gradient and optimizer state.

Parameters (ZeRO-3, FSDP): a layer is gathered just before it computes, forward and backward, and resharded
after it.
Gradients (ZeRO-2): a layer stays gathered from its forward to its backward pass: one gather less.
With replicate > 1 it shards within groups and averages between them (hybrid sharding): gathers stay inside a
node. Every rank serves its shard of the parameters and trains on its part of the data.
Use it when the model or its optimizer do not fit into one rank.
Cost per step and rank: Parameters 3 (n-1)/n x 4P bytes (two gathers, one reduce-scatter), Gradients 2
(n-1)/n x 4P; memory of the model 16P/n bytes under Adam, and one gathered layer (Parameters) or all of them
(Gradients).
gloo has no reduce-scatter and runs an all-reduce instead, (n-1)/n x 4P bytes more.
Sources: Rajbhandari et al., "ZeRO", SC 2020; Zhao et al., "PyTorch FSDP", VLDB 2023 (torch's fully_shard).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from ropeteam_trainer.contract.strategy import Offload, Precision, Sharding, Strategy
from ropeteam_trainer.strategies.model.units import units_of


def shard_model(model: nn.Module, mesh: DeviceMesh, strategy: Strategy) -> None:
    """Shard in place: each unit by itself, then the rest of the model. Parameters become DTensors, so the
    optimizer must be bound to them afterwards. mesh: its dimensions (shard,) or (replicate, shard)."""
    options: dict[str, Any] = {
        "mesh": mesh,
        "reshard_after_forward": strategy.sharding is not Sharding.GRADIENTS,
        "mp_policy": _precision_policy(strategy.precision),
        "offload_policy": _offload_policy(strategy.offload, mesh),
    }
    for unit in units_of(model):
        fully_shard(unit, **options)
    fully_shard(model, **options)


def reshard(model: nn.Module) -> None:
    """Shard again what a forward pass without a backward pass has gathered: sharding Gradients keeps it."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _offload_policy(offload: Offload, mesh: DeviceMesh) -> OffloadPolicy:
    """FSDP's offload policy. On a CPU none: all is in host memory already."""
    if offload is Offload.NONE or mesh.device_type == "cpu":
        return OffloadPolicy()
    return CPUOffloadPolicy()


def _precision_policy(precision: Precision) -> MixedPrecisionPolicy:
    """FSDP's precision policy: compute and gather in 16 bits, reduce gradients in float32."""
    if precision is Precision.FLOAT32:
        return MixedPrecisionPolicy()
    short = torch.bfloat16 if precision is Precision.BFLOAT16 else torch.float16
    return MixedPrecisionPolicy(param_dtype=short, reduce_dtype=torch.float32, output_dtype=torch.float32)
