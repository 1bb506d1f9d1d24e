"""Names of tensors, which are all that two layouts of one model have in common. No I/O.

    <object>.<name>                     a parameter or buffer of a module (or of several, for a pipeline)
    <object>.state.<name>.<key>         the optimizer's state of a parameter, such as `exp_avg`

`object` is what restore() was given it as. `name` is the parameter's name in the model as it was written:
without what wrappers put into it. A parameter of a module that was given as anything else than `model` has
that before its name, in an optimizer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import nn
from torch.nn.parallel import DistributedDataParallel

_WRAPPERS = ("_checkpoint_wrapped_module", "_orig_mod")
"""Activation checkpointing and torch.compile."""
_SHOWN = 4


def plain_name(module: nn.Module, name: str) -> str:
    """The name without wrappers. DDP's is known by its place: others may be called `module` too."""
    kept = []
    at: object = module
    for part in name.split("."):
        if part not in _WRAPPERS and not (part == "module" and isinstance(at, DistributedDataParallel)):
            kept.append(part)
        at = getattr(at, part, None)
    return ".".join(kept)


def parameter_name(object_name: str, name: str) -> str:
    """What an optimizer's state is called by."""
    return name if object_name == "model" else f"{object_name}.{name}"


def state_name(optimizer: str, parameter: str, key: str) -> str:
    return f"{optimizer}.state.{parameter}.{key}"


def misfit(missing: Collection[str], surplus: Collection[str], shapes: Collection[str]) -> str:
    """What is wrong between a checkpoint and what it shall be loaded into; empty if they fit."""
    faults = []
    if missing:
        faults.append(f"it lacks {shortened(missing)}")
    if surplus:
        faults.append(f"nothing here takes its {shortened(surplus)}")
    faults += sorted(shapes)[:_SHOWN]
    if not faults:
        return ""
    return (
        f"{'; '.join(faults)}. The model or what the optimizer trains has changed since. Give restore() what "
        "was saved, or begin anew with spec.resume.policy Never."
    )


def shortened(names: Iterable[str]) -> str:
    """Some of them, in order, and how many more there are."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more
