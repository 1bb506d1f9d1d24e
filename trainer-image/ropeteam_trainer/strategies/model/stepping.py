"""Hooks around an optimizer's step; the optimizer stays the same object."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

Step = Callable[[], Any]


def wrap_step(optimizer: Optimizer, around: Callable[[Step], Any]) -> None:
    """Make `optimizer.step()` return `around(step)`, where step() is the present method, with the closure if
    there is one. Several wrap each other: the last one is the outermost.

    The new step is a bound method, not any callable: learning-rate schedulers wrap it once more, by its
    `__func__`.
    """
    inner = optimizer.step

    def step(_: Optimizer, closure: Any = None) -> Any:
        return around(inner if closure is None else lambda: inner(closure))

    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
