"""Parameter servers as processes: what they train, and what is left of it when they are killed."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.ranks import traces
from lab.ranks.processes import Ended, FakeAgent, RankGroup

from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import CheckpointConfig
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.recipes import char_gpt

SECRET = "of this job"


def served(**fields: Any) -> dict[str, Any]:
    return {"sync": {"type": "ParameterServer", "parameter_server": fields}}


def request(strategy: dict[str, Any], model: str = "gpt", **more: Any) -> dict[str, Any]:
    usual = {"model": model, "optimizer": "AdamW", "steps": 10, "batch": 24}
    return {**usual, "strategy": strategy, **more}


def trained(path: Path, world: int, settings: dict[str, Any], workers: int) -> list[dict[str, Any]]:
    """Results of each worker."""
    ended = RankGroup(path, world).run("served.py", json.dumps(settings), str(path))
    assert not any(ended.codes), "\n".join(ended.output)
    return left_by(path, workers)


def left_by(path: Path, workers: int) -> list[dict[str, Any]]:
    return [torch.load(path / f"out-{rank}.pt") for rank in range(workers)]


def figures_of(ended: Ended, server_rank: int) -> dict[str, Any]:
    """The figures that a server prints at its end."""
    found = re.search(r"all workers have left: (\{.*\})", ended.output[server_rank])
    assert found, ended.output[server_rank]
    figures: dict[str, Any] = json.loads(found[1])
    return figures


class ServedJob:
    """Ranks with an agent, servers at fixed addresses, and memory that outlives a server's process.
    `program`: what it runs in place of served.py."""

    def __init__(
        self,
        path: Path,
        workers: int,
        servers: int,
        settings: dict[str, Any],
        program: tuple[str, ...] = (),
        checkpoint: bool = False,
    ) -> None:
        path.mkdir()
        self.path, self.workers = path, workers
        self.program = program or ("served.py", json.dumps(settings), str(path))
        world = workers + servers
        saved = CheckpointConfig(str(path / "saved"), every_steps=4) if checkpoint else None
        self.agent = FakeAgent(path, world, saved, WorldId(1, 0, 1))
        self.ranks = RankGroup(path, world)
        self.ranks.environment[config.MEMORY] = str(path)
        self.places = [reserved() for _ in range(servers)]
        self.plan: dict[str, Any] = {
            "strategy": codec.from_plain(Strategy, settings["strategy"]),
            "servers": tuple(f"127.0.0.1:{place.getsockname()[1]}" for place in self.places),
            "secret": SECRET,
        }

    def __enter__(self) -> ServedJob:
        self.ranks.start(*self.program, agent=self.agent, **self.plan)
        return self

    def __exit__(self, *_: object) -> None:
        self.ranks.kill()
        self.agent.close()
        for place in self.places:
            place.close()

    def reached(self, rank: int, step: int) -> None:
        """Wait until a rank has made so many steps."""
        self.agent.wait(lambda: self.agent.heartbeat(rank).step >= step)

    def wait(self) -> list[dict[str, Any]]:
        self.ended = self.ranks.wait()
        assert not any(self.ended.codes), "\n".join(self.ended.output)
        return left_by(self.path, self.workers)


def reserved() -> socket.socket:
    """The kernel gives this port to nobody else; a server that binds it by number may listen there."""
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind(("127.0.0.1", 0))
    return place


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(
    ("servers", "fields"),
    [(1, {}), (2, {}), (2, {"mode": "BoundedStaleness", "staleness": 0})],
    ids=["one server", "two servers", "staleness 0"],
)
def test_synchronous_servers_train_as_one_process(
    workers: int, servers: int, fields: dict[str, Any], tmp_path: Path
) -> None:
    for optimizer, bound in (("AdamW", 2e-4), ("SGD", 1e-6)):
        alone = trained(tmp_path / f"1-{optimizer}", 1, request({}, optimizer=optimizer), 1)[0]
        settings = request(served(servers=servers, **fields), optimizer=optimizer)
        found = trained(tmp_path / optimizer, workers + servers, settings, workers)
        for (step, loss), *others in zip(alone["losses"], *(each["losses"] for each in found), strict=True):
            assert {other[0] for other in others} == {step}
            assert sum(other[1] for other in others) / workers == pytest.approx(loss, abs=1e-5), step
        for name, gradient in alone["gradients"].items():
            mean = torch.stack([each["gradients"][name] for each in found]).mean(0)
            assert float((mean - gradient).abs().max()) <= 1e-5 * float(gradient.abs().max()), name
        for name, weight in alone["weights"].items():
            for each in found:
                assert float((each["weights"][name] - weight).abs().max()) <= bound, name


@pytest.mark.parametrize("mode", ["Synchronous", "Asynchronous"])
def test_a_killed_server_comes_back_with_every_update(mode: str, tmp_path: Path) -> None:
    steps, workers = 60, 2
    settings = request(served(servers=2, mode=mode), "count", steps=steps, slow={"0": 0.01, "1": 0.01})
    settings["waits"] = {"0": (50, "restarted")}
    with ServedJob(tmp_path / "group", workers, 2, settings) as group:
        for rank, step in ((workers, 5), (workers + 1, 20), (workers, 35)):  # the chief twice
            group.reached(0, step)
            group.ranks.restart(rank)
        (group.path / "restarted").touch()
        found = group.wait()
    applied = steps if mode == "Synchronous" else steps * workers
    assert figures_of(group.ended, workers)["clocks"] == [steps] * workers
    most = max(float(each["weights"][name].max()) for each in found for name in ("a", "b"))
    least = max(float(each["weights"][name].min()) for each in found for name in ("a", "b"))
    assert most == pytest.approx(applied, abs=0.01)
    assert least == pytest.approx(applied, abs=0.01)


def test_a_killed_worker_does_not_stop_the_others_and_goes_on_where_it_was(tmp_path: Path) -> None:
    steps, workers = 60, 3
    settings = request(
        served(mode="Asynchronous"), "count", steps=steps, slow=dict.fromkeys(("0", "1", "2"), 0.01)
    )
    settings["waits"] = {"1": (10, "killed")}
    with ServedJob(tmp_path / "group", workers, 1, settings) as group:
        group.reached(1, 5)
        group.ranks.kill_one(1)
        (group.path / "killed").touch()
        stopped = group.agent.heartbeat(1).step
        for rank in (0, 2):
            group.reached(rank, stopped + 20)
        group.ranks.restart(1)
        found = group.wait()
    assert figures_of(group.ended, workers)["clocks"] == [steps] * workers
    most = max(float(each["weights"]["a"].max()) for each in found)
    assert most == pytest.approx(steps * workers, abs=0.01)


def test_a_chief_that_saves_shows_that_it_lives(tmp_path: Path) -> None:
    """Workers wait meanwhile and do not hang: a chief that freezes as it saves is found by its own clock."""
    settings = request(served(), "count", steps=6, holds_save=True)
    with ServedJob(tmp_path / "group", 1, 1, settings, checkpoint=True) as group:
        saving = tmp_path / "group" / "saving"
        group.agent.wait(saving.exists)
        first = group.agent.heartbeat(1)
        assert first.phase == "serve", "the clock looks at it"
        group.agent.wait(lambda: group.agent.heartbeat(1).monotonic_ns > first.monotonic_ns)
        saving.unlink()
        group.wait()


def test_no_worker_is_further_ahead_than_the_bound(tmp_path: Path) -> None:
    path, bound, steps = tmp_path / "group", 2, 200
    settings = request(
        served(mode="BoundedStaleness", staleness=bound), "count", steps=steps, slow={"0": 0.005}
    )
    ended = RankGroup(path, 4).run("served.py", json.dumps(settings), str(path))
    figures = figures_of(ended, 3)
    assert figures["steps"] == 3 * steps
    assert figures["most_ahead"] == bound  # the fast ones came as far as they may, and no further


def test_without_a_bound_a_slow_worker_is_left_behind(tmp_path: Path) -> None:
    path, steps = tmp_path / "group", 60
    settings = request(served(mode="Asynchronous"), "count", steps=steps)
    settings["waits"] = {"0": (0, "out-1.pt"), "1": (0, "computed-0")}
    ended = RankGroup(path, 3).run("served.py", json.dumps(settings), str(path))
    assert figures_of(ended, 2)["most_ahead"] == steps - 1


def test_steps_are_scaled_by_staleness(tmp_path: Path) -> None:
    """Each gradient is -1 and the rate 1: what is missing of the count is what staleness took."""
    path, steps = tmp_path / "group", 30
    settings = request(served(mode="Asynchronous", scale_by_staleness=True), "count", steps=steps)
    # One worker trains while the other waits with its first gradients.
    settings["waits"] = {"0": (0, "out-1.pt"), "1": (0, "computed-0")}
    ended = RankGroup(path, 3).run("served.py", json.dumps(settings), str(path))
    assert figures_of(ended, 2)["most_stale"] == steps
    (left,) = left_by(path, 1)  # the other left before its last steps
    assert float(left["weights"]["a"].max()) == pytest.approx(2 * steps - 1 + 1 / steps)


def test_backup_workers_take_the_place_of_a_slow_one(tmp_path: Path) -> None:
    path, steps = tmp_path / "group", 40
    settings = request(served(servers=2, backup_workers=1), steps=steps, slow={"1": 1.5})
    ended = RankGroup(path, 6).run("served.py", json.dumps(settings), str(path))
    assert not any(ended.codes), ended.output
    figures = figures_of(ended, 4)
    found = left_by(path, 4)
    assert figures["clocks"] == [steps] * 4
    assert figures["steps"] == figures_of(ended, 5)["steps"] == steps
    slow = len(found[1]["losses"])
    assert slow < steps / 2
    assert figures["dropped"] >= steps - slow  # it skipped those, and computed some that came too late
    first, last = found[0]["losses"][0][1], found[0]["losses"][-1][1]
    assert last < 0.8 * first
    for name, weight in found[0]["weights"].items():
        assert torch.equal(weight, found[2]["weights"][name])


def test_any_layout_goes_on_from_servers_and_servers_from_any(tmp_path: Path) -> None:
    text = tmp_path / "fox.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    recipe, options = char_gpt.__file__, ("--text", str(text), "--epochs", "4", "--global-batch", "12")
    alone = RankGroup(tmp_path / "alone", 1)
    assert alone.run(recipe, *options).codes == [0]
    legs: tuple[tuple[int, int, dict[str, Any]], ...] = (
        (2, 1, served()),
        (2, 0, {"sharding": "Parameters"}),
        (3, 2, served(servers=2)),
        (2, 1, served(mode="BoundedStaleness", staleness=0)),
        (1, 0, {}),
    )
    restore: tuple[Any, ...] = ()
    for number, (workers, servers, settings) in enumerate(legs, start=1):
        path = tmp_path / str(number)
        path.mkdir()
        checkpoint = CheckpointConfig(str(tmp_path / "saved"), every_steps=4)
        agent = FakeAgent(path, workers + servers, checkpoint, WorldId(1, 0, number))
        with RankGroup(path, workers + servers) as group:
            group.trace = tmp_path / "trace"
            strategy = codec.from_plain(Strategy, settings)
            group.start(recipe, *options, agent=agent, restore=restore, strategy=strategy)
            savers = [workers] if servers else range(workers)
            restore = (agent.commit(4 * number, savers).ref,)
        agent.close()
    expected, found = traces.mean_losses(alone.trace, 4), traces.mean_losses(tmp_path / "trace", 4)
    for step in range(1, 4 * len(legs) + 1):
        assert found[step] == pytest.approx(expected[step], abs=1e-5), step


def test_a_killed_worker_and_a_killed_server_leave_no_trace_in_synchronous_training(tmp_path: Path) -> None:
    """The recipe has a scheduler and shuffled data: all of it continues where it was."""
    text = tmp_path / "fox.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    recipe = (char_gpt.__file__, "--text", str(text), "--epochs", "4", "--global-batch", "12")
    alone = RankGroup(tmp_path / "alone", 1)
    finished = alone.run(*recipe)
    done = tmp_path / "done"
    with ServedJob(
        tmp_path / "group", 2, 1, request(served()), ("held.py", "36", str(done), *recipe)
    ) as group:
        for rank, step in ((1, 6), (2, 16), (0, 26)):
            group.reached(0, step)
            group.ranks.restart(rank)
        done.touch()
        ended = group.ranks.wait()
    assert not any(ended.codes), ended.output
    expected, found = traces.mean_losses(alone.trace, 1), traces.mean_losses(group.ranks.trace, 2)
    assert found.keys() == expected.keys()
    # A gradient that a killed worker had pushed already is computed again, on newer weights, and not applied.
    repeated = [step for step, loss in expected.items() if abs(found[step] - loss) > 1e-5]
    assert len(repeated) <= 2, repeated
    results = ended.result, finished.result
    for each in results:
        each.pop("weights")  # their last bits depend on the number of workers
    assert results[0] == results[1]


def test_servers_that_leave_no_worker_are_refused(tmp_path: Path) -> None:
    ended = RankGroup(tmp_path, 2).run("served.py", json.dumps(request(served(servers=2))), str(tmp_path))
    assert ended.codes == [1, 1]
    assert "2 servers leave no worker among 2 ranks" in ended.output[0]


def test_another_jobs_worker_is_turned_away(tmp_path: Path) -> None:
    settings = request(served(), "count", waits={"0": (0, "never")})
    with ServedJob(tmp_path / "group", 1, 1, settings) as group:
        group.ranks.kill_one(0)
        group.plan["secret"] = "of another job"
        group.ranks.restart(0, plan=replace(group.agent.plan(**group.plan)))
        output = group.path / "output.1"
        group.agent.wait(lambda: output.exists() and "does not have this job's" in output.read_text())
