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

from ropeteam_trainer.contract.codec import DecodeError
from ropeteam_trainer.partition.layout import balanced_owners
from ropeteam_trainer.strategies.parameterserver import flat
from ropeteam_trainer.strategies.parameterserver.doublebuffer import DoubleBuffer, Tensors
from ropeteam_trainer.strategies.parameterserver.hyperparameters import (
    Hyperparameters,
    set_hyperparameters,
)

Content = Mapping[str, Mapping[str, Any]]
"""{name of a parameter: {"": its value, key: its state in the optimizer, ...}}."""
_SEPARATOR = "\n"
"""Separator between the names of a parameter and of a tensor of its state."""


def shares_by_server(named: Mapping[str, nn.Parameter], servers: int) -> list[dict[str, nn.Parameter]]:
    """Parameters of each server, by name; the same on all ranks. Balanced by elements. No parameter is split,
    so that every optimizer works on them unchanged."""
    owners = balanced_owners([p.numel() for p in named.values()], servers)
    parts: list[dict[str, nn.Parameter]] = [{} for _ in range(servers)]
    for (name, parameter), owner in zip(named.items(), owners, strict=True):
        parts[owner][name] = parameter
    return parts


def restricted_optimizer(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> Optimizer:
    """Copy of the optimizer for the given ones of its parameters, with the same groups and an empty state.
    The original is not changed."""
    own = copy.copy(optimizer)
    own_parameters = set(parameters.values())
    own.param_groups = [
        {**group, "params": [p for p in group["params"] if p in own_parameters]}
        for group in optimizer.param_groups
    ]
    own.state = defaultdict(dict)
    return own


def content_of(parameters: Mapping[str, nn.Parameter], optimizer: Optimizer) -> Content:
    """Values of the parameters and their optimizer state. Tensors are shared, not copied: valid until the
    next step."""
    return {name: {"": p.detach(), **optimizer.state.get(p, {})} for name, p in parameters.items()}


class Share:
    """One server's part of the parameters and of the optimizer. Every change is atomic in the file `path`:
    after a restart the new process continues with the last complete step. Not thread-safe: callers hold a
    lock.
    """

    def __init__(
        self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, path: Path | None, workers: int
    ) -> None:
        """parameters: of this server, moved into the buffer in place. optimizer: over these only. path: file
        in /dev/shm; if it exists, its state replaces that of the arguments. None: private memory."""
        self.layout, self.workers = flat.layout_of(parameters), workers
        self.groups = len(optimizer.param_groups)
        self._parameters, self._optimizer = parameters, optimizer
        self._record: dict[str, Any] = {
            "generation": None,
            "version": 0,
            "applied": [-1] * workers,
            "values": {},
        }
        """Everything that is no tensor, in JSON. applied: last gradient of each worker, -1: none. values:
        optimizer state that is no tensor, by parameter and key."""
        existing = DoubleBuffer.open_existing(path)
        if existing is not None:
            self._record = json.loads(existing.record)
        tensors = {name: p.detach().cpu() for name, p in parameters.items()}
        self._buffer = existing or DoubleBuffer(path)
        if existing is None:
            self._buffer.rebuild(tensors, self._encoded_record())
        self._bind(self._buffer.current)
        for name, values in self._record["values"].items():
            self._optimizer.state[parameters[name]] |= values

    @property
    def generation(self) -> str | None:
        """Server generation of this state. None: only the script's initial weights."""
        generation: str | None = self._record["generation"]
        return generation

    @property
    def version(self) -> int:
        """Steps done in this server generation."""
        version: int = self._record["version"]
        return version

    def has_applied(self, worker: int, n: int) -> bool:
        """Whether the worker's gradient `n`, or a later one, is applied in this server generation."""
        applied: int = self._record["applied"][worker]
        return n <= applied

    def weights(self) -> AbstractContextManager[memoryview]:
        """Context with the bytes of the weights, in `layout`; they stay unchanged in it."""
        return self._buffer.reading(len(self._parameters))

    def step(
        self,
        gradients: Sequence[torch.Tensor | None],
        values: Hyperparameters,
        applied: Mapping[int, int],
        staleness: int = 0,
    ) -> None:
        """Make one step of the optimizer. gradients: one for each parameter, in order; None: the parameter is
        not stepped. applied: {worker: n} of the gradients in it. staleness: above 1 divides the learning
        rate.

        The step is made in the other half of the buffer, and valid with _commit().
        """
        set_hyperparameters(self._optimizer, values)
        if staleness > 1:
            for group in self._optimizer.param_groups:  # until the next gradient brings its own rates
                group["lr"] = group["lr"] / staleness
        self._bind(self._buffer.begin_draft())
        for parameter, gradient in zip(self._parameters.values(), gradients, strict=True):
            parameter.grad = gradient
        self._optimizer.step()
        for parameter in self._parameters.values():
            parameter.grad = None
        self._record["version"] += 1
        for worker, n in applied.items():
            self._record["applied"][worker] = n
        self._commit()

    def synchronize_halves(self) -> None:
        """Copy the last step to the other half, if that is not done, so that the next step need not wait for
        it."""
        self._buffer.synchronize_halves()

    def content(self) -> Content:
        """Parameters and optimizer state, not copied: valid until the next change."""
        return content_of(self._parameters, self._optimizer)

    def check_content(self, content: Any) -> None:
        """Raise DecodeError unless `content` has a value of the right shape and dtype for each parameter."""
        for name, p in self._parameters.items():
            parts = content.get(name) if isinstance(content, dict) else None
            value = parts.get("") if isinstance(parts, dict) else None
            if not isinstance(value, torch.Tensor) or (value.shape, value.dtype) != (p.shape, p.dtype):
                raise DecodeError(
                    f"a value of {tuple(p.shape)} {p.dtype} is needed for parameter {name}: workers and "
                    "servers must run the same script and build the same model"
                )

    def replace_content(self, content: Content, generation: str) -> None:
        """Replace the whole state by this content, and begin the server generation: version 0, no gradient
        applied. Check it by check_content() first."""
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
        """Make the step valid. A step that has changed tensors in place is committed; one that has created or
        replaced tensors needs a new layout."""
        current = self._tensors()
        draft = self._bound  # by step(), before the optimizer ran
        in_place = current.keys() == draft.keys() and all(
            tensor.data_ptr() == draft[name].data_ptr() and tensor.shape == draft[name].shape
            for name, tensor in current.items()
        )
        if in_place:
            self._buffer.commit(self._encoded_record())
        else:  # the first step makes state; an optimizer may replace its tensors at every step
            self._rebuild()

    def _rebuild(self) -> None:
        """Write the present tensors and the record to a new buffer, atomically, and use the tensors in it."""
        self._buffer.rebuild(self._tensors(), self._encoded_record())
        self._bind(self._buffer.current)

    def _tensors(self) -> Tensors:
        """All tensors of the share by their names in the buffer, weights first."""
        weights = {name: p.detach() for name, p in self._parameters.items()}
        return weights | {
            f"{name}{_SEPARATOR}{key}": value for name, key, value in self._state() if _is_tensor(value)
        }

    def _encoded_record(self) -> bytes:
        """The record as JSON, with the present optimizer state that is no tensor."""
        values: dict[str, dict[str, Any]] = {}
        for name, key, value in self._state():
            if not _is_tensor(value):
                values.setdefault(name, {})[key] = value
        self._record["values"] = values
        return json.dumps(self._record).encode()

    def _state(self) -> Iterator[tuple[str, str, Any]]:
        """Optimizer state: (parameter, key, value)."""
        for name, p in self._parameters.items():
            for key, value in self._optimizer.state.get(p, {}).items():
                yield name, key, value

    def _bind(self, tensors: Tensors) -> None:
        """Point the parameters and the optimizer's state to these tensors of the buffer."""
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
