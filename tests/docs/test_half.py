"""The benchmark `half` counts micro-batches, and its script trains in both ways."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.half import LEAVES, MicroBatches, computed_in, micro_batches
from benchmarks.killlogs import RankLog
from benchmarks.results import ROOT

SCRIPT = str(ROOT / "benchmarks" / "train_half.py")


def counted(*steps: tuple[int, ...]) -> MicroBatches:
    """Of three ranks; 0: it has not ended the step."""
    return micro_batches(
        [{number: step[rank] for number, step in enumerate(steps, 1) if step[rank]} for rank in range(3)]
    )


def test_ranks_that_are_left_compute_those_of_the_lost_one() -> None:
    assert LEAVES == 16
    assert counted((6, 5, 5), (6, 5, 5), (8, 8, 0), (8, 8, 0)) == MicroBatches(5, 5, 0)


def test_nothing_is_computed_again_if_the_lost_rank_had_sent_its_own() -> None:
    assert counted((6, 5, 5), (6, 5, 0), (8, 8, 0)) == MicroBatches(0, 5, 0)


def test_a_step_of_another_number_is_noticed() -> None:
    assert counted((6, 5, 5), (6, 5, 4), (6, 5, 5)).other_steps == 1
    assert counted((6, 5, 5), (8, 9, 0), (8, 8, 0)) == MicroBatches(6, 5, 1)
    assert counted((6, 5, 5), (8, 8, 0), (8, 0, 0)).other_steps == 0
    assert counted((6, 5, 5), (8, 8, 0), (8, 7, 0)).other_steps == 1


def trained(folder: Path, *more: str, **environment: str) -> RankLog:
    command = [sys.executable, SCRIPT, str(folder), "4", str(LEAVES), "0", *more]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment)
    log = RankLog(folder / "rank-0.jsonl")
    log.read()
    log.close()
    return log


def test_one_process_computes_all_micro_batches_of_a_step(tmp_path: Path) -> None:
    log = trained(tmp_path)
    assert [event.kind for event in log.events] == ["start", *["step"] * 4, "end"]
    assert len({event.loss for event in log.steps()}) == 4
    assert computed_in(tmp_path, 1) == [dict.fromkeys(range(1, 5), LEAVES)]


@pytest.mark.parametrize("interval", [2, 3])
def test_the_peer_resumes_from_its_newest_checkpoint(tmp_path: Path, interval: int) -> None:
    alone = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    trained(tmp_path, str(interval), **alone)
    log = trained(tmp_path, str(interval), **alone)
    made = [event.step for event in log.steps()]
    assert made == ([1, 2, 3, 4] if interval == 2 else [1, 2, 3, 4, 4])
    assert json.loads((tmp_path / "rank-0.jsonl").read_text().splitlines()[-1])["kind"] == "end"
