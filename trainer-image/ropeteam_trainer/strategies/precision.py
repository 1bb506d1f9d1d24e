"""Mixed precision: matrix products in 16 bits, weights and sums in 32.

BFloat16 has float32's range and needs no loss scaling. Float16 has more digits and a small range: the loss is
scaled up so that small gradients do not underflow, and a step whose gradients overflow is skipped.
Use BFloat16 on any GPU since Ampere; Float16 on older ones.
Cost: activations take half the memory; weights keep their 32 bits (sharded layers are gathered in 16 bits).
Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018 (torch.amp).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ropeteam_trainer.contract.strategy import Precision
from ropeteam_trainer.strategies.model.stepping import Step, wrap_step

_TYPES = {Precision.BFLOAT16: torch.bfloat16, Precision.FLOAT16: torch.float16}


def enable_autocast(model: nn.Module, precision: Precision, device: torch.device) -> None:
    """Make forward() of `model` run under autocast to the 16-bit type, in place, whatever the caller does.
    precision: not FLOAT32."""
    inner = model.forward

    @functools.wraps(inner)
    def forward(*inputs: Any, **named: Any) -> Any:
        with torch.autocast(device.type, _TYPES[precision]):
            return inner(*inputs, **named)

    model.forward = forward


class LossScale:
    """Loss scale of Float16: gradients are scaled up in the backward pass, and down before the optimizer
    steps.

    The model's output keeps its value; only the gradient that flows back through it is scaled.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device) -> None:
        """Wraps the optimizer's step."""
        self._scaler = torch.amp.GradScaler(device.type)
        self._one = torch.ones((), device=device)
        self._optimizer = optimizer
        self._unscaled = False
        """Whether the gradients of the current step are unscaled."""
        self._stepping = False
        wrap_step(optimizer, self._scaled_step)
        self.state_dict, self.load_state_dict = self._scaler.state_dict, self._scaler.load_state_dict

    def scaled(self, output: torch.Tensor) -> torch.Tensor:
        """Tensor with the value of `output`, whose gradient will be scaled."""
        scale = self._scaler.scale(self._one)
        result: torch.Tensor = _ScaleGradient.apply(output, scale)  # type: ignore[no-untyped-call]
        return result

    def unscale(self) -> None:
        """Unscale gradients in place, so that they can be read. Once for each step; step() does so if no
        caller has."""
        if not self._unscaled:
            self._scaler.unscale_(self._optimizer)
            self._unscaled = True

    def _scaled_step(self, step: Step) -> None:
        """Step unless a gradient is infinite or NaN, and adjust the scale."""
        if self._stepping:  # called by the scaler, below
            step()
            return
        self.unscale()
        self._stepping = True
        self._scaler.step(self._optimizer)
        self._stepping = self._unscaled = False
        self._scaler.update()


class _ScaleGradient(torch.autograd.Function):
    """Identity, whose gradient is multiplied by `scale`."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(scale)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (scale,) = ctx.saved_tensors
        return grads[0] * scale, None
