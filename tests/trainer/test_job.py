"""The public face in one process, and its mistakes: each is a sentence that names the fix."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.ranks.processes import FakeAgent
from torch import nn

import ropeteam_trainer
from ropeteam_trainer import joining
from ropeteam_trainer.contract import config
from ropeteam_trainer.contract.config import CheckpointConfig, RankPlan, Resume
from ropeteam_trainer.contract.local import ToRank
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.job import Job
from ropeteam_trainer.joining import create_job
from ropeteam_trainer.rank import agentlink
from ropeteam_trainer.rank.world import World

ALONE = World(0, 1, torch.device("cpu"))


def alone(
    folder: Path | None = None, every: int = 1, environ: dict[str, str] | None = None, n: int = 1
) -> Job:
    checkpoint = CheckpointConfig(str(folder), every) if folder else None
    plan = RankPlan(f"0.0.{n}", (), False, checkpoint, Resume.LATEST, None, "", "")
    return create_job(ALONE, plan, environ or {})


@contextmanager
def linked(path: Path, folder: Path | None = None) -> Iterator[tuple[FakeAgent, Job]]:
    """`alone`, with an agent."""
    agent = FakeAgent(path, 1, None, WorldId(1, 0, 1))
    one = alone(folder, environ={config.RANK_SOCKET: str(path / "socket.0")})
    assert one._link.connected
    yield agent, one
    one._link.close()
    agent.close()


class Counter:
    """Something with a state, like a scheduler."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def test_without_anything_configured_nothing_happens(tmp_path: Path) -> None:
    quiet = alone()
    assert quiet.restore(model=nn.Linear(1, 1)) == 0
    for batch in quiet.batches(list(range(5)), global_batch=2):
        quiet.report(loss=batch.float().mean(), total_steps=3)
    assert quiet.step == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["saved", None])
def test_restore_in_a_job_without_checkpoints_names_the_field_to_set(
    tmp_path: Path, folder: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    with linked(tmp_path, tmp_path / folder if folder else None) as (_, one):
        one.restore(model=nn.Linear(1, 1))
    count = capfd.readouterr().err.count("nothing; set spec.checkpoint in the manifest\n")
    assert count == (0 if folder else 1)


def test_objects_of_many_kinds_come_back(tmp_path: Path) -> None:
    first, model, counter = alone(tmp_path, every=2), nn.Linear(2, 2), Counter(5)
    first.restore(model=model, counter=counter)
    weights = model.weight.detach().clone()
    first.report()
    first.report(loss=1.5, samples=3)
    again, other, counter = alone(tmp_path, n=2), nn.Linear(2, 2), Counter(0)
    assert again.restore(model=other, counter=counter) == again.step == 2
    assert counter.value == 5
    assert torch.equal(other.weight, weights)


def test_only_so_many_checkpoints_are_retained(tmp_path: Path) -> None:
    saving = alone(tmp_path)
    saving.restore(model=nn.Linear(1, 1))
    for _ in range(5):
        saving.report()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-3", "step-4", "step-5"]


def test_a_state_that_could_not_be_loaded_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="state of 'odd' is not made of tensors and plain values"):
        alone(tmp_path).restore(odd=Counter(threading.Event))


def test_an_object_that_the_checkpoint_does_not_hold_is_named(tmp_path: Path) -> None:
    first = alone(tmp_path)
    first.restore(model=nn.Linear(1, 1))
    first.report()
    with pytest.raises(KeyError, match="holds no 'counter': it has model"):
        alone(tmp_path, n=2).restore(model=nn.Linear(1, 1), counter=Counter(0))


def test_a_full_disk_alone_commits_nothing_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    unlucky = alone(tmp_path / "file")
    unlucky.restore(model=nn.Linear(1, 1))
    unlucky.report()
    assert unlucky.step == 1


def test_phases_are_a_closed_set() -> None:
    with (
        pytest.raises(ValueError, match="unknown phase 'lunch'; use one of train, eval"),
        alone().phase("lunch"),
    ):
        pass


def test_an_agent_that_is_not_there_costs_a_message(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lonely = alone(environ={config.RANK_SOCKET: str(tmp_path / "nobody")})
    lonely.report(loss=1.0)
    assert "cannot reach the agent" in capfd.readouterr().err


def test_the_link_sends_the_last_loss_when_it_closes(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path, 1, None, WorldId(1, 0, 1))
    environ = {config.RANK_SOCKET: str(tmp_path / "socket.0")}
    link = agentlink.connect(environ, 0, agentlink.HeartbeatWriter(None))
    agent.wait(lambda: agent.messages[0])
    for step in range(100):
        link.offer_loss(torch.tensor(step / 8))
    link.offer_loss(float("nan"))
    link.close()
    agent.wait(lambda: "nan" in agent.received(0, "loss"))
    assert len(agent.received(0, "loss")) <= 2, "not one message for each step"
    agent.close()


def test_a_pause_is_acknowledged_with_the_step_while_a_loss_waits_for_its_device(tmp_path: Path) -> None:
    """For a paused rank, maybe: then the one would wait for the other."""
    device, reading = threading.Event(), threading.Event()

    class Loss:
        def __float__(self) -> float:
            reading.set()
            return float(device.wait(60))

    with linked(tmp_path) as (agent, waiting):
        hello = agent.wait(lambda: agent.messages[0])[0]
        assert hello.acknowledges_pause
        waiting.step = 4
        waiting.report()
        waiting._link.offer_loss(Loss())
        assert reading.wait(60)
        agent.send(ToRank(pause=True))
        agent.wait(lambda: agent.received(0, "pause_received") == [5])
        agent.send(ToRank(pause=True, stop_at=7))
        agent.wait(lambda: waiting._link.stop_at == 7)
        waiting._heart.step = 6
        agent.send(ToRank())
        agent.send(ToRank(pause=True))
        agent.wait(lambda: agent.received(0, "pause_received") == [5, 6])
        device.set()


def test_batches_report_the_number_of_steps_also_after_a_restore(tmp_path: Path) -> None:
    with linked(tmp_path) as (agent, first):
        first.step = 4
        first._feed.restore({"epoch": 1, "offset": 2, "samples": 5, "seed": 0})
        for _ in first.batches(list(range(5)), global_batch=2, epochs=3):
            first.report()
        assert first.step == 9
        agent.wait(lambda: agent.received(0, "total_steps") == [9])


def test_a_total_of_more_steps_than_64_bits_hold_is_received(tmp_path: Path) -> None:
    with linked(tmp_path) as (agent, endless):
        endless.report(total_steps=10**30)
        agent.wait(lambda: agent.received(0, "total_steps") == [sys.maxsize])


def test_the_trace_has_a_line_for_each_report(tmp_path: Path) -> None:
    traced = alone(environ={config.TRACE: str(tmp_path / "trace")})
    for _ in traced.batches(list(range(3)), global_batch=2):
        traced.report(loss=0.5)
    traced.report()
    read = [json.loads(line) for line in (tmp_path / "trace.0").read_text().splitlines()]
    assert [(r["step"], len(r["samples"]), r["loss"]) for r in read] == [
        (1, 2, "0x1.0000000000000p-1"),
        (2, 1, "0x1.0000000000000p-1"),
        (3, 0, None),
    ]


def test_the_package_is_light_and_names_a_missing_dependency() -> None:
    assert ropeteam_trainer.init is joining.init
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ropeteam_trainer.nothing
