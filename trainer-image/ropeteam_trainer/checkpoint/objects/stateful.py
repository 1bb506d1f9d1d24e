"""Objects that are saved into a checkpoint and restored from it: modules, optimizers, and others.

Modules and optimizers may be sharded over ranks in any way: their tensors are saved by name. Others (a
scheduler, a scaler) are the same on all ranks; rank 0's state_dict() is saved.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from ropeteam_trainer.checkpoint.format import names
from ropeteam_trainer.checkpoint.format.metadata import Saved
from ropeteam_trainer.checkpoint.objects import optimizers

T = TypeVar("T")
Shared = dict[str, dict[str, Any]]
"""`models` (values in their state that are no tensors) and `optimizers` (their parts): of this rank, or
merged."""


@dataclass
class TrainingState:
    """This rank's part of the training state."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    """The live tensors by full name: nothing is copied."""
    buffers: list[str] = field(default_factory=list)
    """Names of tensors that may differ between ranks; DDP uses rank 0's, and so does a checkpoint."""
    shared: Shared = field(default_factory=lambda: {"models": {}, "optimizers": {}})
    others: dict[str, Any] = field(default_factory=dict)


class _Named:
    """A module, and its names without wrappers, which are computed once."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._plain: dict[str, str] = {}

    def entries(self) -> Iterator[tuple[str, str, Any]]:
        """Entries of its state: the key, the plain name, the value."""
        return self._named(self.module.state_dict().items())

    def parameters(self) -> Iterator[tuple[str, str, nn.Parameter]]:
        """Parameters: the key, the plain name, the parameter. A shared one has an entry for each of its
        names."""
        return self._named(self.module.named_parameters(remove_duplicate=False))

    def _named(self, pairs: Iterable[tuple[str, T]]) -> Iterator[tuple[str, str, T]]:
        for raw, value in pairs:
            if raw not in self._plain:
                self._plain[raw] = names.plain_name(self.module, raw)
            yield raw, self._plain[raw], value


class SavedObjects:
    """Registered objects, by name, sorted into modules, optimizers and others."""

    def __init__(self, objects: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> None:
        """optional: others that a checkpoint need not hold, such as the loss scale of a strategy. Calls
        state_dict() of each object but optimizers, to check it: raises TypeError or ValueError for state that
        could not be loaded again."""
        self._optional = frozenset(optional or {})
        objects = {**objects, **(optional or {})}
        self._modules = {
            name: [_Named(module) for module in _modules(obj)]
            for name, obj in objects.items()
            if _is_model(obj)
        }
        self._optimizers = {name: obj for name, obj in objects.items() if isinstance(obj, Optimizer)}
        self._others = {
            name: obj
            for name, obj in objects.items()
            if name not in self._modules and name not in self._optimizers
        }
        state = TrainingState()
        self._add_models(state)
        names_of = self._parameter_names()
        for name, optimizer in self._optimizers.items():
            optimizers.check_names(name, optimizer, names_of)
        for name, obj in self._others.items():
            _check_plain(name, obj.state_dict())
        for name, extra in state.shared["models"].items():
            _check_plain(name, extra)

    def state(self, with_others: bool) -> TrainingState:
        """Current state: live tensors, not copies. With FSDP a collective. with_others: include the state of
        others, for rank 0. Modules first: FSDP reshards its parameters when its state_dict() is called."""
        state = TrainingState()
        self._add_models(state)
        names_of = self._parameter_names()
        for name, optimizer in self._optimizers.items():
            tensors, part = optimizers.capture(name, optimizer, names_of)
            state.tensors |= tensors
            state.shared["optimizers"][name] = part
        if with_others:
            state.others = {name: obj.state_dict() for name, obj in self._others.items()}
        return state

    def missing(self, shared: Shared, others: Mapping[str, Any]) -> list[str]:
        """Names of the objects, but optional ones, that a checkpoint does not hold. `shared`, `others`: its
        content."""
        pairs = (
            (self._modules, shared["models"]),
            (self._optimizers, shared["optimizers"]),
            (self._others, others),
        )
        absent = (name for mine, theirs in pairs for name in mine if name not in theirs)
        return [name for name in absent if name not in self._optional]

    def compare(self, shared: Shared, saved: Saved) -> tuple[set[str], set[str], list[str]]:
        """Names that only this rank has, names that only the checkpoint has, and a sentence for each shape
        that differs. Names: of tensors and other values of modules, and `<optimizer>: <parameter>`. Call it
        only if missing() is empty."""
        state = TrainingState()
        self._add_models(state)
        mine = set(state.tensors) | _extra_names(state.shared["models"])
        models = {name: shared["models"][name] for name in self._modules}
        theirs = {name for name in saved if name.split(".", 1)[0] in models} | _extra_names(models)
        shapes = [
            f"{name} has shape {list(saved[name].shape)} in it and {list(tensor.shape)} here"
            for name, tensor in state.tensors.items()
            if name in saved and saved[name].shape != tuple(tensor.shape)
        ]
        names_of = self._parameter_names()
        for name, optimizer in self._optimizers.items():
            trained = (names_of[p] for group in optimizer.param_groups for p in group["params"])
            mine |= {f"{name}: {parameter}" for parameter in trained}
            parameters = optimizers.parameter_names(shared["optimizers"][name])
            theirs |= {f"{name}: {parameter}" for parameter in parameters}
        return mine - theirs, theirs - mine, shapes

    def allocate(self, shared: Shared, saved: Saved) -> dict[str, torch.Tensor]:
        """All tensors of this rank, by name, for the caller to fill in place: the live ones of modules, and
        new ones of optimizers, whose state and hyperparameters are replaced here. Raises ValueError for
        groups of an optimizer that do not fit."""
        state = TrainingState()
        self._add_models(state)
        names_of = self._parameter_names()
        for name, optimizer in self._optimizers.items():
            part = shared["optimizers"][name]
            state.tensors |= optimizers.prepare(name, optimizer, names_of, part, saved)
        return state.tensors

    def load(self, tensors: Mapping[str, torch.Tensor], shared: Shared, others: Mapping[str, Any]) -> None:
        """Call load_state_dict() of modules and others: the last part of a restore, once the tensors of
        allocate() are filled. Optimizers have their state already."""
        for name, modules in self._modules.items():
            values = {**tensors, **{f"{name}.{key}": value for key, value in shared["models"][name].items()}}
            for module in modules:
                own = {raw: values[f"{name}.{plain}"] for raw, plain, _ in module.entries()}
                module.module.load_state_dict(own)
        for name, obj in self._others.items():
            if name in others or name not in self._optional:
                obj.load_state_dict(others[name])

    def _add_models(self, state: TrainingState) -> None:
        """Add the state of all modules to `state`: tensors, names of buffers, and other values
        (shared["models"]). Raises ValueError for two tensors of one name."""
        for name, modules in self._modules.items():
            extra: dict[str, Any] = {}
            for module in modules:
                parameters = {plain for _, plain, _ in module.parameters()}
                for _, plain, value in module.entries():
                    full = f"{name}.{plain}"
                    if full in state.tensors or plain in extra:
                        raise ValueError(
                            f"{name!r} has two tensors called {plain}: pass the parts of a model with the "
                            "names that they have in the whole"
                        )
                    if not isinstance(value, torch.Tensor):
                        extra[plain] = value
                        continue
                    state.tensors[full] = value
                    if plain not in parameters:
                        state.buffers.append(full)
            state.shared["models"][name] = extra

    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """Name in optimizers' states of each parameter; a shared parameter has the first of its names. Raises
        ValueError if two have the same name."""
        names_of: dict[torch.Tensor, str] = {}
        for name, modules in self._modules.items():
            for module in modules:
                for _, plain, parameter in module.parameters():
                    names_of.setdefault(parameter, names.parameter_name(name, plain))
        if len(set(names_of.values())) < len(names_of):
            several = [name for name, count in Counter(names_of.values()).items() if count > 1]
            raise ValueError(
                f"two parameters have the same name, {several[0]}: pass restore() modules by other keywords"
            )
        return names_of


def merge(parts: Iterable[Shared]) -> Shared:
    """Shared values of all ranks, merged into one. Of a value of a model that several ranks have, the first
    is used; for optimizers see optimizers.merge."""
    whole: Shared = {"models": {}, "optimizers": {}}
    by_optimizer: dict[str, list[optimizers.OptimizerPart]] = {}
    for part in parts:
        for name, extra in part["models"].items():
            whole["models"][name] = extra | whole["models"].get(name, {})
        for name, optimizer in part["optimizers"].items():
            by_optimizer.setdefault(name, []).append(optimizer)
    whole["optimizers"] = {name: optimizers.merge(found) for name, found in by_optimizer.items()}
    return whole


def _is_model(obj: Any) -> bool:
    """Whether this is a module, or a list of modules: the parts of a model on one rank of a pipeline."""
    return isinstance(obj, nn.Module) or (
        isinstance(obj, list | tuple) and all(isinstance(module, nn.Module) for module in obj)
    )


def _modules(obj: Any) -> Iterator[nn.Module]:
    """Modules of an object for which _is_model() holds. Raises TypeError for the first generation of FSDP."""
    for module in [obj] if isinstance(obj, nn.Module) else obj:
        if any(type(part).__name__ == "FullyShardedDataParallel" for part in module.modules()):
            raise TypeError("FullyShardedDataParallel cannot be saved by Ropeteam; use fully_shard() instead")
        yield module


def _extra_names(models: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Full names of the values in modules' states that are no tensors."""
    return {f"{name}.{key}" for name, extra in models.items() for key in extra}


def _check_plain(name: str, state: Any) -> None:
    """Raise TypeError for state that torch.load(weights_only=True) would refuse. Saves and loads it, in
    memory."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    try:
        torch.load(buffer, weights_only=True)
    except Exception as error:
        raise TypeError(
            f"the state of {name!r} is not made of tensors and plain values alone (numbers, text, lists, "
            f"dicts); return only these from its state_dict(): {error}"
        ) from None
