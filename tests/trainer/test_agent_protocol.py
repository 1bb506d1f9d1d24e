"""Rank and agent: what goes over the socket, what the page shows, and stopping without losing a step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.ranks import traces
from lab.ranks.processes import FakeAgent, RankGroup

from ropeteam_trainer.checkpoint import reader
from ropeteam_trainer.contract.config import CheckpointConfig, Resume
from ropeteam_trainer.contract.local import ToRank
from ropeteam_trainer.contract.world import WorldId

LONG = ("--epochs", "100000")


@pytest.fixture
def checkpoint(tmp_path: Path) -> CheckpointConfig:
    return CheckpointConfig(str(tmp_path / "saved"), every_steps=3)


@pytest.fixture
def agent(tmp_path: Path, checkpoint: CheckpointConfig) -> Iterator[FakeAgent]:
    agent = FakeAgent(tmp_path, 2, checkpoint, WorldId(1, 0, 1))
    yield agent
    agent.close()


def next_world(tmp_path: Path, before: FakeAgent, world: int) -> FakeAgent:
    path = tmp_path / "next"
    path.mkdir()
    world_id = WorldId(before.world_id.term, before.world_id.boot, before.world_id.n + 1)
    return FakeAgent(path, world, before.checkpoint, world_id)


def test_a_rank_reports_itself_its_progress_and_its_end(tmp_path: Path, agent: FakeAgent) -> None:
    ended = RankGroup(tmp_path, 2).run("train.py", "--epochs", "1", agent=agent)
    assert ended.codes == [0, 0], ended.output
    for rank in range(2):
        first = agent.messages[rank][0]
        assert (first.rank, first.feature_level) == (rank, 1)
        assert first.hello_pid is not None
        assert agent.received(rank, "feature_level") == [1, 2, 3]
        assert agent.received(rank, "total_steps") == [1000], (
            "batches() foresees 5, and report() is given another"
        )
        assert agent.received(rank, "shard_step") == [3, 5], "the end too"
        assert float(agent.received(rank, "loss")[-1]) > 0
        heartbeat = agent.heartbeat(rank)
        assert (heartbeat.step, heartbeat.steps_here, heartbeat.samples, heartbeat.reached_end) == (
            5,
            5,
            37.0,
            True,
        )
    names = [[file.name for file in agent.received(rank, "shard_files")[0]] for rank in range(2)]
    assert names == [["__0_0.distcp", "rank-0.pt", "state.pt", ".metadata"], ["__1_0.distcp", "rank-1.pt"]]


def test_without_a_checkpoint_folder_a_script_stays_on_feature_level_1(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path, 1, None, WorldId(1, 0, 1))
    assert RankGroup(tmp_path, 1).run("train.py", agent=agent).codes == [0]
    assert agent.received(0, "feature_level") == [1]
    assert agent.received(0, "shard_step") == []
    agent.close()


def test_a_world_goes_on_from_what_was_committed(tmp_path: Path, agent: FakeAgent) -> None:
    calm = RankGroup(tmp_path / "calm", 2)
    calm.run("train.py")
    with RankGroup(tmp_path, 2).start("train.py", *LONG, agent=agent):
        manifest = agent.commit(6)  # the world trains on, and is then killed wherever it is
    after = next_world(tmp_path, agent, 2)
    ended = RankGroup(tmp_path, 2).run("train.py", agent=after, restore=agent.lineage)
    assert ended.codes == [0, 0], ended.output
    assert after.received(0, "restored") == [manifest.ref]
    assert after.received(1, "restored") == []
    assert ended.result["first"] == 6
    expected, seen = traces.losses(calm.trace, 2), traces.losses(tmp_path / "trace", 2)
    assert {step: seen[step] for step in expected} == expected
    after.close()


def test_a_drain_loses_no_step(tmp_path: Path, agent: FakeAgent) -> None:
    """Pause; once all have received that, it is fixed where to stop; all go there, save, and stay until
    killed."""
    with RankGroup(tmp_path, 2).start("train.py", *LONG, agent=agent):
        agent.wait(lambda: agent.heartbeat(0).steps_here > 4)
        agent.send(ToRank(pause=True))
        agent.wait(lambda: agent.received(0, "paused") or agent.received(1, "paused"))
        agent.wait(lambda: all(agent.received(rank, "pause_received") for rank in range(2)))
        names = ("pause_received", "paused")
        known = [step for rank in range(2) for name in names for step in agent.received(rank, name)]
        stop_at = max(known) + 1
        agent.send(ToRank(pause=True, stop_at=stop_at))
        agent.wait(lambda: all(agent.received(rank, "drained") for rank in range(2)))
        for rank in range(2):
            assert agent.received(rank, "drained") == [stop_at]
            assert agent.received(rank, "shard_step")[-1] == stop_at
            sent = [(m.shard_step, m.drained) for m in agent.messages[rank] if m.shard_step or m.drained]
            assert sent[-2:] == [(stop_at, None), (None, stop_at)], "the shard is told first"
        agent.wait(
            lambda: all(agent.heartbeat(rank).phase == "paused" for rank in range(2))
        )  # reported before it is
        manifest = agent.commit(stop_at)
    after = next_world(tmp_path, agent, 2)
    with RankGroup(tmp_path, 2).start("train.py", *LONG, agent=after, restore=[manifest.ref]):
        after.wait(lambda: after.heartbeat(0).steps_here > 2)
    steps = [line.step for line in traces.lines(tmp_path / "trace", 0)]
    assert steps == list(range(1, len(steps) + 1)), "no step was made twice"
    after.close()


def test_a_pause_that_is_taken_back_lets_all_go_on(tmp_path: Path, agent: FakeAgent) -> None:
    with RankGroup(tmp_path, 2).start("train.py", *LONG, agent=agent):
        agent.wait(lambda: agent.heartbeat(0).steps_here > 1)
        agent.send(ToRank(pause=True))
        paused = agent.wait(lambda: agent.received(0, "paused") + agent.received(1, "paused"))
        agent.send(ToRank(pause=False, committed_step=3))
        agent.wait(lambda: agent.heartbeat(0).step > max(paused) + 3)
        agent.wait(lambda: agent.heartbeat(1).step > max(paused) + 3)


def test_a_flipped_byte_makes_the_world_go_on_from_the_parent(tmp_path: Path, agent: FakeAgent) -> None:
    with RankGroup(tmp_path, 2).start("train.py", agent=agent) as group:
        for step in (3, 6, 9):
            agent.commit(step)
        assert group.wait().codes == [0, 0]
    saved = tmp_path / "saved" / "run-uid"
    state = saved / "step-9" / "1.0.1" / "state.pt"
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)
    os.truncate(saved / "step-6" / "1.0.1" / "rank-1.pt", 100)
    after = next_world(tmp_path, agent, 2)
    ended = RankGroup(tmp_path / "again", 2).run("train.py", agent=after, restore=agent.lineage[:1])
    assert ended.codes == [0, 0], ended.output
    assert ended.result["first"] == 3
    assert "step-9/1.0.1 is not used: state.pt is damaged or altered (its SHA-256 differs)" in ended.output[0]
    assert "step-6/1.0.1 is not used: rank-1.pt has 100 bytes instead of" in ended.output[0]
    assert "not used" not in ended.output[1]
    assert [
        ref.step for ref in reader.find_checkpoints(tmp_path / "saved") if ref.world_id == after.world_id
    ] == [], "nobody granted"
    after.close()


def test_a_step_that_is_not_there_ends_all_ranks_with_the_fix(tmp_path: Path, agent: FakeAgent) -> None:
    ended = RankGroup(tmp_path, 2).run("train.py", agent=agent, resume=Resume.STEP, resume_step=12)
    assert ended.codes == [1, 1]
    for text in ended.output:
        assert "CheckpointNotFound: cannot resume from step 12: the checkpoints in " in text
        assert " are none. " in text


def test_all_ranks_agree_when_seconds_decide(tmp_path: Path) -> None:
    config = CheckpointConfig(str(tmp_path / "saved"), every_seconds=1)
    agent = FakeAgent(tmp_path, 2, config, WorldId(1, 0, 1))
    with RankGroup(tmp_path, 2).start("train.py", *LONG, agent=agent):
        agent.wait(lambda: all(len(agent.received(rank, "shard_step")) >= 3 for rank in range(2)))
        steps = [agent.received(rank, "shard_step")[:3] for rank in range(2)]
    assert steps[0] == steps[1]
    agent.close()
