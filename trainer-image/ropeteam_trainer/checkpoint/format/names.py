"""Names of tensors, the only thing that two layouts of one model have in common. No I/O.

    <object>.<name>                     a parameter or buffer of a module (or of several, for a pipeline)
    <object>.state.<name>.<key>         the optimizer's state of a parameter, such as `exp_avg`

`object` is its keyword in the call of restore(). `name` is the parameter's name in the model as it was
written: without the parts that wrappers add. In an optimizer, the parameter of a module that was given by
another keyword than `model` has that keyword before its name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import nn
from torch.nn.parallel import DistributedDataParallel

_WRAPPERS = ("_checkpoint_wrapped_module", "_orig_mod")
"""Name parts that activation checkpointing and torch.compile add."""
_SHOWN = 4


def plain_name(module: nn.Module, name: str) -> str:
    """Name of a parameter or buffer of `module` without the parts that wrappers add. DDP's `module` is
    recognized by its class: other modules may have that name, too."""
    parts_shown = []
    at: object = module
    for part in name.split("."):
        if part not in _WRAPPERS and not (part == "module" and isinstance(at, DistributedDataParallel)):
            parts_shown.append(part)
        at = getattr(at, part, None)
    return ".".join(parts_shown)


def parameter_name(object_name: str, name: str) -> str:
    """Name of a parameter in an optimizer's state. `object_name`: keyword of its module in the call of
    restore()."""
    return name if object_name == "model" else f"{object_name}.{name}"


def state_name(optimizer: str, parameter: str, key: str) -> str:
    """Name of a tensor in an optimizer's state, in the checkpoint. `parameter`: as parameter_name() returns
    it."""
    return f"{optimizer}.state.{parameter}.{key}"


def misfit(missing: Collection[str], surplus: Collection[str], shapes: Collection[str]) -> str:
    """Differences between a checkpoint and the objects that it is loaded into, with advice, for a person; ""
    if they fit. `missing`: names that only the objects have; `surplus`: that only the checkpoint has."""
    faults = []
    if missing:
        faults.append(f"it does not have {shortened(missing)}")
    if surplus:
        faults.append(f"nothing here uses its {shortened(surplus)}")
    faults += sorted(shapes)[:_SHOWN]
    if not faults:
        return ""
    return (
        f"{'; '.join(faults)}. The model or the trained parameters have changed since. Pass to restore() "
        "what was saved, or start again with spec.resume.policy Never."
    )


def shortened(names: Iterable[str]) -> str:
    """The first names, sorted, and the number of further ones, for a person."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more
