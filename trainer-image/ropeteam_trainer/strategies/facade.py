"""Facade that the loop calls instead of the model: it adds a loss, micro-batches, a pipeline, a loss scale.

A batch is computed whole, or split (micro-batches, a pipeline); then the backward pass runs inside model(),
see model/eager.py. Without gradients, as in an evaluation, only a pipeline splits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ropeteam_trainer.checkpoint.format.names import plain_name
from ropeteam_trainer.data.decisions.plan import Leaf
from ropeteam_trainer.strategies import fsdp
from ropeteam_trainer.strategies.exact.callbacks import MoreLeaves
from ropeteam_trainer.strategies.exact.step import ExactStep
from ropeteam_trainer.strategies.model import eager, microbatch
from ropeteam_trainer.strategies.pipeline import Pipeline
from ropeteam_trainer.strategies.precision import LossScale

Loss = Callable[..., torch.Tensor]
"""(output, target) -> mean loss, one number."""


class ModelFacade(nn.Module):
    """Module that calls the parts of the model. With a loss function, model(x, y) is loss(output of x, y).

    Keys of state_dict() are those of the plain model, in a pipeline those of this rank's stages.
    """

    def __init__(
        self,
        parts: tuple[nn.Module, ...],
        loss: Loss | None,
        micro: int | None,
        weight: Callable[[], float],
        scale: LossScale | None,
    ) -> None:
        """parts: the model, or this rank's stages of a pipeline. micro: samples of a micro-batch; None: whole
        batches. weight: returns the factor by which the loop multiplies the loss."""
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self._loss, self._micro, self._weight, self._scale = loss, micro, weight, scale
        self._pipeline: Pipeline | None = None
        self._exact: Callable[[microbatch.ModelArguments], torch.Tensor] | None = None
        self.is_needed = loss is not None or micro is not None or scale is not None
        """Whether this does more than to call the model."""
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
        """Run all later batches through this pipeline of the parts."""
        self._pipeline, self.is_needed = pipeline, True

    def use_exact(
        self,
        step: ExactStep,
        leaves: Callable[[], tuple[Leaf, ...]],
        steps_done: Callable[[], int],
        more: MoreLeaves,
    ) -> None:
        """Run all later batches in the micro-batches that `leaves` returns, and add their gradients over all
        replicas."""
        self._exact = lambda batch: step.run(self._compute_whole_batch, batch, leaves(), steps_done(), more)
        self.is_needed = True

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Output of the model, or its loss if there is a loss function or the batch is split. A split batch
        with gradients enabled has run its backward pass on return."""
        splits = self._micro is not None or self._exact is not None
        if self._pipeline is None and not (splits and torch.is_grad_enabled()):
            return self._compute_whole_batch(*inputs, **named)
        if not torch.is_grad_enabled():
            return self._run_split_batch(inputs, named)
        if self._exact is not None:
            fsdp.reshard(self.parts)  # an evaluation leaves layers gathered
        parameters = list(self.parts.parameters())
        return eager.loss_with_deferred_gradients(
            lambda: self._run_split_batch(inputs, named), parameters, self._weight()
        )

    def pipeline_loss(self, output: Any, target: Any) -> torch.Tensor:
        """Loss of one micro-batch in the last stage of a pipeline, with a scaled gradient if there is a loss
        scale."""
        assert self._loss is not None
        loss = self._loss(output, target)
        return self._scale.scaled(loss) if self._scale else loss

    def _run_split_batch(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> torch.Tensor:
        """Mean loss of the batch, run through the pipeline or in micro-batches. Raises TypeError for other
        arguments than a pipeline takes."""
        if self._pipeline is not None:
            if named or len(inputs) != 2:
                raise TypeError(
                    "with spec.strategy.parallelism.pipeline call model(x, y), with two positional "
                    f"arguments and no keywords; it was called with {len(inputs)} and the keywords "
                    f"{', '.join(named) or '(none)'}"
                )
            return self._pipeline.run(inputs[0], inputs[1], self._weight())
        batch = microbatch.ModelArguments(inputs, named)
        if self._exact is not None:
            return self._exact(batch)
        assert self._micro is not None
        return microbatch.accumulate_gradients(
            self.parts[0], self._compute_whole_batch, batch, self._micro, self._weight()
        )

    def _compute_whole_batch(self, *inputs: Any, **named: Any) -> Any:
        """Output or loss of one pass without a pipeline, with scaled gradients if there is a loss scale. With
        a loss function the last argument is its target. Raises TypeError if that is missing."""
        if self._loss is None:
            output = self.parts[0](*inputs, **named)
        elif not inputs:
            raise TypeError(
                "job.wrap(..., loss=f) makes model(x, y) return f(output of x, y): call the model with the "
                "target y as the last positional argument"
            )
        else:
            output = self._loss(self.parts[0](*inputs[:-1], **named), inputs[-1])
        return output if self._scale is None else _scaled(output, self._scale)


def _scaled(output: Any, scale: LossScale) -> Any:
    """Copy of a nested output whose tensors have scaled gradients."""
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
    """Rename the keys of `state` in place, after state_dict()."""
    for full, plain in [*_renamed_keys(facade, prefix)]:
        state[plain] = state.pop(full)


def _with_full_names(facade: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Rename the keys of `state` in place, before load_state_dict(). Keys that are missing there stay
    missing."""
    for full, plain in [*_renamed_keys(facade, prefix)]:
        if plain in state:
            state[full] = state.pop(plain)


def _renamed_keys(facade: ModelFacade, prefix: str) -> Iterator[tuple[str, str]]:
    """(key in the facade's state_dict(), key in that of the plain model) of each value."""
    for number, part in enumerate(facade.parts):
        for name in part.state_dict():
            yield f"{prefix}parts.{number}.{name}", f"{prefix}{plain_name(part, name)}"
