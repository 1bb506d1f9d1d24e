"""Sync Exact: one process and any number of ranks have the same losses and weights, to the last bit."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.ranks.processes import RankGroup
from torch import nn
from torch.utils.checkpoint import checkpoint

from ropeteam_trainer.contract.strategy import Batch, Strategy, StrategyError, Sync, SyncType
from ropeteam_trainer.data.decisions.plan import DataPlan, Deal, Position
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.strategies.exact.gradients import Bucket
from ropeteam_trainer.strategies.wrap import LoopValues, Wrapped, wrap


def trained(path: Path, world: int, model: str, *order: str, **strategy: Any) -> dict[str, Any]:
    """Digests and losses of 6 steps, among them a short one at the end of a data epoch."""
    fields = json.dumps({"sync": {"type": "Exact"}, **strategy})
    with RankGroup(path / f"world{world}", world) as group:
        ended = group.start("exact.py", fields, model, "6", *order).wait()
    assert not any(ended.codes), ended.output
    return ended.result


@pytest.mark.parametrize(
    ("micro_batches", "precision"), [(6, "Float32"), (10, "BFloat16"), (24, "Float16"), (16, "Float32")]
)
def test_ranks_train_what_one_process_trains_to_the_last_bit(
    micro_batches: int, precision: str, tmp_path: Path
) -> None:
    fields = {"batch": {"micro_batches": micro_batches}, "precision": precision}
    alone, *others = (trained(tmp_path, world, "everything", **fields) for world in (1, 2, 3, 4))
    assert others == [alone] * 3
    assert len({*alone["digests"]}) == 6, "each step changes the weights"


@pytest.mark.parametrize(
    ("inner", "model"),
    [
        ({"shard": 2}, "tiny"),
        ({"shard": 2}, "tiny, gradients sharded"),
        ({"shard": 2}, "statistics"),
        ({"tensor": 2}, "tiny"),
        ({"shard": 2, "tensor": 2}, "tiny"),
    ],
)
def test_replicas_of_several_ranks_train_what_one_replica_trains(
    inner: dict[str, int], model: str, tmp_path: Path
) -> None:
    ranks = 2 ** len(inner)
    fields: dict[str, Any] = {"parallelism": inner, "batch": {"micro_batches": 8}}
    model, _, sharding = model.partition(", ")
    if sharding:
        fields["sharding"] = "Gradients"
    one, two = (trained(tmp_path, ranks * n, model, **fields) for n in (1, 2))
    assert one == two


def test_a_job_that_resumes_with_more_ranks_trains_what_one_process_trains(tmp_path: Path) -> None:
    """Seed, position, schedule and average are in its checkpoint."""
    whole = trained(tmp_path / "whole", 1, "everything")
    fields = json.dumps({"sync": {"type": "Exact"}})
    digests = []
    for world, steps in ((2, "3"), (3, "6")):
        with RankGroup(tmp_path / f"world{world}", world) as group:
            group.environment = {"CHECKPOINTS": str(tmp_path / "checkpoints")}
            ended = group.start("exact.py", fields, "everything", steps).wait()
        assert not any(ended.codes), ended.output
        digests.append(ended.result["digests"])
    assert [*map(len, digests)] == [3, 3]
    assert digests[0] + digests[1] == whole["digests"]


def test_micro_batches_on_other_leaves_of_the_tree_give_other_bits(tmp_path: Path) -> None:
    """A tree whose order depends on the world would be found by the tests above."""
    alone, two = (trained(tmp_path, world, "everything", "shuffled") for world in (1, 2))
    assert alone["digests"] != two["digests"]
    close = zip(alone["losses"], two["losses"], strict=True)
    assert all(abs(float.fromhex(a) - float.fromhex(b)) < 1e-2 for a, b in close), "it is the same training"


def made(model: nn.Module, loss: Any = nn.functional.mse_loss, **more: Any) -> Wrapped:
    """One rank's model under sync Exact. more: fields of LoopValues."""
    strategy = Strategy(sync=Sync(SyncType.EXACT), batch=Batch(micro_batches=4))
    progress = LoopValues(lambda: 1.0, lambda: 0, **more)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    world = World(0, 1, torch.device("cpu"))
    return wrap(model, optimizer, strategy, world, progress, loss)


def dealt(samples: int) -> dict[str, Any]:
    share = DataPlan(samples, samples).dealt_share(Position(), Deal(4, range(4)))
    return {"leaves": lambda: share.leaves}


class Counts(nn.Linear):
    """A layer with a buffer that forward() changes."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (
            nn.Sequential(nn.Linear(3, 2), nn.SyncBatchNorm(2)),
            torch.zeros(8, 3),
            "layer 1 is a SyncBatchNorm, whose batch depends on the ranks; use BatchNorm, or sync AllReduce",
        ),
        (
            nn.Sequential(nn.Embedding(3, 2, sparse=True)),
            torch.zeros(8, dtype=torch.long),
            "Exact adds dense gradients only, and the model has an embedding with sparse=True",
        ),
        (
            nn.Sequential(nn.Linear(3, 3), Counts()),
            torch.zeros(8, 3),
            "the model's buffer 1.calls changes in forward(), and Exact can combine the changes of BatchNorm",
        ),
    ],
    ids=["SyncBatchNorm", "sparse", "buffer"],
)
def test_a_model_whose_sums_are_not_defined_is_refused(
    model: nn.Module, inputs: torch.Tensor, message: str
) -> None:
    with pytest.raises(StrategyError, match=re.escape(message)):
        made(model, **dealt(8)).model(inputs, torch.zeros(8, 2))


def test_a_loss_with_weights_of_its_own_is_refused() -> None:
    """Without the refusal its gradients would be those of one replica."""
    model, loss = nn.Linear(3, 2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], 0.1)
    strategy, progress = Strategy(sync=Sync(SyncType.EXACT)), LoopValues(lambda: 1.0, lambda: 0)
    with pytest.raises(StrategyError, match="the optimizer has 2 parameters that are not in it; make them"):
        wrap(model, optimizer, strategy, World(0, 1, torch.device("cpu")), progress)


def test_a_batch_that_was_not_dealt_is_refused() -> None:
    with pytest.raises(StrategyError, match=r"use job\.batches\(\), or sync AllReduce"):
        made(nn.Linear(3, 2)).model(torch.zeros(8, 3), torch.zeros(8, 2))


def test_a_part_of_a_batch_is_refused() -> None:
    with pytest.raises(TypeError, match=r"with 5 samples, but the batch of job\.batches\(\) has 8"):
        made(nn.Linear(3, 2), **dealt(8)).model(torch.zeros(5, 3), torch.zeros(5, 2))


def test_a_batch_smaller_than_its_micro_batches_is_computed_whole() -> None:
    torch.manual_seed(0)
    inputs, target = torch.randn(3, 3), torch.randn(3, 2)
    layer, plain = nn.Linear(3, 2), nn.Linear(3, 2)
    plain.load_state_dict(layer.state_dict())
    share = DataPlan(3, 3).dealt_share(Position(), Deal(4, range(4)))
    assert len(share.ids) == 3
    assert len(share.loaded) == 4, "one of the micro-batches has no sample, and computes the filler"
    loss = made(layer, leaves=lambda: share.leaves).model(inputs[[*share.loaded]], target[[*share.loaded]])
    loss.backward()
    expected = nn.functional.mse_loss(plain(inputs), target)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad)


def test_what_the_script_draws_itself_does_not_depend_on_micro_batches() -> None:
    wrapped = made(nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)), **dealt(8))
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    wrapped.model(torch.randn(8, 3, generator=torch.Generator()), torch.zeros(8, 2))
    assert torch.equal(torch.rand(3), expected)


def test_gradients_that_the_script_keeps_stay_as_they_are() -> None:
    layer = nn.Linear(3, 2)
    wrapped = made(layer, **dealt(8))
    wrapped.model(torch.ones(8, 3), torch.zeros(8, 2)).backward()
    gradient = layer.weight.grad
    assert gradient is not None
    before = gradient.clone()
    layer.weight.grad = None
    wrapped.model(torch.full((8, 3), 2.0), torch.zeros(8, 2)).backward()
    assert torch.equal(gradient, before)
    assert layer.weight.grad is not gradient


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (
            "unequal",
            "rank 0 has 1 threads (OMP_NUM_THREADS) and rank 1 has 2 threads (OMP_NUM_THREADS); use equal",
        ),
        ("balance", "would deal parts of micro-batches, and sync Exact deals whole ones; leave balance out"),
    ],
)
def test_all_ranks_refuse_what_would_give_other_bits(order: str, message: str, tmp_path: Path) -> None:
    fields = json.dumps({"sync": {"type": "Exact"}})
    with RankGroup(tmp_path, 2) as group:
        ended = group.start("exact.py", fields, "everything", "1", order).wait()
    assert all(ended.codes)
    assert all(message in output for output in ended.output)


class Twice(nn.Module):
    """A layer that two reentrant checkpoints share: autograd sets its gradient twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=True)
        return x


def test_a_gradient_that_comes_twice_is_refused() -> None:
    inputs = torch.ones(8, 3, requires_grad=True)
    with pytest.raises(
        StrategyError, match="one came twice: checkpoint activations with use_reentrant=False"
    ):
        made(Twice(), **dealt(8)).model(inputs, torch.zeros(8, 3))


def test_a_step_that_failed_is_not_tried_again() -> None:
    wrapped = made(nn.Linear(3, 2), **dealt(8))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        wrapped.model(torch.ones(8, 5), torch.zeros(8, 2))
    with pytest.raises(StrategyError, match=r"a call of model\(\) cannot be tried again after an error"):
        wrapped.model(torch.ones(8, 3), torch.zeros(8, 2))


def test_parameters_that_are_unfrozen_later_are_refused() -> None:
    layer = nn.Linear(3, 2)
    layer.bias.requires_grad_(False)
    wrapped = made(layer, **dealt(8))
    layer.bias.requires_grad_(True)
    with pytest.raises(StrategyError, match=r"set requires_grad before job\.wrap\(\)"):
        wrapped.model(torch.ones(8, 3), torch.zeros(8, 2))


def test_a_buffer_that_is_replaced_is_refused() -> None:
    class Replaces(Counts):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls = self.calls + 1
            return nn.functional.linear(x, self.weight, self.bias)

    with pytest.raises(StrategyError, match="the model's buffer calls changes in forward"):
        made(Replaces(), **dealt(8)).model(torch.ones(8, 3), torch.zeros(8, 2))


def test_an_unused_parameter_counts_as_zero_on_any_leaf() -> None:
    """Else signs of zeros would depend on where a leaf is: -0.0 + 0.0 is 0.0, and -0.0 alone is not."""
    parameter = nn.Parameter(torch.ones(1))
    bucket = Bucket([parameter], 2)
    parameter.grad = torch.tensor([-0.0])
    bucket.take(0)
    bucket.take(1)
    (total,) = bucket.sums.values()
    assert math.copysign(1, float(total.values)) == 1


def test_micro_batches_have_memory_of_their_own() -> None:
    """Kernels may add in another order where memory is aligned otherwise."""
    seen: list[torch.Tensor] = []

    def noted(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.append(target)
        return nn.functional.mse_loss(output, target)

    wrapped = made(nn.Linear(3, 2), loss=noted, **dealt(8))
    target = torch.zeros(8, 2)
    wrapped.model(torch.ones(8, 3), target)
    storages = {each.untyped_storage().data_ptr() for each in (*seen, target)}
    assert len(storages) == 5


def test_bits_may_differ_after_a_checkpoint_of_another_machine(
    capfd: pytest.CaptureFixture[str],
) -> None:
    step: Any = made(nn.Linear(3, 2)).exact
    step.load_state_dict(step.state_dict())
    assert capfd.readouterr().err == ""
    step.load_state_dict({"seed": 1, "computes": "torch 1.0"})
    assert "the checkpoint was made with torch 1.0, and this job has torch" in capfd.readouterr().err
