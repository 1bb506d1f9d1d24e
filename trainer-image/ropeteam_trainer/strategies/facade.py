"""Facade that the loop calls instead of the model: adds a loss, micro-batches, a pipeline, a loss scale."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ropeteam_trainer.checkpoint.format.names import plain_name
from ropeteam_trainer.strategies.model import eager, microbatch
from ropeteam_trainer.strategies.pipeline import Pipeline
from ropeteam_trainer.strategies.precision import LossScale

Loss = Callable[..., torch.Tensor]


class ModelFacade(nn.Module):
    """Module that calls the parts of the model. With a loss function, model(x, y) is loss(output of x, y).

    The state_dict() has the names of the plain model, in a pipeline those of this rank's stages.
    """

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
        self.register_state_dict_post_hook(_with_plain_names)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_with_full_names)  # type: ignore[no-untyped-call]

    def __getattr__(self, name: str) -> Any:
        """Attributes of the wrapped model, or of DDP: no_sync(), a layer, a setting."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name != "parts" and len(self.parts) == 1:
                return getattr(self.parts[0], name)
            raise

    def use_pipeline(self, pipeline: Pipeline) -> None:
        """Run all later batches through a pipeline."""
        self._pipeline, self.does_anything = pipeline, True

    def forward(self, *inputs: Any, **named: Any) -> Any:
        if self._pipeline is None and (self._micro is None or not torch.is_grad_enabled()):
            return self._compute(*inputs, **named)
        if not torch.is_grad_enabled():
            return self._run(inputs, named)
        parameters = list(self.parts.parameters())
        return eager.loss_of(lambda: self._run(inputs, named), parameters, self._weight())

    def finished_loss(self, output: Any, target: Any) -> torch.Tensor:
        """Loss, scaled if needed, for the last stage of a pipeline."""
        assert self._loss is not None
        loss = self._loss(output, target)
        return self._scale.scaled(loss) if self._scale else loss

    def _run(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> torch.Tensor:
        if self._pipeline is not None:
            if named or len(inputs) != 2:
                raise TypeError(
                    "with a pipeline call model(x, y): two positional arguments and no keywords, not "
                    f"{len(inputs)} and {', '.join(named) or 'none'}"
                )
            return self._pipeline.run(inputs[0], inputs[1], self._weight())
        assert self._micro is not None
        batch = microbatch.ModelArguments(inputs, named)
        return microbatch.accumulate(self.parts[0], self._compute, batch, self._micro, self._weight())

    def _compute(self, *inputs: Any, **named: Any) -> Any:
        if self._loss is None:
            output = self.parts[0](*inputs, **named)
        elif not inputs:
            raise TypeError("with a loss function call model(x, y): it compares the output of x with y")
        else:
            output = self._loss(self.parts[0](*inputs[:-1], **named), inputs[-1])
        return output if self._scale is None else _scaled(output, self._scale)


def _scaled(output: Any, scale: LossScale) -> Any:
    if isinstance(output, torch.Tensor):
        return scale.scaled(output) if output.requires_grad else output
    if isinstance(output, dict):
        result = copy.copy(output)  # keeps the type: transformers' outputs have attributes, too
        for key, value in output.items():
            result[key] = _scaled(value, scale)
        return result
    if isinstance(output, list | tuple):
        return type(output)([_scaled(value, scale) for value in output])
    return output


def _with_plain_names(facade: Any, state: dict[str, Any], prefix: str, _: Any) -> None:
    for full, plain in [*_names(facade, prefix)]:
        state[plain] = state.pop(full)


def _with_full_names(facade: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for full, plain in [*_names(facade, prefix)]:
        if plain in state:
            state[full] = state.pop(plain)


def _names(facade: ModelFacade, prefix: str) -> Iterator[tuple[str, str]]:
    """Names of each value in the state of the parts: with the prefixes of wrappers, and without."""
    for number, part in enumerate(facade.parts):
        for name in part.state_dict():
            yield f"{prefix}parts.{number}.{name}", f"{prefix}{plain_name(part, name)}"
