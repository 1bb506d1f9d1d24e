"""What a script tells `ropeteam plan` before it would train: one Answer, as JSON in the file that PLAN_FILE
names.

Sizes are those of a real wrap() on torch's meta device, in a world that talks to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tensor:
    """A parameter as one rank holds it."""

    shape: tuple[int, ...]
    """Of the whole parameter."""
    numbers: int
    """On this rank."""
    number_bytes: int
    trained: bool

    @property
    def bytes(self) -> int:
        return self.numbers * self.number_bytes


@dataclass(frozen=True)
class Part:
    """What one rank has of the model. Ranks that hold as much or less are left out."""

    rank: int
    tensors: tuple[Tensor, ...]
    groups: int
    """Layers that are gathered or averaged as one; what lies outside of all layers is one more."""
    optimizer: int | None
    """Bytes of the optimizer's state after its first step. None: it cannot step without data."""


@dataclass(frozen=True)
class Model:
    """What job.wrap() was given, and made of it."""

    parameters: int
    """Numbers, of all ranks together, each counted once."""
    optimizer: str
    rates: tuple[float, ...]
    """Learning rate of each parameter group, as the script chose it."""
    scaled_rates: tuple[float, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Answer:
    """Exactly one of the three."""

    model: Model | None = None
    refused: tuple[str, ...] = ()
    """Why the strategy cannot be used with this script."""
    without_wrap: str = ""
    """What the script did instead of calling job.wrap(): `called job.batches()`."""
