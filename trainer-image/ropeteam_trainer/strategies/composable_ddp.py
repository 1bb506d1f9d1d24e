"""Composable replication: data parallelism of layers that tensor or pipeline parallelism has split already.

Like ddp.py, but layer by layer and on a mesh, so that it composes with tensor and pipeline parallelism. Alone
it is `sync.type: Replicate`: use it where the module's type must not change, and not be wrapped.
Cost per step and rank: 2 (n-1)/n x 4P bytes for the P parameters that this rank has.
Source: torch.distributed._composable.replicate_with_fsdp.
"""

from __future__ import annotations

from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh

from ropeteam_trainer.strategies.model.units import units_of


def replicate_model(model: nn.Module, mesh: DeviceMesh) -> None:
    """Average gradients over the replicas, in place: each unit in one all-reduce, then the rest of the model
    in one. mesh: its replicate dimension only."""
    for unit in units_of(model):
        replicate(unit, mesh=mesh)
    replicate(model, mesh=mesh)
