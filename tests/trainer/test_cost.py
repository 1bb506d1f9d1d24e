"""The arithmetic of plans: idle time against torch's own schedules, micro-batches, rare settings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import Pipelining, Schedule, Strategy, SyncType
from ropeteam_trainer.partition import cost
from ropeteam_trainer.partition.answer import ModelPart, Tensor
from ropeteam_trainer.partition.layout import layout, micro_batches_per_step, scheduled_micro_batches
from ropeteam_trainer.partition.learningrate import learning_rate_factor
from ropeteam_trainer.planning.measure import join_fake_world
from ropeteam_trainer.strategies import pipeline

UNITS = {"F": 1, "B": 2, "I": 1, "W": 1}
"""Time of a forward pass, a backward pass, and its two halves."""
Action = tuple[str, int, int]


def strategy(**fields: Any) -> Strategy:
    return codec.from_plain(Strategy, fields)


def part(*shapes: tuple[int, ...], optimizer: int | None = 0, **more: Any) -> ModelPart:
    tensors = tuple(Tensor(shape, math.prod(shape), 4, True) for shape in shapes)
    return ModelPart(0, tensors, **{"groups": 1, "optimizer": optimizer, **more})


@pytest.fixture
def alone() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("schedule", Schedule)
def test_a_pipeline_waits_as_long_as_its_schedule_makes_it(schedule: Schedule, ranks: int) -> None:
    for stages in (2, 3) if schedule in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE) else (1,):
        for count in (ranks, 2 * ranks, 4 * ranks):
            chosen = strategy(
                pipelining={"schedule": schedule.value, "micro_batches": count, "stages_per_rank": stages}
            )
            expected = idle(orders(schedule, ranks, count, stages), ranks * stages - 1)
            assert cost.bubble(chosen, ranks, count) == pytest.approx(expected), (stages, count)


def orders(schedule: Schedule, ranks: int, count: int, stages: int) -> dict[int, list[Action]]:
    """Computations of each rank in their order, as torch has it: kind, stage, micro-batch."""
    join_fake_world(0, ranks)
    device, total = torch.device("cpu"), ranks * stages
    made = [PipelineStage(nn.Linear(1, 1), number * ranks, total, device) for number in range(stages)]
    several = pipeline._SCHEDULES[schedule](
        made if stages > 1 else made[0], n_microbatches=count, loss_fn=lambda output, _: output.sum()
    )
    order = several.pipeline_order or several._get_pipeline_order()
    found = {
        rank: [
            (a.computation_type.value, a.stage_index, a.microbatch_index)
            for a in actions
            if a and a.computation_type.value in UNITS
        ]
        for rank, actions in order.items()
    }
    return found if stages > 1 else {rank: numbered(actions) for rank, actions in found.items()}


def numbered(actions: list[Action]) -> list[Action]:
    """Micro-batches in their order: torch's plan of OneForwardOneBackward has wrong numbers (2.13)."""
    seen = {"F": -1, "B": -1}
    result = []
    for kind, stage, _ in actions:
        seen[kind] += 1
        result.append((kind, stage, seen[kind]))
    return result


def idle(todo: dict[int, list[Action]], last: int) -> float:
    """The part of the time in which a rank waits for the others."""
    done: dict[Action, float] = {}
    free = dict.fromkeys(todo, 0.0)
    busy = sum(UNITS[kind] for kind, _, _ in todo[0])
    while any(todo.values()):
        for rank, actions in todo.items():
            while actions and all(need in done for need in needs(actions[0], last)):
                kind, stage, number = action = actions.pop(0)
                begin = max([free[rank], *(done[need] for need in needs(action, last))])
                free[rank] = done["I" if kind == "B" else kind, stage, number] = begin + UNITS[kind]
    return 1 - busy / max(free.values())


def needs(action: Action, last: int) -> list[Action]:
    """Backward passes go by their gradients of inputs, "I"."""
    kind, stage, number = action
    if kind == "F":
        return [("F", stage - 1, number)] if stage else []
    if kind == "W":
        return [("I", stage, number)]
    return [("F", stage, number), *([("I", stage + 1, number)] if stage < last else [])]


@pytest.mark.parametrize(
    ("fields", "world", "micro_batches"),
    [
        ({}, 2, 1),
        ({"batch": {"micro_samples": 4}}, 2, None),
        ({"batch": {"micro_samples": 4, "global_samples": 50}}, 2, 7),
        ({"parallelism": {"pipeline": 2}}, 2, 4),
        ({"parallelism": {"pipeline": 2}, "batch": {"global_samples": 6}}, 2, 3),
        ({"parallelism": {"pipeline": 2}, "pipelining": {"schedule": "GPipe", "micro_batches": 1}}, 2, 1),
        ({"parallelism": {"pipeline": 2}, "pipelining": {"micro_batches": 1}}, 2, 2),
        ({"parallelism": {"pipeline": 2}, "batch": {"global_samples": 1}}, 2, 2),
        (
            {"parallelism": {"pipeline": 2}, "pipelining": {"schedule": "Interleaved"},
             "batch": {"global_samples": 24}},
            4,
            6,
        ),
    ],
)  # fmt: skip
def test_a_batch_is_computed_in_micro_batches(
    fields: dict[str, Any], world: int, micro_batches: int | None
) -> None:
    chosen = strategy(**fields)
    assert micro_batches_per_step(chosen, layout(chosen, world)) == micro_batches


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_batch_is_split_so_that_its_schedule_takes_it(schedule: Schedule, ranks: int) -> None:
    for wanted in (None, 1, 5, 16):
        settings = Pipelining(schedule, wanted)
        most = wanted or 2 * ranks * settings.stage_count_per_rank
        for samples in range(1, 40):
            count = scheduled_micro_batches(samples, settings, ranks)
            assert count >= (1 if schedule is Schedule.GPIPE else ranks)
            assert count % (ranks if settings.needs_several_stages else 1) == 0
            assert count <= max(most, ranks)


def test_diloco_keeps_the_weights_in_common_and_their_momentum() -> None:
    for local, copies in (
        ({}, 0),
        ({"outer_learning_rate_per_mille": 700}, 2),
        ({"outer_learning_rate_per_mille": 700, "outer_momentum_per_mille": 0}, 1),
    ):
        chosen = strategy(sync={"type": "Local", "local": local})
        held = cost.memory(part((10, 10), optimizer=800), chosen, layout(chosen, 2), 1)
        assert (held.optimizer, held.total) == (800 + 400 * copies, 1600 + 400 * copies)


def test_an_optimizer_that_nobody_knows_stays_unknown() -> None:
    held = cost.memory(part((10,), optimizer=None), Strategy(), layout(Strategy(), 2), 1)
    assert (held.optimizer, held.total) == (None, 80)


def test_gradients_of_shards_are_whole_while_pieces_are_added_up() -> None:
    chosen = strategy(sharding="Gradients")
    grid = layout(chosen, 4)
    assert [cost.memory(part((10,)), chosen, grid, count).gradients for count in (1, 2)] == [40, 160]
    exact = strategy(sharding="Gradients", sync={"type": "Exact"})
    assert cost.memory(part((10,)), exact, grid, 2).gradients == 40, "each micro-batch is reduced at once"


def test_frozen_parameters_are_gathered_and_not_reduced() -> None:
    frozen = part((100,), groups=1)
    frozen = ModelPart(0, (*frozen.tensors, Tensor((300,), 300, 4, False)), 1, 0)
    chosen = strategy(sharding="Parameters")
    sent = cost.traffic(frozen, chosen, layout(chosen, 2), 1).sent
    assert sent == 2 * 400 * 4 + 100 * 4
    assert cost.memory(frozen, Strategy(), layout(Strategy(), 2), 1) == cost.Memory(1600, 400, 0)


def test_power_sgd_sends_small_gradients_as_they_are() -> None:
    chosen = strategy(gradient_compression={"type": "PowerSGD", "power_sgd": {"rank": 4}})
    shapes = [(100, 50), (7,), (2, 2), (), (0, 3)]
    sent = cost.traffic(part(*shapes), chosen, layout(chosen, 2), 1).sent
    assert sent == 4 * (4 * 150 + 7 + 4 + 1)


def test_every_way_to_keep_copies_the_same_has_a_price() -> None:
    for kind in SyncType:
        chosen = strategy(sync={"type": kind.value})
        assert cost.traffic(part((10,)), chosen, layout(chosen, 2), 1).sent > 0, kind


def test_neighbours_average_often_and_all_of_them_rarely() -> None:
    local = {"every_steps": 2, "groups_of": 2, "all_every_steps": 8}
    chosen = strategy(sync={"type": "Local", "local": local})
    sent = cost.traffic(part((100,)), chosen, layout(chosen, 4), 1)
    in_pairs, of_all = 400, 600
    assert sent.sent == (3 * in_pairs + of_all) / 8
    assert sent.collectives == 1 / 2


def test_one_rank_sends_nothing() -> None:
    assert cost.traffic(part((10,)), Strategy(), layout(Strategy(), 1), 1) == cost.NO_TRAFFIC


@pytest.mark.parametrize(("scaling", "factor"), [("None", 1), ("Linear", 16), ("SquareRoot", 4)])
def test_the_rate_follows_the_batch(scaling: str, factor: float) -> None:
    chosen = strategy(learning_rate={"scaling": scaling, "base_batch": 32}).learning_rate
    assert learning_rate_factor(chosen, 512) == factor


def test_servers_take_the_optimizer_and_send_what_they_are_sent() -> None:
    chosen = strategy(sync={"type": "ParameterServer", "parameter_server": {"servers": 2}})
    whole = part((100,), (60,), (50,), optimizer=2 * 4 * 210)
    grid = layout(chosen, 3)
    assert chosen.servers == 2
    assert cost.memory(whole, chosen, grid, 1) == cost.Memory(840, 840, 0)
    assert cost.traffic(whole, chosen, grid, 1) == cost.Traffic(840, 0, 4)
    assert cost.largest_server_memory(whole, 2) == cost.Memory(440, 440, 880)
    assert cost.largest_server_memory(part((3,), optimizer=None), 1).optimizer is None
