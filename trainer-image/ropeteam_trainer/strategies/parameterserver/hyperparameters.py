"""Hyperparameters of an optimizer, in messages: a worker's schedulers change them, and servers step with
them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from ropeteam_trainer.checkpoint.objects.optimizers import NOT_VALUES

Hyperparameters = Sequence[dict[str, Any]]
"""One dict for each parameter group of the optimizer: numbers, lists of numbers, or None."""


def hyperparameters_of(optimizer: Optimizer) -> Hyperparameters:
    """Current hyperparameters of each group, those that are numbers. Others are left out: no scheduler
    changes them, and the server's script has set the same."""
    return [
        {key: _plain(value) for key, value in group.items() if key not in NOT_VALUES and _is_number(value)}
        for group in optimizer.param_groups
    ]


def set_hyperparameters(optimizer: Optimizer, values: Hyperparameters | None) -> None:
    """Set the optimizer's hyperparameters, as hyperparameters_of() returned them. None changes nothing.
    Raises ValueError for another number of groups."""
    for group, changed in zip(optimizer.param_groups, values or (), strict=bool(values)):
        group |= {key: tuple(value) if isinstance(value, list) else value for key, value in changed.items()}


def _is_number(value: Any) -> bool:
    """Whether a hyperparameter is a number, None, or several numbers (betas)."""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    if isinstance(value, tuple | list):
        return all(isinstance(each, int | float) for each in value)
    return isinstance(value, int | float) or value is None


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value
