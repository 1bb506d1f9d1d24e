"""A script of five lines under any strategy, and under another one after each restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab.ranks import traces
from lab.ranks.processes import FakeAgent, RankGroup

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.config import CheckpointConfig
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.recipes import char_gpt

RECIPE = Path(char_gpt.__file__)
STEPS_OF_A_LEG = 4


def strategy(**fields: Any) -> Strategy:
    return codec.from_plain(Strategy, fields)


LEGS: tuple[tuple[int, Strategy], ...] = (
    (2, strategy(parallelism={"pipeline": 2}, pipelining={"micro_batches": 3})),
    (2, strategy(parallelism={"tensor": 2})),
    (4, strategy(parallelism={"shard": 2, "tensor": 2})),
    (3, strategy(sharding="OptimizerState")),
    (4, strategy(parallelism={"shard": 2, "pipeline": 2})),
    (2, strategy(sharding="Parameters", batch={"micro_samples": 4})),
    (1, Strategy()),
    (3, strategy(activation_checkpointing="Full")),
)


@pytest.fixture
def options(tmp_path: Path) -> tuple[str, ...]:
    text = tmp_path / "fox.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    return ("--text", str(text), "--epochs", "4", "--global-batch", "12")


def test_each_restart_may_bring_another_strategy_and_another_world(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    alone = RankGroup(tmp_path / "alone", 1)
    assert alone.run(str(RECIPE), *options).codes == [0]
    checkpoint = CheckpointConfig(str(tmp_path / "saved"), every_steps=STEPS_OF_A_LEG)
    restore: tuple[Any, ...] = ()
    for number, (world, chosen) in enumerate(LEGS, start=1):
        path = tmp_path / str(number)
        path.mkdir()
        agent = FakeAgent(path, world, checkpoint, WorldId(1, 0, number))
        with RankGroup(path, world) as group:
            group.trace = tmp_path / "trace"
            group.start(str(RECIPE), *options, agent=agent, restore=restore, strategy=chosen)
            restore = (agent.commit(number * STEPS_OF_A_LEG).ref,)
        agent.close()
    expected, found = traces.mean_losses(alone.trace, 1), traces.mean_losses(tmp_path / "trace", 4)
    last = len(LEGS) * STEPS_OF_A_LEG
    assert {step for step in found if step <= last} == set(range(1, last + 1))
    for step in range(1, last + 1):
        assert found[step] == pytest.approx(expected[step], abs=1e-5), step


def test_micro_batches_are_added_in_the_same_order_after_a_restart(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """DDP orders its sums again after the first backward pass that communicates."""
    chosen = strategy(batch={"micro_samples": 2})
    restore: tuple[Any, ...] = ()
    for number, (name, last) in enumerate((("calm", 8), ("hit", 4), ("hit", 8)), start=1):
        path = tmp_path / str(number)
        path.mkdir()
        checkpoint = CheckpointConfig(str(tmp_path / f"saved-{name}"), every_steps=4)
        agent = FakeAgent(path, 3, checkpoint, WorldId(1, 0, number))
        with RankGroup(path, 3) as group:
            group.trace = tmp_path / name
            group.start(str(RECIPE), *options, agent=agent, restore=restore, strategy=chosen)
            made = agent.commit(last).ref
        restore = (made,) if name == "hit" else ()
        agent.close()
    calm, hit = (traces.losses(tmp_path / name, 3) for name in ("calm", "hit"))
    assert [hit[step] for step in range(1, 9)] == [calm[step] for step in range(1, 9)]


def test_a_strategy_that_the_script_does_not_apply_is_an_error(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path, 1, None, WorldId(1, 0, 1))
    script = tmp_path / "plain.py"
    script.write_text("import ropeteam_trainer\njob = ropeteam_trainer.init(device='cpu')\njob.report()\n")
    ended = RankGroup(tmp_path, 1).run(str(script), agent=agent, strategy=Strategy())
    agent.close()
    assert ended.codes == [1]
    assert "spec.strategy is given, but the script does not apply it: call" in ended.output[0]
