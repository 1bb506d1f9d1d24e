"""Learning rates for large batches, and the norm of gradients, against their formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import Strategy, StrategyError
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.strategies.largebatch import LARS_COEFFICIENT
from ropeteam_trainer.strategies.wrap import LoopValues, Wrapped, wrap

ALONE = World(0, 1, torch.device("cpu"))
GRADIENTS = torch.arange(6.0).reshape(3, 2) + 1, torch.tensor([1.0, -2.0, 3.0])


def wrapped(
    optimizer: type[torch.optim.Optimizer], done: int = 0, /, rate: Any = None, **settings: Any
) -> Wrapped:
    """A layer with gradients, and its optimizer under the strategy."""
    torch.manual_seed(0)
    layer = nn.Linear(2, 3)
    for parameter, gradient in zip(layer.parameters(), GRADIENTS, strict=True):
        parameter.grad = gradient.clone()
    plain = optimizer(layer.parameters(), **settings)
    fields = {"learning_rate": rate or {}, "batch": {"global_samples": 512}}
    return wrap(
        layer, plain, codec.from_plain(Strategy, fields), ALONE, LoopValues(lambda: 1.0, lambda: done)
    )


def moves(made: Wrapped) -> list[torch.Tensor]:
    """Changes of weight and bias by one step."""
    before = [p.detach().clone() for p in made.model.parameters()]
    made.optimizer.step()
    return [p.detach() - old for p, old in zip(made.model.parameters(), before, strict=True)]


@pytest.mark.parametrize(("scaling", "factor"), [("None", 1), ("Linear", 16), ("SquareRoot", 4)])
def test_the_rate_follows_the_batch(scaling: str, factor: float) -> None:
    made = wrapped(torch.optim.SGD, rate={"scaling": scaling, "base_batch": 32}, lr=0.01)
    assert made.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * factor)


def test_a_warm_up_climbs_in_a_line_and_leaves_the_rate_as_it_is() -> None:
    rate = {"warmup_steps": 3}
    whole = moves(wrapped(torch.optim.SGD, lr=0.1))[0]
    for done, part in ((0, 0.25), (1, 0.5), (2, 0.75), (3, 1.0), (99, 1.0)):
        made = wrapped(torch.optim.SGD, done, rate=rate, lr=0.1)
        torch.testing.assert_close(moves(made)[0], whole * part)
        assert made.optimizer.param_groups[0]["lr"] == 0.1


def test_a_scheduler_made_afterwards_takes_the_scaled_rate_for_its_base() -> None:
    made = wrapped(torch.optim.SGD, rate={"scaling": "Linear", "base_batch": 256, "warmup_steps": 1}, lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(made.optimizer, lambda step: 1 / (step + 1))
    made.optimizer.step()
    scheduler.step()
    assert made.optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_lars_scales_the_step_of_a_matrix_to_its_norm() -> None:
    made = wrapped(torch.optim.SGD, rate={"trust_ratio": "LARS"}, lr=2.0, weight_decay=0.1)
    weight, bias = (p.detach().clone() for p in made.model.parameters())
    of_weight, of_bias = GRADIENTS
    ratio = LARS_COEFFICIENT * weight.norm() / (of_weight.norm() + 0.1 * weight.norm())
    found = moves(made)
    torch.testing.assert_close(found[0], -2.0 * ratio * (of_weight + 0.1 * weight))
    torch.testing.assert_close(found[1], -2.0 * (of_bias + 0.1 * bias))
    assert made.optimizer.param_groups[0]["weight_decay"] == 0.1


def test_lamb_scales_the_step_of_adam_to_the_norm_of_the_matrix() -> None:
    settings = {"lr": 0.01, "weight_decay": 0.1}
    made = wrapped(torch.optim.AdamW, rate={"trust_ratio": "LAMB"}, **settings)
    weight = next(made.model.parameters()).detach().clone()
    plain = moves(wrapped(torch.optim.AdamW, **settings))
    found = moves(made)
    torch.testing.assert_close(found[0], plain[0] * weight.norm() / (plain[0].norm() / 0.01))
    torch.testing.assert_close(found[1], plain[1])


@pytest.mark.parametrize(("ratio", "optimizer"), [("LARS", torch.optim.AdamW), ("LAMB", torch.optim.SGD)])
def test_a_trust_ratio_for_another_optimizer_is_refused(ratio: str, optimizer: Any) -> None:
    with pytest.raises(StrategyError, match=f"{ratio} requires"):
        wrapped(optimizer, rate={"trust_ratio": ratio}, lr=0.1)


@pytest.mark.parametrize("most", [1.0, 100.0])
def test_gradients_are_clipped_to_their_norm(most: float) -> None:
    made = wrapped(torch.optim.SGD, lr=0.1)
    whole = math.sqrt(sum(float((each**2).sum()) for each in GRADIENTS))
    assert float(made.clip_grad_norm(most)) == pytest.approx(whole)
    after = math.sqrt(sum(float((p.grad**2).sum()) for p in made.model.parameters() if p.grad is not None))
    assert after == pytest.approx(min(most, whole), rel=1e-5)
