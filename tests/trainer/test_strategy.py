"""Grids that a strategy makes of a world, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import Strategy, StrategyError
from ropeteam_trainer.partition.layout import GridCoordinate, Layout, layout


def strategy(**fields: Any) -> Strategy:
    return codec.from_plain(Strategy, fields)


def grid(world: int, **parallelism: int) -> str:
    return str(layout(strategy(parallelism=parallelism), world))


@pytest.mark.parametrize(
    ("world", "parallelism", "made"),
    [
        (4, {}, "replicate 4"),
        (1, {}, "1"),
        (4, {"shard": 2}, "replicate 2 x shard 2"),
        (4, {"replicate": 2}, "replicate 2 x shard 2"),
        (4, {"shard": 4}, "shard 4"),
        (8, {"tensor": 2, "pipeline": 2}, "pipeline 2 x replicate 2 x tensor 2"),
        (8, {"replicate": 2, "shard": 2, "tensor": 2}, "replicate 2 x shard 2 x tensor 2"),
        (16, {"tensor": 2, "pipeline": 2, "shard": 2}, "pipeline 2 x replicate 2 x shard 2 x tensor 2"),
    ],
)
def test_what_is_left_out_is_what_is_left(world: int, parallelism: dict[str, int], made: str) -> None:
    assert grid(world, **parallelism) == made


def test_sharding_without_numbers_shards_over_all_ranks() -> None:
    assert str(layout(strategy(sharding="Parameters"), 8)) == "shard 8"


@given(st.builds(Layout, *[st.integers(1, 4)] * 4))
def test_every_rank_has_one_place_and_ranks_of_one_copy_share_their_data(made: Layout) -> None:
    places = [made.coordinate(rank) for rank in range(made.world)]
    assert len(set(places)) == made.world
    assert {made.dp_rank(rank) for rank in range(made.world)} == set(range(made.dp_size))
    by_copy: dict[tuple[int, int], set[int]] = {}
    for rank, coordinate in enumerate(places):
        by_copy.setdefault((coordinate.replicate, coordinate.shard), set()).add(made.dp_rank(rank))
    assert all(len(found) == 1 for found in by_copy.values())


def test_ranks_that_split_a_layer_are_neighbours() -> None:
    made = layout(strategy(parallelism={"tensor": 2, "pipeline": 2}), 8)
    assert [made.coordinate(rank) for rank in (0, 1)] == [
        GridCoordinate(0, 0, 0, 0),
        GridCoordinate(0, 0, 0, 1),
    ]


def served(**fields: Any) -> dict[str, Any]:
    return {"sync": {"type": "ParameterServer", "parameter_server": fields}}


@pytest.mark.parametrize(
    ("world", "fields", "message"),
    [
        (3, {"parallelism": {"tensor": 2}}, "tensor 2 x pipeline 1 does not divide 3 ranks; use 4 ranks"),
        (4, {"parallelism": {"shard": 3}}, "shard 3 makes 3 ranks, but this world has 4; use 6 ranks"),
        (2, {"parallelism": {"replicate": 4}}, "replicate 4 makes 4 ranks, but this world has 2"),
        (
            4,
            {"sync": {"type": "Ring"}, "parallelism": {"shard": 2}},
            "sync: Ring synchronizes whole copies of the model; use AllReduce with parallelism.shard 2, or "
            "leave that out",
        ),
        (
            4,
            {"sync": {"type": "Ring"}, "parallelism": {"replicate": 2}},
            "use AllReduce with parallelism.replicate 2 of 4 ranks, or leave that out",
        ),
        (
            8,
            {"sync": {"type": "Ring"}, "sharding": "Gradients", "parallelism": {"tensor": 2, "pipeline": 2}},
            "AllReduce with sharding Gradients and parallelism.tensor 2 and parallelism.pipeline 2, or leave",
        ),
        (
            4,
            {"sync": {"type": "Exact"}, "sharding": "Parameters", "parallelism": {"replicate": 2}},
            "parallelism: shard 2 follows from the number of ranks here, and under sync Exact each shard of "
            "a micro-batch is a part of the sum; set parallelism.shard, so that it stays",
        ),
        (
            4,
            {"sync": {"type": "Exact"}, "batch": {"micro_batches": 3}},
            "batch: microBatches 3 leaves some of 4 replicas idle; raise it to 4 or more",
        ),
        (
            4,
            {"sync": {"type": "Exact"}, "batch": {"micro_samples": 3}},
            "batch: microSamples has no effect on sync Exact, which computes a micro-batch at once; raise "
            "microBatches, or leave microSamples out",
        ),
        (4, {"sync": {"type": "Exact"}, "batch": {"balance": True}}, "sync Exact deals whole ones; leave"),
        (
            4,
            {"sync": {"type": "Exact"}, "parallelism": {"pipeline": 2}},
            "sync: Exact works with replicate, shard and tensor; a pipeline adds its own micro-batches",
        ),
        (
            4,
            {"sync": {"type": "Exact"}, "sharding": "OptimizerState"},
            "sharding: OptimizerState averages gradients over all ranks at once",
        ),
        (
            4,
            {"sync": {"type": "Exact"}, "gradient_compression": {"type": "TopK"}},
            "gradientCompression: works on the all-reduce of whole copies",
        ),
        (
            4,
            {"batch": {"micro_batches": 8}},
            "batch: microBatches works with sync Exact; use microSamples to split a rank's part of a batch, "
            "or leave it out",
        ),
        (
            4,
            {"sync": {"type": "Replicate"}, "sharding": "Parameters"},
            "sync: Replicate synchronizes whole copies",
        ),
        (
            4,
            {"gradient_compression": {"type": "TopK"}, "parallelism": {"tensor": 2}},
            "gradientCompression: works on the all-reduce of whole copies",
        ),
        (
            4,
            {"sharding": "OptimizerState", "parallelism": {"shard": 2}},
            "sharding: OptimizerState works with parallelism.shard alone",
        ),
        (4, {"sharding": "Parameters", "parallelism": {"replicate": 4}}, "nothing to split with shard 1"),
        (
            2,
            {"parallelism": {"pipeline": 2}, "pipelining": {"schedule": "Interleaved", "stages_per_rank": 1}},
            "Interleaved and ZeroBubble need 2 or more",
        ),
        (
            2,
            {"parallelism": {"pipeline": 2}, "pipelining": {"stages_per_rank": 2}},
            "Interleaved and ZeroBubble need 2 or more",
        ),
        (2, served(mode="Asynchronous", backup_workers=1), "backupWorkers works with mode Synchronous"),
        (2, served(backup_workers=2), "backupWorkers 2 leaves none of 2 workers; lower it"),
        (2, served(scale_by_staleness=True), "in mode Synchronous no gradient is stale"),
        (2, {**served(), "precision": "Float16"}, "use BFloat16"),
        (
            4,
            {**served(), "sharding": "Parameters"},
            "ParameterServer synchronizes whole copies of the model; use AllReduce with sharding Parameters, "
            "or leave that out",
        ),
        (2, {"learning_rate": {"scaling": "Linear"}}, "scaling needs baseBatch"),
        (
            2,
            {"learning_rate": {"scaling": "Linear", "base_batch": 32}},
            "scaling needs batch.globalSamples",
        ),
        (
            2,
            {"batch": {"global_samples": 4, "micro_samples": 5}},
            "microSamples must not be above globalSamples; use at most 4",
        ),
        (
            4,
            {"batch": {"balance": True}, "parallelism": {"tensor": 2}},
            "balance works with replicate and shard; leave it out with tensor or pipeline",
        ),
        (
            2,
            {"batch": {"balance": True}, **served()},
            "balance measures ranks that wait for each other; with sync ParameterServer use mode Asynch",
        ),
        (
            4,
            {"parallelism": {"pipeline": 2, "shard": 2}, "pipelining": {"schedule": "ZeroBubble"}},
            "ZeroBubble leaves the last stage without gradients where shard is above 1; use Interleaved",
        ),
        (2, {"offload": "Parameters"}, "offload: works with sharding Gradients or Parameters over two ranks"),
        (
            1,
            {"sharding": "Parameters", "offload": "Parameters"},
            "offload: works with sharding Gradients or Parameters over two ranks or more",
        ),
        (
            4,
            {"sync": {"type": "Local", "local": {"groups_of": 2}}},
            "sync.local: groupsOf and allEverySteps belong together",
        ),
        (
            4,
            {"sync": {"type": "Local", "local": {"every_steps": 4, "groups_of": 2, "all_every_steps": 6}}},
            "allEverySteps must be a multiple of everySteps; use 8",
        ),
        (
            4,
            {"sync": {"type": "Local", "local": {"groups_of": 3, "all_every_steps": 16}}},
            "groupsOf 3 does not divide 4 ranks; use 2",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_field_and_the_fix(
    world: int, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(StrategyError, match=message.replace(".", r"\.")):
        layout(strategy(**fields), world)


def test_all_that_cannot_work_is_reported_at_once() -> None:
    fields = {"offload": "Parameters", "batch": {"global_samples": 4, "micro_samples": 5}}
    with pytest.raises(StrategyError) as message:
        layout(strategy(**fields), 2)
    assert [sentence.partition(":")[0] for sentence in message.value.args] == [
        "spec.strategy.offload",
        "spec.strategy.batch",
    ]
    assert str(message.value) == "; ".join(message.value.args)


def test_a_group_that_fits_no_prime_number_of_ranks_is_all_of_them() -> None:
    fields = {"sync": {"type": "Local", "local": {"groups_of": 2, "all_every_steps": 8}}}
    with pytest.raises(StrategyError, match="groupsOf 2 does not divide 5 ranks; use 5"):
        layout(strategy(**fields), 5)


def test_a_strategy_survives_its_way_to_a_rank() -> None:
    sent = strategy(parallelism={"shard": 2}, sharding="Gradients", gradient_compression=None)
    assert codec.decode(Strategy, codec.encode(sent)) == sent
