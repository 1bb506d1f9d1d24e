"""The shipped agent, coordinator and operator keep their promises in simulated time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.shipped.histories import History, draw, play_history, world
from tests.shipped.moves import FAULTS, MOVES, play
from tests.shipped.site import Setup
from tests.sim.moves import Move

from ropeteam.api.conditions import ConditionType

ROOT = Path(__file__).resolve().parents[2]
_PRINT = (
    "import sys; from tests.shipped.histories import draw, play_history;"
    "print(play_history(draw(int(sys.argv[1]))).fingerprint)"
)


def history(moves: str, **setup: int) -> History:
    return History(Setup(**setup), tuple(map(Move.parse, moves.split())))


@pytest.mark.parametrize("feature_level", range(4))
def test_an_undisturbed_job_completes_in_one_world(feature_level: int) -> None:
    played = play_history(history("", seed=feature_level, feature_level=feature_level))
    assert played.state == "Complete"
    assert (played.counts["worlds"], played.counts["steps"]) == (1, 24)


@pytest.mark.parametrize(
    "fault",
    ["kill_rank(1,0)", "kill_agent(1,0)", "kill_coordinator(0,0)", "kill_operator(0,1)", "hang_rank(0,0)"],
)
def test_a_job_survives_each_fault_alone(fault: str) -> None:
    played = play_history(
        history(f"long_wait(2,5) {fault} long_wait(0,9)", seed=3, workers=3, total_steps=40)
    )
    assert played.state == "Complete"
    assert played.counts[f"fault {fault.partition('(')[0]}"] == 1


_LONG = "long_wait(15,15) long_wait(15,15)"
FAILED_ONCE = {
    "an island of coordinator and agents below feature level 2": (
        f"long_wait(3,9) island(0,1) {_LONG}",
        {"feature_level": 1, "workers": 2, "total_steps": 200, "spread": 1},
    ),
    "an island whose world prunes a folder that is shared": (
        "long_wait(3,9) island(0,1) long_wait(15,15) long_wait(15,15)",
        {"feature_level": 3, "workers": 2, "total_steps": 200, "spread": 1},
    ),
    "a coordinator that hangs for good": (
        "long_wait(3,9) hang_coordinator(0,1) long_wait(15,15)",
        {"feature_level": 3, "workers": 2, "total_steps": 60},
    ),
    "a volume that fails while a world restores": (
        "long_wait(3,9) break_disk(0,3) kill_rank(0,0) long_wait(15,15)",
        {"feature_level": 3, "workers": 2, "total_steps": 60, "max_failures": 50},
    ),
    "a fence beside a long lostSeconds": (
        f"long_wait(3,9) remove_node(0,1) isolate(3,1) {_LONG}",
        {"feature_level": 1, "workers": 1, "total_steps": 90, "lost": 20, "fence": 30, "spread": 1},
    ),
    "an agent whose output nobody reads": (
        f"long_wait(3,9) block_stdout(0,15) remove_node(0,1) isolate(3,1) {_LONG}",
        {"feature_level": 1, "workers": 1, "total_steps": 80, "spread": 1},
    ),
    "a last checkpoint whose manifest is slow": (
        "slow_disk(0,11) long_wait(15,5)",
        {"feature_level": 3, "workers": 1, "total_steps": 24},
    ),
}


@pytest.mark.parametrize(("moves", "setup"), FAILED_ONCE.values(), ids=FAILED_ONCE)
def test_histories_that_failed_once_keep_every_promise(moves: str, setup: dict[str, int]) -> None:
    assert play_history(history(moves, seed=1, **setup)).state == "Complete"


@pytest.mark.parametrize("feature_level", [0, 1])
def test_an_island_that_fences_itself_ends_and_the_job_goes_on_without_a_person(feature_level: int) -> None:
    """Below feature level 2, where two worlds would overwrite each other's checkpoints."""
    setup = Setup(
        seed=feature_level, workers=2, feature_level=feature_level, total_steps=400, spread=1, self_fence=1
    )
    with world(setup) as site:
        site.run(20.0)
        assert {rank.plan.world_id.term for rank in site.live_ranks()} == {1}
        play(site, Move("island", 0, 1))
        site.run(150.0)  # the checks demand that one world advances
        term = site.status.coordinator.term
        assert {rank.plan.world_id.term for rank in site.live_ranks()} == {term} != {1}


def test_a_world_that_fenced_itself_while_the_operator_was_away_goes_on_when_it_is_back() -> None:
    moves = "long_wait(3,9) isolate(1,0) long_wait(15,15) heal(0,0) long_wait(0,9)"
    played = play_history(history(moves, seed=2, feature_level=0, total_steps=120, self_fence=1))
    assert played.state == "Complete"
    assert played.counts["worlds"] == 2


def test_another_run_in_the_folder_is_left_alone() -> None:
    """The other run has our worlds and newer ones, our steps and later ones, claims of both."""
    moves = "long_wait(2,5) kill_rank(1,0) long_wait(2,2) kill_coordinator(0,0) force_delete_pod(0,0)"
    played = play_history(history(moves, seed=3, total_steps=80, keep=1, neighbour=1))
    assert played.state == "Complete"
    assert played.counts["folders pruned"] > 10
    assert played.counts["worlds"] >= 2


def test_a_job_whose_status_was_restored_loses_no_lineage() -> None:
    """The old status names a checkpoint that is pruned since; then all pods are lost: only the disk knows."""
    setup = Setup(seed=3, workers=2, feature_level=3, total_steps=120)
    with world(setup) as site:
        for move in ("long_wait(15,15)", "restore_backup(0,6)"):
            play(site, Move.parse(move))
        known, newest, formed = site.status.checkpoint, site.checks.newest_step(), site.checks.worlds()
        assert known
        assert known.lineage[0].step < newest - 4 * setup.every
        for pod in site.live_containers(True) + site.live_containers(False):
            assert pod.process
            pod.process.die()
            site.kubernetes.remove(pod.obj)
        site.settle()
        assert site.status.state == "Complete"
        base = site.checks.base_after(formed)
        assert base is not None
        assert newest - base <= setup.every


@pytest.mark.parametrize(("coordinator", "feature_level"), [(True, 0), (True, 3), (False, 0), (False, 3)])
def test_a_restored_status_catches_up_with_what_runs(coordinator: bool, feature_level: int) -> None:
    """The old status is from before a pod was seen that is lost since, and whose successor trains."""
    with world(Setup(seed=6, workers=2, feature_level=feature_level, total_steps=200)) as site:
        site.run(10.0)
        lost = site.live_containers(coordinators=coordinator)[0]
        assert lost.process
        lost.process.die()
        site.kubernetes.remove(lost.obj)
        site.run(30.0)
        ago = enumerate(reversed(site.checks.past))
        size = next(n for n, job in ago if not any(slot.get("podUID") for slot in job["status"]["slots"]))
        play(site, Move("restore_backup", 0, size))
        assert not any(slot.pod_uid for slot in site.status.slots)
        site.settle()
        assert site.status.state == "Complete"


def test_a_running_job_goes_on_in_one_world_through_an_upgrade() -> None:
    """And what comes later is of the new release, beside agents of the one before."""
    setup = Setup(seed=5, workers=3, feature_level=3, total_steps=120, previous=1, operators=2)
    with world(setup) as site:
        for move in ("long_wait(3,9)", "upgrade(0,1)", "long_wait(5,15)"):
            play(site, Move.parse(move))
        assert site.checks.counts["worlds"] == 1
        assert [each.previous for each in site.operators] == [False, False]
        assert all(pod.process and pod.process.previous for pod in site.containers.values())
        running = site.status.condition(ConditionType.RUNNING)
        assert running is not None
        assert (running.status, running.reason) == ("True", "CoordinatorOutdated")
        play(site, Move("force_delete_pod", 1, 0))
        site.settle()
        assert {pod.process.previous for pod in site.containers.values() if pod.process} == {True, False}
        assert site.status.state == "Complete"


def test_a_running_job_goes_on_in_one_world_through_a_rollback() -> None:
    """The coordinator is newer than the operators then, and takes their bearer after a minute."""
    with world(Setup(seed=5, workers=3, feature_level=3, total_steps=400, operators=2)) as site:
        play(site, Move.parse("long_wait(3,9)"))
        site.previous = True
        for process in site.operators:
            process.die()
            site.operator_ended(process)
        site.run(120.0)
        assert all(process.previous for process in site.operators)
        assert site.checks.counts["worlds"] == 1
        play(site, Move("force_delete_pod", 1, 0))
        site.settle()
        assert site.status.state == "Complete"


@pytest.mark.parametrize("size", [0, 5])
def test_a_step_of_the_operators_wall_clock_gives_no_failure_back(size: int) -> None:
    """Nor takes one: the window is an hour, and so is the step, back or forward (the checks look)."""
    moves = f"long_wait(3,9) raise(0,0) long_wait(5,9) step_wall_clock(0,{size}) raise(1,1) long_wait(5,9)"
    played = play_history(history(moves, seed=4, workers=2, total_steps=100))
    assert (played.state, played.counts["fault raise"]) == ("Complete", 2)


def test_a_history_is_the_same_each_time() -> None:
    again = history("long_wait(1,1) kill_rank(0,0) slow_node(2,3) long_wait(1,1) delete_pod(1,1)", seed=5)
    first, second = play_history(again, film=True), play_history(again)
    assert first.fingerprint == second.fingerprint
    assert History.parse(again.show()) == again
    assert first.counts["worlds"] >= 2, "the faults were felt"
    assert "kill_rank" in first.film


def test_a_history_is_the_same_in_another_interpreter() -> None:
    """Nothing depends on how an interpreter hashes."""
    path = os.pathsep.join(str(ROOT / part) for part in ("operator", "trainer-image", "."))
    prints = [
        subprocess.run(
            [sys.executable, "-c", _PRINT, "6"],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert prints[0] == prints[1] != b""


def test_every_kind_of_fault_fires() -> None:
    """Each in a running job; the campaigns check what it does to the job."""
    counts = Counter[str]()
    for name in FAULTS:
        with world(Setup(seed=11, workers=2, total_steps=60, previous=1)) as site:
            for move in (Move("long_wait", 3, 4), Move(name, 1, 3), Move("wait", 0, 2)):
                play(site, move)
            counts += site.counts
    assert {name for name in FAULTS if not counts[f"fault {name}"]} == set()


def test_drawn_histories_use_every_move() -> None:
    drawn = [draw(seed) for seed in range(250)]
    assert {move.name for each in drawn for move in each.moves} == set(MOVES)
    assert {each.setup.neighbour for each in drawn} == {0, 1}
    assert max(each.setup.workers for each in drawn) == 64
