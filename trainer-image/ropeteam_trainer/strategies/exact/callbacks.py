"""Functions of the script and of its rank that a step under Exact calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from ropeteam_trainer.data.decisions.plan import Leaf
from ropeteam_trainer.strategies.model.microbatch import ModelArguments

MoreLeaves = Callable[[Sequence[int], ModelArguments], tuple[Sequence[Leaf], ModelArguments]]
"""Micro-batches with these numbers, and the arguments of model() for their samples. Given: the arguments for
the rank's own batch."""


@dataclass
class Callbacks:
    """Functions of its rank that a step calls."""

    is_late: Callable[[], bool] = lambda: False
    """Whether the clock of this rank demands a checkpoint."""
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context of waits for other replicas."""
    check_arguments: Callable[[ModelArguments], None] = lambda _: None
    """Called with each batch, before it is computed."""
