"""Whether all replicas have the same weights, for a few bytes more in the sums of a step.

A rank that joins others is given their state. What the script changes outside of it, as a scheduler that
job.restore() does not know, would make its weights differ from then on, and nobody would notice: each replica
would compute its gradients with other weights. So all compare a digest, some steps later.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import nn

from ropeteam_trainer.contract.strategy import StrategyError
from ropeteam_trainer.strategies.exact.gradients import local
from ropeteam_trainer.strategies.exact.sums import as_bytes

COMPARED_AFTER_STEPS = 1, 2, 8
"""Steps of a new rank. A learning rate may be right in the first one, because the optimizer has it, too."""
_DIFFERENT = (
    "spec.strategy.sync: after a new rank has joined the others under Exact, ranks have different weights in "
    "step {step}; job.restore() must be given everything that changes the weights (a scheduler, say), and "
    "the loop must do the same on all ranks"
)


class WeightComparison:
    """Compares the weights of all replicas some steps after new ones have joined."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        self._parts = parts
        self.joined = 0
        """Number of exchanges after which new replicas joined last. 0: none has."""
        self._digest = 0
        """Of this replica, in the present exchange. 0: it compares nothing."""

    def note_joined(self, done: int) -> None:
        """New replicas have joined after so many exchanges. One that was not there because another was lost
        knows it from the others when it regroups, before any digest is due: it is one exchange behind."""
        self.joined = done

    def begin_step(self, done: int) -> None:
        """Note the weights before the next exchange: its micro-batches change running statistics."""
        is_due = self.joined > 0 and done - self.joined in COMPARED_AFTER_STEPS
        self._digest = digest_of(self._parts) if is_due else 0

    @property
    def votes(self) -> tuple[int, int]:
        """Numbers of one micro-batch, to be added over all."""
        return squared(self._digest)

    def check(self, sums: Sequence[float], leaves: int, step: int) -> None:
        """Raise StrategyError, on all replicas, if the sums of the votes of all micro-batches are not those
        of equal ones."""
        if [*sums] != [leaves * each for each in self.votes]:
            raise StrategyError(_DIFFERENT.format(step=step))


def digest_of(parts: Sequence[nn.Module]) -> int:
    """Digest of this rank's parameters and buffers, of 20 bits: its square is exact in a sum of float64.
    Never 0."""
    code = 0
    for part in parts:
        for tensor in (*part.parameters(), *part.buffers()):
            code = zlib.crc32(as_bytes(flat_view(tensor)), code)
    return 1 + code % (1 << 20)


def squared(code: int) -> tuple[int, int]:
    """A number and its square. If the sums of both over n replicas are those of n equal ones, all are
    equal."""
    return code, code**2


def unsaved_buffers(parts: Sequence[nn.Module]) -> list[torch.Tensor]:
    """Buffers that are in no state_dict (persistent=False), in order. A script may have made them at
    random."""
    return [
        buffer
        for part in parts
        for module in part.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name in module._non_persistent_buffers_set
    ]


def flat_view(tensor: torch.Tensor) -> torch.Tensor:
    """View of one dimension, if the tensor is contiguous on the CPU; else as flat_copy()."""
    return local(tensor).detach().cpu().contiguous().flatten()


def flat_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Copy on the CPU, of one dimension; of a sharded tensor, this rank's part."""
    return local(tensor).to("cpu", copy=True, memory_format=torch.contiguous_format).flatten()
