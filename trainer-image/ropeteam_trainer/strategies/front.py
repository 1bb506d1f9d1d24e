"""What the loop calls where a model needs something around it: a loss, micro-batches, a pipeline, a scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ropeteam_trainer.strategies import eager, microbatch
from ropeteam_trainer.strategies.pipeline import Pipeline
from ropeteam_trainer.strategies.precision import LossScale

Loss = Callable[..., torch.Tensor]


class Front(nn.Module):
    """Calls the parts of the model. With a loss function, model(x, y) returns loss(output of x, y)."""

    def __init__(
        self,
        parts: tuple[nn.Module, ...],
        loss: Loss | None,
        micro: int | None,
        weight: Callable[[], float],
        scale: LossScale | None,
    ) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self._loss, self._micro, self._weight, self._scale = loss, micro, weight, scale
        self._pipeline: Pipeline | None = None
        self.does_anything = loss is not None or micro is not None or scale is not None

    def flow(self, through: Pipeline) -> None:
        """From now on batches go through a pipeline."""
        self._pipeline, self.does_anything = through, True

    def forward(self, *inputs: Any) -> Any:
        if self._pipeline is None and (self._micro is None or not torch.is_grad_enabled()):
            return self._compute(*inputs)
        if not torch.is_grad_enabled():
            return self._run(inputs)
        return eager.loss_of(lambda: self._run(inputs), list(self.parts.parameters()), self._weight())

    def finished_loss(self, output: Any, target: Any) -> torch.Tensor:
        """For the last stage of a pipeline."""
        assert self._loss is not None
        loss = self._loss(output, target)
        return self._scale.scaled(loss) if self._scale else loss

    def _run(self, inputs: tuple[Any, ...]) -> torch.Tensor:
        if self._pipeline is not None:
            if len(inputs) != 2:
                raise TypeError(f"with a pipeline call model(x, y), not model() with {len(inputs)} arguments")
            return self._pipeline.run(inputs[0], inputs[1], self._weight())
        assert self._micro is not None
        return microbatch.accumulate(self.parts[0], self._compute, inputs, self._micro, self._weight())

    def _compute(self, *inputs: Any) -> Any:
        if self._loss is None:
            output = self.parts[0](*inputs)
        else:
            output = self._loss(self.parts[0](*inputs[:-1]), inputs[-1])
        return output if self._scale is None else _scaled(output, self._scale)


def _scaled(output: Any, scale: LossScale) -> Any:
    if isinstance(output, torch.Tensor):
        return scale.scaled(output) if output.requires_grad else output
    if isinstance(output, dict):
        return {key: _scaled(value, scale) for key, value in output.items()}
    if isinstance(output, list | tuple):
        return type(output)([_scaled(value, scale) for value in output])
    return output
