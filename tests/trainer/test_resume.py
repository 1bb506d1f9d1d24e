"""A killed and resumed training is the undisturbed one: real gloo worlds, saved without an operator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lab.ranks import traces
from lab.ranks.processes import FakeAgent, RankGroup

from ropeteam_trainer.contract.world import WorldId

SAMPLES, EPOCHS = 37, 2
REPLICATED = ("--strategy", '{"sync": {"type": "Replicate"}}')


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("layout", [(), ("--shard",), REPLICATED], ids=["ddp", "shard", "replicate"])
def test_a_resumed_run_repeats_every_loss_bit_for_bit(
    tmp_path: Path, world: int, layout: tuple[str, ...]
) -> None:
    """Weights, optimizer, scheduler, three random generators, data position and the order of sums."""
    options = ("--epochs", "3", *layout)
    calm = RankGroup(tmp_path / "calm", world)
    undisturbed = calm.run("train.py", *options)
    assert undisturbed.codes == [0] * world, undisturbed.output
    hit = RankGroup(tmp_path / "hit", world)
    saved = ("--folder", str(tmp_path / "saved"), "--every", "6", *options)
    killed = hit.run("train.py", *saved, "--die", f"9:{world - 1}")
    assert killed.codes[-1] == -9
    resumed = hit.run("train.py", *saved)
    assert resumed.codes == [0] * world, resumed.output
    assert resumed.result == {**undisturbed.result, "first": 6}
    assert traces.losses(hit.trace, world) == traces.losses(calm.trace, world)
    assert traces.samples(hit.trace, world) == traces.samples(calm.trace, world)


def compressed(kind: str, **settings: dict[str, int]) -> dict[str, Any]:
    return {"gradient_compression": {"type": kind, **settings}}


def locally(**local: int) -> dict[str, Any]:
    return {"sync": {"type": "Local", "local": local}}


TOP_K = compressed("TopK", top_k={"keep_per_mille": 100})
WITH_MEMORY: dict[str, tuple[int, dict[str, Any]]] = {
    "PowerSGD": (3, compressed("PowerSGD", power_sgd={"rank": 2})),
    "TopK": (3, TOP_K),
    "local": (2, locally(every_steps=3)),
    "DiLoCo": (3, locally(every_steps=2, outer_learning_rate_per_mille=700)),
    "hierarchical": (4, locally(every_steps=2, groups_of=2, all_every_steps=6)),
}


@pytest.mark.parametrize("technique", WITH_MEMORY)
def test_what_each_rank_keeps_for_itself_is_resumed_bit_for_bit(tmp_path: Path, technique: str) -> None:
    """Twelve steps are six, a save, new processes, and six: weights and optimizers of all ranks, too."""
    world, strategy = WITH_MEMORY[technique]
    options = ("--samples", "45", "--strategy", json.dumps(strategy))
    calm = RankGroup(tmp_path / "calm", world)
    undisturbed = calm.run("train.py", *options)
    assert undisturbed.codes == [0] * world, undisturbed.output
    assert undisturbed.result["steps"] == 12
    hit = RankGroup(tmp_path / "hit", world)
    saved = ("--folder", str(tmp_path / "saved"), "--every", "6", *options)
    assert hit.run("train.py", *saved, "--die", "8:0").codes[0] == -9
    resumed = hit.run("train.py", *saved)
    assert resumed.result == {**undisturbed.result, "first": 6}
    assert traces.losses(hit.trace, world) == traces.losses(calm.trace, world)


@pytest.mark.parametrize(
    ("strategy", "memory"),
    [(TOP_K, "TopK's memory"), (locally(every_steps=3), "the local optimizers' state")],
)
def test_another_number_of_ranks_begins_without_it_with_a_log_line(
    tmp_path: Path, strategy: dict[str, Any], memory: str
) -> None:
    saved = ("--strategy", json.dumps(strategy), "--folder", str(tmp_path / "saved"), "--every", "3")
    assert RankGroup(tmp_path, 2).run("train.py", *saved, "--die", "5:1").codes[1] == -9
    last = RankGroup(tmp_path, 3).run("train.py", *saved)
    assert last.codes == [0, 0, 0], last.output
    assert last.result["first"] == 3
    sentence = (
        f"ropeteam: state of {memory} is not restored: 2 ranks have saved it, and there are 3 now. Training "
        "continues without it."
    )
    assert [text.count(sentence) for text in last.output] == [1, 0, 0]


def test_each_sample_is_used_once_in_each_epoch_under_any_world(tmp_path: Path) -> None:
    saved = ("--folder", str(tmp_path / "saved"), "--every", "2")
    for world, die in ((3, "4:1"), (2, "6:0"), (1, "7:0")):
        assert -9 in RankGroup(tmp_path, world).run("train.py", *saved, "--die", die).codes
    last = RankGroup(tmp_path, 3).run("train.py", *saved)
    assert last.codes == [0, 0, 0], last.output
    used = traces.samples(tmp_path / "trace", 3)
    for epoch in range(EPOCHS):
        assert sorted(used[epoch * SAMPLES : (epoch + 1) * SAMPLES]) == list(range(SAMPLES))
    worlds = {line.world for rank in range(3) for line in traces.lines(tmp_path / "trace", rank)}
    assert len(worlds) == 4


def test_workers_that_load_ahead_change_nothing(tmp_path: Path) -> None:
    plain, ahead = RankGroup(tmp_path / "plain", 2), RankGroup(tmp_path / "ahead", 2)
    assert plain.run("train.py").result == ahead.run("train.py", "--workers", "1").result
    assert traces.losses(plain.trace, 2) == traces.losses(ahead.trace, 2)


def test_finished_worlds_exit_with_zero(tmp_path: Path) -> None:
    """Finished gloo processes sometimes die of SIGABRT: not ours."""
    for repeat in range(8):
        ended = RankGroup(tmp_path / str(repeat), 3).run("train.py", "--epochs", "1")
        assert ended.codes == [0, 0, 0], ended.output


@pytest.mark.parametrize(("how", "code"), [("--error", 1), ("--exit", 3)])
def test_a_rank_that_fails_ends_soon_with_its_own_code(tmp_path: Path, how: str, code: int) -> None:
    """The others wait in a collective for it: it must not wait for them, nor disturb them on its way out."""
    agent = FakeAgent(tmp_path, 2, None, WorldId(1, 0, 1))
    ended = RankGroup(tmp_path, 2).run("train.py", how, "3:1", agent=agent)
    agent.close()
    assert ended.codes[1] == code, ended.output
    assert ended.codes[0] != 0
    assert not agent.heartbeat(1).reached_end


def test_other_data_than_the_checkpoint_was_made_with_is_refused(tmp_path: Path) -> None:
    saved = ("--folder", str(tmp_path / "saved"), "--every", "2")
    RankGroup(tmp_path, 2).run("train.py", *saved)
    ended = RankGroup(tmp_path / "again", 2).run("train.py", *saved, "--samples", "38")
    assert ended.codes == [1, 1]
    assert "made with samples = 37, but batches() now has 38" in ended.output[0]
