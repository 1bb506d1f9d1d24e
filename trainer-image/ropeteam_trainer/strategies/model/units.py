"""Units of a model: layers that are sharded, recomputed or split as one."""

from __future__ import annotations

from torch import nn


def units_of(model: nn.Module) -> list[nn.Module]:
    """Units: the children of the outermost lists of layers (nn.ModuleList, nn.Sequential) that have
    parameters. Empty if the model has no such list. In a transformer these are the blocks.
    """
    found: list[nn.Module] = []
    for child in [model] if isinstance(model, nn.ModuleList | nn.Sequential) else model.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            found += [layer for layer in child if any(True for _ in layer.parameters())]
        else:
            found += units_of(child)
    return found
