"""A script's report to `ropeteam plan` before it would train: one DryRunResult, as JSON in the file that
DRY_RUN_FILE names.

Sizes are those of a real wrap() on torch's meta device, in a world without communication.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tensor:
    """A parameter, or its shard, on one rank."""

    shape: tuple[int, ...]
    """Shape of the full parameter."""
    numbers: int
    """Elements on this rank."""
    number_bytes: int
    trained: bool

    @property
    def bytes(self) -> int:
        return self.numbers * self.number_bytes


@dataclass(frozen=True)
class ModelPart:
    """One rank's part of the model. Ranks that hold as much or less are left out."""

    rank: int
    tensors: tuple[Tensor, ...]
    groups: int
    """Layers that are gathered or averaged as one; parameters outside of all layers are one more."""
    optimizer: int | None
    """Bytes of the optimizer's state after its first step. None: unknown, it cannot step without data."""


@dataclass(frozen=True)
class Model:
    """Arguments and result of job.wrap()."""

    parameters: int
    """Elements on all ranks together, each counted once."""
    optimizer: str
    rates: tuple[float, ...]
    """Learning rate of each parameter group, as set by the script."""
    scaled_rates: tuple[float, ...]
    parts: tuple[ModelPart, ...]


@dataclass(frozen=True)
class DryRunResult:
    """Report of a script. Exactly one of the three is set."""

    model: Model | None = None
    refused: tuple[str, ...] = ()
    """Reasons why the strategy cannot be used with this script."""
    without_wrap: str = ""
    """First action of the script instead of a call of job.wrap(): `calls job.batches()`."""
