"""Result of a dry run for `ropeteam plan`: one DryRunResult, which the script writes as JSON to the file that
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
    """Bytes of an element."""
    trained: bool
    """Whether the parameter requires a gradient."""

    @property
    def bytes(self) -> int:
        """Bytes on this rank."""
        return self.numbers * self.number_bytes


@dataclass(frozen=True)
class ModelPart:
    """One rank's part of the model. Of the ranks of a pipeline stage only the one with the largest part is
    reported."""

    rank: int
    tensors: tuple[Tensor, ...]
    groups: int
    """Number of units, which are gathered or averaged as one; parameters outside of all units are one
    more."""
    optimizer: int | None
    """Bytes of the optimizer's state after its first step. None: unknown, it cannot step without data."""


@dataclass(frozen=True)
class Model:
    """Model and optimizer that the script gave to job.wrap(), and what wrap() made of them."""

    parameters: int
    """Elements on all ranks together, each counted once."""
    optimizer: str
    """Name of its class."""
    rates: tuple[float, ...]
    """Learning rate of each parameter group, as set by the script."""
    scaled_rates: tuple[float, ...]
    """Learning rate of each parameter group after wrap()."""
    parts: tuple[ModelPart, ...]


@dataclass(frozen=True)
class DryRunResult:
    """Result of one script. Exactly one of the four is set."""

    model: Model | None = None
    refused: tuple[str, ...] = ()
    """Reasons why the strategy cannot be used with this script."""
    without_wrap: str = ""
    """First action of the script instead of a call of job.wrap(): `calls job.batches()`."""
    not_run: str = ""
    """Reason why the script was not run, as a sentence."""
