"""A script that destroys its process group, as torch's own examples do, loses nothing that it has trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab.ranks.processes import FakeAgent, RankGroup

from ropeteam_trainer.contract.config import CheckpointConfig
from ropeteam_trainer.contract.world import WorldId

Agents = Callable[..., FakeAgent]


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    made: list[FakeAgent] = []

    def make(every: int = 2) -> FakeAgent:
        path = tmp_path / f"agent-{len(made)}"
        path.mkdir()
        checkpoint = CheckpointConfig(str(tmp_path / "saved"), every_steps=every)
        made.append(FakeAgent(path, 2, checkpoint, WorldId(1, 0, 1 + len(made))))
        return made[-1]

    yield make
    for agent in made:
        agent.close()


def reported_steps(agent: FakeAgent, last: int) -> list[list[int]]:
    """Steps of the checkpoints that each rank reported, once all have reported the last."""
    agent.wait(lambda: all(last in agent.received(rank, "shard_step") for rank in range(2)))
    return [agent.received(rank, "shard_step") for rank in range(2)]


@pytest.mark.parametrize("every", [2, 3, 5])
@pytest.mark.parametrize("how", ["end", "imported"])
def test_the_last_step_is_in_the_last_checkpoint(
    tmp_path: Path, agents: Agents, how: str, every: int
) -> None:
    before, after = agents(every), agents(every)
    ended = RankGroup(tmp_path, 2).run("groups.py", how, agent=before)
    assert ended.codes == [0, 0], ended.output
    before.commit(7)
    again = RankGroup(tmp_path / "again", 2).run("groups.py", how, agent=after, restore=before.lineage)
    assert again.codes == [0, 0], again.output
    assert again.result["first"] == 7


def test_a_save_that_is_under_way_is_finished_first(tmp_path: Path, agents: Agents) -> None:
    agent = agents(every=7)
    ended = RankGroup(tmp_path, 2).run("groups.py", "end", agent=agent)
    assert ended.codes == [0, 0], ended.output
    assert "was not written" not in "".join(ended.output)
    assert reported_steps(agent, 7) == [[7], [7]]


@pytest.mark.parametrize("how", ["middle", "part"])
def test_a_group_that_is_not_the_last_changes_nothing(tmp_path: Path, agents: Agents, how: str) -> None:
    agent = agents()
    ended = RankGroup(tmp_path, 2).run("groups.py", how, agent=agent)
    assert ended.codes == [0, 0], ended.output
    assert reported_steps(agent, 7) == [[2, 4, 6, 7]] * 2


@pytest.mark.parametrize(("how", "codes", "last", "end"), [("exit", [3, 3], 6, 7), ("fail", [1, 1], 2, 5)])
def test_a_script_that_fails_has_no_checkpoint_of_its_end(
    tmp_path: Path, agents: Agents, how: str, codes: list[int], last: int, end: int
) -> None:
    agent = agents()
    ended = RankGroup(tmp_path, 2).run("groups.py", how, agent=agent)
    assert ended.codes == codes, ended.output
    assert all(end not in steps for steps in reported_steps(agent, last))
    written = any((tmp_path / "saved").rglob(f"step-{end}"))
    assert written == (how == "exit"), "while an exception is in flight nobody waits to save"
