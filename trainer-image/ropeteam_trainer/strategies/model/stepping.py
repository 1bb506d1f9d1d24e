"""Hooks around an optimizer's step; the optimizer stays the same object."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

Step = Callable[[], Any]


def around_step(optimizer: Optimizer, around: Callable[[Step], Any]) -> None:
    """Make `optimizer.step()` call `around(step)`, where `step()` is the former method.

    The new step is a bound method, not any callable: learning-rate schedulers wrap it once more, by its
    `__func__`.
    """
    inner = optimizer.step

    def step(_: Optimizer, closure: Any = None) -> Any:
        return around(inner if closure is None else lambda: inner(closure))

    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
