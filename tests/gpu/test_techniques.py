"""Every technique on a GPU trains what one process trains there.

A rank alone exchanges by NCCL. Several share the GPU, by gloo, which all-reduces, broadcasts and gathers
tensors of a GPU, and dies or ends the connection if it shall do more (torch 2.11): rings, pipelines, tensor
parallelism and sharded gradients or parameters of several ranks need a GPU each.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trainer.test_techniques import EXACT, trained

BY_GLOO = ("all-reduce", "micro-batches", "recompute", "composable", "PowerSGD", "TopK", "ZeRO-1")
REQUESTS = {
    f"{world}, {name}": (world, strategy)
    for world in (1, 2, 4)
    for name, strategy in EXACT[world].items()
    if world == 1 or name.startswith(BY_GLOO)
}


@pytest.mark.parametrize("name", REQUESTS)
def test_losses_gradients_and_weights_are_those_of_one_process(name: str, tmp_path: Path) -> None:
    world, strategy = REQUESTS[name]
    found = trained(tmp_path, world, {name: strategy}, device="cuda:0")[name]
    figures = {key: found[key] for key in ("loss", "gradient", "weight")}
    print(name, figures)
    assert max(found["loss"], found["gradient"]) <= 1e-5, figures
    assert found["weight"] <= 2e-4, figures


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("precision", ["BFloat16", "Float16"])
def test_half_precision_lowers_the_loss(precision: str, world: int, tmp_path: Path) -> None:
    """A step is not taken where the scale of Float16's loss is still too large, so it is behind."""
    found = trained(tmp_path, world, {precision: {"precision": precision}}, device="cuda:0")
    losses = found[precision]["losses"]
    print(precision, world, losses)
    assert losses[-1] < losses[0] - 0.5
