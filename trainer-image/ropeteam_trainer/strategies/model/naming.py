"""Parameters keep their names through every technique: those of checkpoints, optimizers and users."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim import Optimizer

from ropeteam_trainer.checkpoint.format.names import plain_name


def named_parameters(parts: Iterable[nn.Module]) -> dict[str, nn.Parameter]:
    """All parameters of the parts of a model, by their names in the full model, without the prefixes of
    wrappers."""
    return {plain_name(part, name): p for part in parts for name, p in part.named_parameters()}


def rebind_optimizer(
    optimizer: Optimizer, before: dict[str, nn.Parameter], parts: Iterable[nn.Module]
) -> None:
    """Point an optimizer that was created for the parameters `before` to those of `parts`, in place, by their
    names.

    Techniques replace parameters (by shards of them) or remove them (other stages have them). Parameters that
    are not in `before` stay. Call it before the optimizer's first step: `optimizer.state` is not moved.
    """
    names = {id(p): name for name, p in before.items()}
    now = named_parameters(parts)
    for group in optimizer.param_groups:
        known = [(names.get(id(p)), p) for p in group["params"]]
        group["params"] = [now[name] if name else p for name, p in known if name is None or name in now]
