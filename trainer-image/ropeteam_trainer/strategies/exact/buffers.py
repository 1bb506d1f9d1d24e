"""Running statistics of BatchNorm under Exact: each micro-batch begins with those of the step's begin.

What a micro-batch changes is weighted by its samples, and added along the tree like a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from ropeteam_trainer.contract.strategy import StrategyError


class RunningStatistics:
    """Running statistics of all normalisation layers of a model. Order in each step: begin_step(); for each
    leaf begin_leaf(), forward and backward pass, then changes(); end_step()."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        """modules: by name, of the whole model. Raises StrategyError for SyncBatchNorm."""
        self._buffers: list[torch.Tensor] = []
        """Averages of batches, and counters of them."""
        self._others: dict[str, tuple[nn.Module, str]] = {}
        """Layer and name there of all other buffers."""
        for name, module in modules.items():
            if isinstance(module, nn.SyncBatchNorm):
                raise StrategyError(
                    f"spec.strategy.sync: Exact normalizes each micro-batch by itself, but layer {name} is a "
                    "SyncBatchNorm, whose batch depends on the ranks; use BatchNorm, or sync AllReduce"
                )
            for key, buffer in module.named_buffers(recurse=False):
                if isinstance(module, _NormBase):
                    self._buffers.append(buffer)
                else:
                    self._others[f"{name}.{key}".lstrip(".")] = module, key
        self._begin: list[torch.Tensor] = []
        self._seen: dict[str, tuple[torch.Tensor | None, int]] = {}
        """The other buffers at the step's begin, and the numbers of changes to them."""

    @property
    def numel(self) -> int:
        """Numbers in changes()."""
        return sum(buffer.numel() for buffer in self._buffers)

    def begin_step(self) -> None:
        self._begin = [buffer.clone() for buffer in self._buffers]
        self._seen = self._versions()

    def begin_leaf(self) -> None:
        self._set(self._begin)

    def changes(self) -> Iterator[torch.Tensor]:
        """Changes by the present leaf, as float64 on the CPU. Raises StrategyError for a buffer of another
        layer that has changed (by other means than its .data, which leaves no trace)."""
        for name, (buffer, version) in self._versions().items():
            before, version_before = self._seen[name]
            if buffer is not before or version != version_before:
                raise StrategyError(
                    f"spec.strategy.sync: the model's buffer {name} changes in forward(), and Exact can "
                    "combine the changes of BatchNorm only; use sync AllReduce"
                )
        for buffer, begin in zip(self._buffers, self._begin, strict=True):
            yield (buffer.double() - begin.double()).flatten().cpu()

    def end_step(self, changes: torch.Tensor) -> None:
        """Set the statistics: those of the step's begin, and the weighted sum of all leaves' changes. A
        counter is a whole number."""
        self._set(self._begin)
        at = 0
        for buffer in self._buffers:
            part = changes[at : at + buffer.numel()].view(buffer.shape)
            changed = buffer.double().cpu() + part
            buffer.copy_(changed if buffer.is_floating_point() else changed.round())
            at += buffer.numel()

    def _versions(self) -> dict[str, tuple[torch.Tensor | None, int]]:
        found = {name: module._buffers[key] for name, (module, key) in self._others.items()}
        return {
            name: (buffer, buffer._version if buffer is not None else 0) for name, buffer in found.items()
        }

    def _set(self, values: list[torch.Tensor]) -> None:
        for buffer, value in zip(self._buffers, values, strict=True):
            buffer.copy_(value)
