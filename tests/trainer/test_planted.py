"""Checkpoints that somebody has planted beside a valid one: nothing of them is executed, none of them hangs
anything.

A user who can write to the folder can give files a manifest with the right hashes. What is proved to be no
state of ours is skipped for the valid one; what may be one, that this script or image cannot read, ends
the job. Each case is restored by a process of its own, which may use a minute of a processor and 16 GiB.
"""

from __future__ import annotations

import json
import pickle
import resource
import shutil
from pathlib import Path

import pytest
import torch
from lab.ranks.forkserver import forkserver
from tests.trainer.planted import CANARY, VALID, Case, Gadget, checkpoints, plant
from tests.trainer.plantedcontents import MALFORMED, UNCLEAR
from tests.trainer.plantedfolders import PASSED_OVER

from ropeteam_trainer.checkpoint import agreement
from ropeteam_trainer.rank.agentlink import HeartbeatWriter

_forks = forkserver("tests.trainer.planted")
TIMEOUT_SECONDS = 120
"""For a process that hangs."""


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one checkpoint of step 3."""
    directory = tmp_path_factory.mktemp("good")
    saver, model = checkpoints(directory)
    torch.nn.init.constant_(model.weight, 3.0)  # type: ignore[arg-type]
    saver.save(3, None)
    saver.close()
    return directory


def restore(directory: str, answer: str) -> None:
    """In a process of its own."""
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    agreement.RETRY_SECONDS = 0.0  # what is planted must not look as if the volume was away
    saver, model = checkpoints(Path(directory))
    restored = saver.restore(HeartbeatWriter(None))
    weight = model.weight.unique().tolist()  # type: ignore[operator]
    Path(answer).write_text(json.dumps([restored and restored.step, weight]))


def run(directory: Path, answer: Path) -> int | None:
    process = _forks.Process(target=restore, args=(str(directory), str(answer)))
    process.start()
    process.join(TIMEOUT_SECONDS)
    process.kill()
    process.join()
    return process.exitcode


def restored(directory: Path, answer: Path) -> list[object]:
    assert run(directory, answer) == 0
    found: list[object] = json.loads(answer.read_text())
    return found


@pytest.mark.parametrize("case", PASSED_OVER + MALFORMED, ids=lambda case: case.name)
def test_the_job_resumes_from_the_valid_one(case: Case, valid: Path, tmp_path: Path) -> None:
    directory = tmp_path / "saved"
    shutil.copytree(valid, directory)
    plant(directory, case)
    assert restored(directory, tmp_path / "answer") == [3, [3.0]]
    assert not (directory / CANARY).exists()


@pytest.mark.parametrize("case", UNCLEAR, ids=lambda case: case.name)
def test_what_another_script_or_image_could_read_is_not_passed_over(
    case: Case, valid: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "saved"
    shutil.copytree(valid, directory)
    plant(directory, case)
    assert run(directory, tmp_path / "answer") == 1
    assert not (directory / CANARY).exists()


@pytest.mark.parametrize("case", MALFORMED[:1] + MALFORMED[-1:], ids=lambda case: case.name)
def test_without_a_valid_one_a_malformed_one_is_not_replaced_by_nothing(
    case: Case, valid: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "saved"
    shutil.copytree(valid, directory)
    plant(directory, case)
    shutil.rmtree(directory / VALID)
    assert run(directory, tmp_path / "answer") == 1
    assert not (tmp_path / "answer").exists()


def test_if_nothing_was_wrong_with_it_what_is_planted_would_be_taken(valid: Path, tmp_path: Path) -> None:
    directory = tmp_path / "saved"
    shutil.copytree(valid, directory)
    plant(directory, Case("a copy", lambda _: None))
    assert restored(directory, tmp_path / "answer") == [1000, [3.0]]


def test_a_gadget_that_is_executed_leaves_the_canary(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Gadget(tmp_path / VALID)))
    assert (tmp_path / CANARY).exists()
