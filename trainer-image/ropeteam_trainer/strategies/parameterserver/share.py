"""One server's part of the model, and the script's own optimizer over it.

Every step is made in the half of the memory that is not valid: weights, the optimizer's state and the record
of applied gradients become valid together.
A step may be scaled by staleness: Zhang et al., "Staleness-Aware Async-SGD for Distributed Deep Learning",
IJCAI 2016: divided by the number of steps that others made since the weights of this gradient were pulled.
"""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ropeteam_trainer.checkpoint.objects.optimizers import NOT_VALUES
from ropeteam_trainer.contract.codec import DecodeError
from ropeteam_trainer.partition.layout import shared_out
from ropeteam_trainer.strategies.parameterserver import flat
from ropeteam_trainer.strategies.parameterserver.doublebuffer import DoubleBuffer, Tensors

Values = Sequence[dict[str, Any]]
"""Hyperparameters of each group of the optimizer, without its parameters."""
Content = Mapping[str, Mapping[str, Any]]
"""{parameter: {"": its value, key: state of the optimizer}}."""
_SEPARATOR = "\n"
"""Separator between the names of a parameter and of a tensor of its state."""


def shares(named: Mapping[str, nn.Parameter], servers: int) -> list[dict[str, nn.Parameter]]:
    """Parameters of each server. They are not split, so that every optimizer works on them unchanged."""
    owners = shared_out([p.numel() for p in named.values()], servers)
    parts: list[dict[str, nn.Parameter]] = [{} for _ in range(servers)]
    for (name, parameter), owner in zip(named.items(), owners, strict=True):
        parts[owner][name] = parameter
    return parts


def restricted(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> Optimizer:
    """Copy of the optimizer for some of its parameters, with a state of its own."""
    own = copy.copy(optimizer)
    kept = set(parameters.values())
    own.param_groups = [
        {**group, "params": [p for p in group["params"] if p in kept]} for group in optimizer.param_groups
    ]
    own.state = defaultdict(dict)
    return own


def values_of(optimizer: Optimizer) -> Values:
    """Hyperparameters that fit into a message: a scheduler changes numbers only."""
    return [
        {key: _plain(value) for key, value in group.items() if key not in NOT_VALUES and _is_number(value)}
        for group in optimizer.param_groups
    ]


def put_values(optimizer: Optimizer, values: Values | None) -> None:
    """Set hyperparameters, the inverse of values_of(); None changes nothing."""
    for group, now in zip(optimizer.param_groups, values or (), strict=bool(values)):
        group |= {key: tuple(value) if isinstance(value, list) else value for key, value in now.items()}


def content_of(parameters: Mapping[str, nn.Parameter], optimizer: Optimizer) -> Content:
    """Content without copies: the caller copies what it keeps."""
    return {name: {"": p.detach(), **optimizer.state.get(p, {})} for name, p in parameters.items()}


class Share:
    """One server's share: `parameters`, and `optimizer` over these only, kept in the file `path`."""

    def __init__(
        self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, path: Path | None, workers: int
    ) -> None:
        self.layout, self.workers, self.groups = flat.layout(parameters), workers, len(optimizer.param_groups)
        self._parameters, self._optimizer = parameters, optimizer
        self._record: dict[str, Any] = {
            "generation": None,
            "version": 0,
            "applied": [-1] * workers,
            "values": {},
        }
        found = DoubleBuffer.found(path)
        if found is not None:
            self._record = json.loads(found.record)
        tensors = {name: p.detach().cpu() for name, p in parameters.items()}
        self._buffer = found or DoubleBuffer(path)
        if found is None:
            self._buffer.rebuild(tensors, self._encoded_record())
        self._bind(self._buffer.current)
        for name, values in self._record["values"].items():
            self._optimizer.state[parameters[name]] |= values

    @property
    def generation(self) -> str | None:
        """Generation of this state; None: only the script's initial weights."""
        generation: str | None = self._record["generation"]
        return generation

    @property
    def version(self) -> int:
        """Steps done."""
        version: int = self._record["version"]
        return version

    def has_applied(self, worker: int, n: int) -> bool:
        applied: int = self._record["applied"][worker]
        return n <= applied

    def weights(self) -> AbstractContextManager[memoryview]:
        """Bytes of the weights, in the order of `layout`."""
        return self._buffer.reading(len(self._parameters))

    def step(
        self,
        gradients: Sequence[torch.Tensor | None],
        values: Values,
        applied: Mapping[int, int],
        staleness: int = 0,
    ) -> None:
        """Make one step of the optimizer. applied: {worker: n} of its gradients."""
        put_values(self._optimizer, values)
        if staleness > 1:
            for group in self._optimizer.param_groups:
                group["lr"] = group["lr"] / staleness
        self._bind(self._buffer.draft())
        for parameter, gradient in zip(self._parameters.values(), gradients, strict=True):
            parameter.grad = gradient
        self._optimizer.step()
        for parameter in self._parameters.values():
            parameter.grad = None
        self._record["version"] += 1
        for worker, n in applied.items():
            self._record["applied"][worker] = n
        self._commit()

    def rest(self) -> None:
        """Synchronize the other half, while no request waits."""
        self._buffer.catch_up()

    def content(self) -> Content:
        return content_of(self._parameters, self._optimizer)

    def check(self, content: Any) -> None:
        """Raises DecodeError for what is no content of these parameters."""
        for name, p in self._parameters.items():
            parts = content.get(name) if isinstance(content, dict) else None
            value = parts.get("") if isinstance(parts, dict) else None
            if not isinstance(value, torch.Tensor) or (value.shape, value.dtype) != (p.shape, p.dtype):
                raise DecodeError(f"no content, or of another shape or type, for parameter {name}")

    def take(self, content: Content, generation: str) -> None:
        """Replace the state by this content, of a new generation without applied gradients."""
        self._optimizer.state.clear()
        for name, p in self._parameters.items():
            p.data = content[name][""].detach().cpu().clone()
            if state := {key: value for key, value in content[name].items() if key}:
                self._optimizer.state[p] = state
        self._record["generation"] = generation
        self._record["version"] = 0
        self._record["applied"] = [-1] * len(self._record["applied"])
        self._rebuild()

    def _commit(self) -> None:
        current = self._tensors()
        draft = self._bound
        in_place = current.keys() == draft.keys() and all(
            tensor.data_ptr() == draft[name].data_ptr() and tensor.shape == draft[name].shape
            for name, tensor in current.items()
        )
        if in_place:
            self._buffer.commit(self._encoded_record())
        else:  # the first step makes state; an optimizer may replace its tensors at every step
            self._rebuild()

    def _rebuild(self) -> None:
        self._buffer.rebuild(self._tensors(), self._encoded_record())
        self._bind(self._buffer.current)

    def _tensors(self) -> Tensors:
        """All tensors of the share, weights first."""
        weights = {name: p.detach() for name, p in self._parameters.items()}
        return weights | {
            f"{name}{_SEPARATOR}{key}": value for name, key, value in self._state() if _is_tensor(value)
        }

    def _encoded_record(self) -> bytes:
        values: dict[str, dict[str, Any]] = {}
        for name, key, value in self._state():
            if not _is_tensor(value):
                values.setdefault(name, {})[key] = value
        self._record["values"] = values
        return json.dumps(self._record).encode()

    def _state(self) -> Iterator[tuple[str, str, Any]]:
        for name, p in self._parameters.items():
            for key, value in self._optimizer.state.get(p, {}).items():
                yield name, key, value

    def _bind(self, tensors: Tensors) -> None:
        """Make these tensors the parameters and the optimizer's state."""
        for full, tensor in tensors.items():
            name, _, key = full.partition(_SEPARATOR)
            p = self._parameters[name]
            if key:
                self._optimizer.state[p][key] = tensor
            else:
                p.data = tensor
        self._bound = tensors


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    if isinstance(value, tuple | list):
        return all(isinstance(each, int | float) for each in value)
    return isinstance(value, int | float) or value is None


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value
