"""State of an optimizer by names of parameters, so that any layout can load it.

Tensors are saved with those of the model; the rest is a `part` of plain values, of which each rank has its
own (in a pipeline, or with ZeRO-1), merged into one:

    groups    [{"names": [...], "values": {"lr": 0.1, ...}}, ...]
    tensors   {name: [keys of its tensors]}
    values    {name: {key: value that is no tensor}}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from ropeteam_trainer.checkpoint.format.metadata import Saved, SavedTensor
from ropeteam_trainer.checkpoint.format.names import state_name
from ropeteam_trainer.checkpoint.objects.tensorshard import is_sharded

OptimizerPart = dict[str, Any]
Names = Mapping[torch.Tensor, str]
NOT_VALUES = ("params", "param_names", "foreach", "fused", "capturable", "differentiable")
"""Fields of a group that are not saved: the script sets how to compute, and another layout may need other
settings."""


def capture(name: str, optimizer: Optimizer, names: Names) -> tuple[dict[str, torch.Tensor], OptimizerPart]:
    """This rank's tensors by full name, and its part of the plain values. Nothing is copied. `name`: of the
    optimizer. `names`: of all its parameters (check_names). Raises TypeError for a sharded tensor that is not
    shaped like its parameter: it could not be restored."""
    tensors: dict[str, torch.Tensor] = {}
    part: OptimizerPart = {"groups": [], "tensors": {}, "values": {}}
    inner = _local_optimizer(optimizer)
    for parameter in _parameters(inner):
        param_name = names[parameter]
        for key, value in inner.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                full = state_name(name, param_name, key)
                if is_sharded(value) and value.shape != parameter.shape:
                    raise TypeError(
                        f"{full} is sharded, but not shaped like its parameter, so no other layout could "
                        "load it; use an optimizer whose state is shaped like its parameters"
                    )
                tensors[full] = value
                part["tensors"].setdefault(param_name, []).append(key)
            else:
                part["values"].setdefault(param_name, {})[key] = value
    for group in optimizer.param_groups:
        values = {key: value for key, value in group.items() if key not in NOT_VALUES}
        part["groups"].append({"names": [names[p] for p in group["params"]], "values": values})
    return tensors, part


def merge(parts: Iterable[OptimizerPart]) -> OptimizerPart:
    """Parts of all ranks, merged into one. An entry that several ranks have is the same on all, so the first
    is used. A group is split where ranks have different parameters of it; _set_hyperparameters() joins it
    again."""
    whole: OptimizerPart = {"groups": [], "tensors": {}, "values": {}}
    seen: set[str] = set()
    for part in parts:
        for group in part["groups"]:
            new = [name for name in group["names"] if name not in seen]
            seen.update(new)
            if new:
                whole["groups"].append({"names": new, "values": group["values"]})
        for kind in ("tensors", "values"):
            whole[kind] = part[kind] | whole[kind]
    return whole


def parameter_names(part: OptimizerPart) -> set[str]:
    """Names of the parameters that the saved optimizer trained."""
    return {name for group in part["groups"] for name in group["names"]}


def check_names(name: str, optimizer: Optimizer, names: Names) -> None:
    """Raise ValueError for a parameter that has no name, because no given module holds it."""
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if parameter not in names:
                raise ValueError(
                    f"{name!r} trains a parameter of shape {tuple(parameter.shape)} (group {number}) that is "
                    "in no module given to restore(). Pass all modules: model=[network, loss]. Create an "
                    "optimizer after fully_shard() and other wrappers that replace parameters."
                )


def prepare(
    name: str, optimizer: Optimizer, names: Names, part: OptimizerPart, saved: Saved
) -> dict[str, torch.Tensor]:
    """Set hyperparameters, and replace the state by a new one with the saved plain values. Returns the new
    tensors, by full name, not initialized: the caller fills them. `part`: of all ranks, merged. Raises
    ValueError for groups that do not fit, and KeyError for a parameter that was not saved."""
    _set_hyperparameters(name, optimizer, names, part["groups"])
    allocated: dict[str, torch.Tensor] = {}
    inner = _local_optimizer(optimizer)
    for group in inner.param_groups:
        for parameter in group["params"]:
            param_name = names[parameter]
            state = dict(part["values"].get(param_name, {}))
            for key in part["tensors"].get(param_name, ()):
                full = state_name(name, param_name, key)
                state[key] = allocated[full] = _empty_state(key, saved[full], parameter, group)
            inner.state.pop(parameter, None)
            if state:
                inner.state[parameter] = state
    return allocated


def _empty_state(
    key: str, saved: SavedTensor, parameter: torch.Tensor, group: Mapping[str, Any]
) -> torch.Tensor:
    """Tensor, not initialized, as the optimizer itself would create it: like the parameter (also sharded like
    it), or a small one that each rank has whole. torch keeps `step` on the CPU unless a group is capturable
    or fused."""
    on_cpu = key == "step" and not (group.get("capturable") or group.get("fused"))
    if key != "step" and saved.shape == tuple(parameter.shape):
        return torch.empty_like(parameter, dtype=saved.dtype, requires_grad=False)
    return torch.empty(saved.shape, dtype=saved.dtype, device="cpu" if on_cpu else parameter.device)


def _set_hyperparameters(
    name: str, optimizer: Optimizer, names: Names, groups: Sequence[Mapping[str, Any]]
) -> None:
    """Set the saved values in all groups. Raises ValueError for a group whose parameters were saved with
    different values, and KeyError for a parameter that was not saved."""
    number_of = {param_name: number for number, group in enumerate(groups) for param_name in group["names"]}
    for group in optimizer.param_groups:
        sources = {number_of[names[parameter]] for parameter in group["params"]}
        choices = [groups[number]["values"] for number in sorted(sources)]
        for key in choices[0] if choices else ():
            if any(_without_tensor(values[key]) != _without_tensor(choices[0][key]) for values in choices):
                raise ValueError(
                    f"a group of {name!r} joins parameters that were saved with different {key!r}: "
                    "group them as they were when the checkpoint was saved"
                )
            _set_hyperparameter(group, key, choices[0][key])


def _set_hyperparameter(group: dict[str, Any], key: str, value: Any) -> None:
    """Set one value in a group. A learning rate that is a tensor stays the same tensor: compiled code
    references it."""
    if isinstance(group.get(key), torch.Tensor):
        group[key].fill_(value)
    else:
        group[key] = _without_tensor(value)


def _without_tensor(value: Any) -> Any:
    """Value to compare and set: a number or list in the place of a tensor."""
    return value.tolist() if isinstance(value, torch.Tensor) else value


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _local_optimizer(optimizer: Optimizer) -> Optimizer:
    """Optimizer that holds this rank's state. With ZeRO-1 it is inside of another one, which lists all
    parameters."""
    is_zero = type(optimizer).__name__ == "ZeroRedundancyOptimizer"
    inner: Optimizer = optimizer.optim if is_zero else optimizer  # type: ignore[attr-defined]
    return inner
