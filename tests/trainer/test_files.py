"""Files of checkpoints: written whole or not at all, and never trusted unseen."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from lab.waiting import wait_until
from tests.trainer.looking import seen

from ropeteam_trainer.checkpoint import agreement, reader
from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST, Manifest, folder
from ropeteam_trainer.checkpoint.decisions.restore import CheckpointUnavailable
from ropeteam_trainer.checkpoint.objects.snapshot import Snapshot
from ropeteam_trainer.checkpoint.objects.stateful import TrainingState
from ropeteam_trainer.checkpoint.objects.tensorshard import TensorShard
from ropeteam_trainer.checkpoint.saving import Checkpoints
from ropeteam_trainer.checkpoint.writer import Alone, ShardWriter
from ropeteam_trainer.contract.config import CheckpointConfig, RankPlan, Resume
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId
from ropeteam_trainer.rank.agentlink import HeartbeatWriter, NoAgent
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.system.folders import Folder

WORLD_ID = WorldId(1, 0, 1)
ALONE = World(0, 1, torch.device("cpu"))
WEIGHTS = torch.arange(2000.0)
CONTENTS = {"state.pt": {"step": 7}, "rank-0.pt": {"rng": (1, [2], "x")}}
Shards = dict[int, tuple[ShardFile, ...]]


def write(directory: Path, step: int = 7) -> Shards:
    shards: Shards = {}
    writer = ShardWriter(directory, WORLD_ID, ALONE, shards.__setitem__)
    writer.start(step, TrainingState({"model.w": WEIGHTS}), CONTENTS)
    writer.wait()
    return shards


def commit(directory: Path, step: int = 7) -> CheckpointRef:
    manifest = Manifest(step, WORLD_ID, 1, "job", "", write(directory, step)[step], None)
    (directory / folder(manifest.ref) / MANIFEST).write_bytes(manifest.to_bytes())
    return manifest.ref


def weights(directory: Path, ref: CheckpointRef, files: tuple[ShardFile, ...]) -> torch.Tensor:
    saved = reader.load_metadata(directory, ref, files)
    into = torch.empty(saved["model.w"].shape)
    reader.fill_shards(
        directory, ref, saved, {"model.w": TensorShard(into, tuple(into.shape), (0,))}, lambda: None
    )
    return into


def test_what_was_written_verifies_and_loads(tmp_path: Path) -> None:
    ref = commit(tmp_path)
    found = seen(tmp_path, ref)
    assert (found.fault, found.manifest is not None) == ("", True)
    assert found.manifest is not None
    files = {file.name: file for file in found.manifest.files}
    assert reader.load_file(tmp_path, ref, files["state.pt"]) == {"step": 7, "models": {}, "optimizers": {}}
    assert torch.equal(weights(tmp_path, ref, found.manifest.files), WEIGHTS)
    assert reader.load_file(tmp_path, ref, files["rank-0.pt"]) == CONTENTS["rank-0.pt"]


def test_what_was_swapped_since_it_verified_is_not_loaded(tmp_path: Path) -> None:
    ref = commit(tmp_path)
    found = seen(tmp_path, ref).manifest
    assert found is not None
    for name in ("state.pt", "rank-0.pt"):
        (file,) = (file for file in found.files if file.name == name)
        flip(tmp_path / folder(ref) / name)
        with pytest.raises(ValueError, match=rf"{name} is damaged or altered \(its SHA-256 differs\)"):
            reader.load_file(tmp_path, ref, file)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("name", "damage", "fault"),
    [
        ("state.pt", flip, r"state.pt is damaged or altered"),
        ("state.pt", half, r"state.pt has \d+ bytes instead of \d+"),
        ("rank-0.pt", Path.unlink, r"rank-0.pt is missing"),
        (".metadata", flip, r"\.metadata is damaged or altered"),
        (".metadata", half, r"\.metadata has \d+ bytes instead of \d+"),
        (".metadata", Path.unlink, r"\.metadata is missing"),
        ("__0_0.distcp", flip, r"__0_0\.distcp is damaged or altered"),
        (MANIFEST, Path.unlink, r"its manifest is missing: it was committed, and deleted since"),
        (MANIFEST, flip, r"manifest was altered"),
        (MANIFEST, half, r"manifest was altered"),
        (MANIFEST, replace_by_folder, r"manifest cannot be read: .*is not a regular file"),
    ],
)
def test_every_damage_is_found_and_named(
    tmp_path: Path, name: str, damage: Callable[[Path], None], fault: str
) -> None:
    ref = commit(tmp_path)
    damage(tmp_path / folder(ref) / name)
    assert re.search(fault, seen(tmp_path, ref).fault)


def test_a_torn_manifest_is_found_without_its_digest(tmp_path: Path) -> None:
    ref = commit(tmp_path)
    half(tmp_path / folder(ref) / MANIFEST)
    found = reader.find_checkpoints(tmp_path)
    assert [(r.step, r.world_id, r.digest) for r in found] == [(7, WORLD_ID, "")]
    assert "torn or altered" in seen(tmp_path, found[0]).fault


def test_a_checkpoint_that_was_moved_to_another_step_is_found_out(tmp_path: Path) -> None:
    commit(tmp_path)
    (tmp_path / "step-7").rename(tmp_path / "step-8")
    assert "belongs to step 7" in seen(tmp_path, CheckpointRef(8, WORLD_ID)).fault


def test_a_file_that_cannot_be_read_is_a_fault_not_a_crash(tmp_path: Path) -> None:
    ref = commit(tmp_path)
    (tmp_path / folder(ref) / "state.pt").unlink()
    (tmp_path / folder(ref) / "state.pt").symlink_to("state.pt")
    assert "state.pt cannot be read" in seen(tmp_path, ref).fault


def test_foreign_folders_are_not_checkpoints(tmp_path: Path) -> None:
    for name in ("step-x/1.0.1", "step-3/latest", "best/1.0.1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / MANIFEST).touch()
    assert reader.find_checkpoints(tmp_path) == ()
    assert reader.find_checkpoints(tmp_path / "nowhere") == ()


def test_a_full_disk_costs_a_message_and_no_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))  # what write() then says is not ENOSPC but EFBIG
    try:
        assert write(tmp_path) == {}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    message = capfd.readouterr().err
    assert "the checkpoint of step 7 was not written: rank 0: [Errno 27] File too large" in message
    assert "Training continues" in message
    assert not [*(tmp_path / "step-7" / "1.0.1").iterdir()], "a full disk needs the room"
    assert write(tmp_path, 8)[8], "the next one is tried"


def test_an_unwritable_folder_costs_a_message(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert write(tmp_path / "file") == {}
    assert "Not a directory" in capfd.readouterr().err


@pytest.mark.parametrize("link", ["step-7", "step-7/1.0.1"])
def test_a_folder_that_is_a_link_is_not_saved_into(
    tmp_path: Path, link: str, capfd: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "state.pt").write_text("of somebody else")
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(elsewhere)
    assert write(tmp_path) == {}
    assert [path.read_text() for path in elsewhere.iterdir()] == ["of somebody else"]
    assert "links are not followed" in capfd.readouterr().err


def behind_a_link(tmp_path: Path, link: str) -> RankPlan:
    """A good checkpoint of a job, in a volume in which a part of the path is a link."""
    volume = tmp_path / "volume"
    commit(volume / "team/job")
    (volume / link).rename(tmp_path / "elsewhere")
    (volume / link).symlink_to(tmp_path / "elsewhere")
    config = CheckpointConfig(str(volume / "team/job"), volume=str(volume))
    return RankPlan("1.0.2", ("step-7/1.0.1",), True, config, Resume.LATEST, None, "job", "")


@pytest.mark.parametrize("link", ["team", "team/job"])
def test_a_path_with_a_link_in_it_is_not_saved_into(
    tmp_path: Path, link: str, capfd: pytest.CaptureFixture[str]
) -> None:
    checkpoints = Checkpoints(behind_a_link(tmp_path, link), ALONE, NoAgent())
    before = sorted((tmp_path / "elsewhere").rglob("*"))
    checkpoints.save(8, None)
    checkpoints.close()
    assert sorted((tmp_path / "elsewhere").rglob("*")) == before
    assert f"part of spec.checkpoint.path, {Path(link).name}, is a link" in capfd.readouterr().err


@pytest.mark.parametrize("known", [True, False], ids=["later", "first"])
@pytest.mark.parametrize("link", ["team", "team/job"])
def test_a_path_with_a_link_in_it_is_not_restored_from_and_proves_nothing(
    tmp_path: Path, link: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "RETRY_SECONDS", 0.0)
    plan = replace(behind_a_link(tmp_path, link), lineage_known=known)
    with pytest.raises(CheckpointUnavailable, match=f"checkpoint.path, {Path(link).name}, is a link"):
        Checkpoints(plan, ALONE, NoAgent()).restore(HeartbeatWriter(None))


@pytest.mark.parametrize("name", ["state.pt", ".metadata.tmp", ".metadata", "__0_0.distcp"])
def test_a_file_that_is_a_link_is_replaced_itself(tmp_path: Path, name: str) -> None:
    (tmp_path / "victim").write_text("of somebody else")
    place = tmp_path / "saved" / "step-7" / "1.0.1"
    place.mkdir(parents=True)
    (place / name).symlink_to(tmp_path / "victim")
    assert not seen(tmp_path / "saved", commit(tmp_path / "saved")).fault
    assert (tmp_path / "victim").read_text() == "of somebody else"
    assert not (place / name).is_symlink()


def test_without_an_agent_only_this_runs_are_pruned(tmp_path: Path) -> None:
    plan = RankPlan("1.0.1", (), False, CheckpointConfig(str(tmp_path), keep=1), Resume.NEVER, None, "j", "u")
    commit(tmp_path, 1)
    checkpoints = Checkpoints(plan, ALONE, NoAgent())
    for step in (1, 2):
        checkpoints.save(step, None)
    checkpoints.close()
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("**/step-*"))
    assert left == ["run-u/step-2", "step-1"]


def test_without_an_agent_only_this_worlds_save_of_a_step_is_pruned(tmp_path: Path) -> None:
    """Runs without an operator share a folder: the world before this one may have saved the same steps."""
    config = CheckpointConfig(str(tmp_path), keep=1)
    other = commit(tmp_path, 1)
    checkpoints = Checkpoints(
        RankPlan("0.0.2", (), False, config, Resume.NEVER, None, "j", ""), ALONE, NoAgent()
    )
    for step in (1, 2):
        checkpoints.save(step, None)
    checkpoints.close()
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("step-*/*")}
    assert left == {folder(other), "step-2/0.0.2"}
    assert not seen(tmp_path, other).fault


def test_a_file_is_waited_for_while_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Folder.at(tmp_path) as folder, folder.open("file") as file:
        assert os.get_blocking(file.fileno())


def test_leftovers_of_another_job_are_replaced(tmp_path: Path) -> None:
    commit(tmp_path)
    write(tmp_path)
    assert "never committed" in seen(tmp_path, CheckpointRef(7, WORLD_ID)).fault
    assert not seen(tmp_path, commit(tmp_path)).fault


def test_a_save_waits_for_the_one_before(tmp_path: Path) -> None:
    """Else the second copy would overwrite what is being written."""
    shards: Shards = {}
    writer = ShardWriter(tmp_path, WORLD_ID, ALONE, shards.__setitem__)
    for step in range(20):
        writer.start(step, TrainingState({"model.w": torch.full((300_000,), float(step))}), {})
    writer.wait()
    assert list(shards) == list(range(20))
    assert writer.stalls > 0
    assert writer.stalled_seconds > 0
    for step in range(20):
        loaded = weights(tmp_path, CheckpointRef(step, WORLD_ID), shards[step])
        assert torch.equal(loaded, torch.full((300_000,), float(step)))


def test_a_save_for_all_is_not_overwritten_by_the_next_one_of_all(tmp_path: Path) -> None:
    """Another rank saved for all in between. The next one waits for it: it may use the same group."""
    shards: Shards = {}
    writer = ShardWriter(tmp_path, WORLD_ID, ALONE, shards.__setitem__)

    def start(step: int, *alone: Any) -> None:
        writer.start(step, TrainingState({"model.w": torch.full((3_000_000,), float(step))}), {}, *alone)

    for step in range(0, 20, 2):
        start(step, Alone(WORLD_ID, shards.__setitem__, None))
        writer.leave_to_another()
        start(step + 1)
        writer.wait()
    wait_until("all saves", lambda: len(shards) == 20)
    for step in range(20):
        loaded = weights(tmp_path, CheckpointRef(step, WORLD_ID), shards[step])
        assert torch.equal(loaded, torch.full((3_000_000,), float(step)))


def test_a_save_that_was_not_written_has_failed(tmp_path: Path) -> None:
    (tmp_path / "run-uid").write_text("a file is in the way")
    writer = ShardWriter(tmp_path, WORLD_ID, ALONE, Shards().__setitem__, "uid")
    assert not writer.has_failed
    writer.start(1, TrainingState({"model.w": torch.ones(3)}), {})
    writer.wait()
    assert writer.has_failed
    (tmp_path / "run-uid").unlink()
    writer.start(2, TrainingState({"model.w": torch.ones(3)}), {})
    writer.wait()
    assert not writer.has_failed


def test_a_copy_is_not_touched_by_training_and_its_buffers_are_used_again() -> None:
    snapshot, weights = Snapshot(), torch.nn.Parameter(torch.ones(3))
    first = snapshot.copy({"a": [weights, (1, "x")], "b": None})
    with torch.no_grad():
        weights.add_(1)
    assert first["a"][0].tolist() == [1, 1, 1]
    second = snapshot.copy({"a": [weights, (1, "x")], "b": None})
    assert second == {"a": [second["a"][0], (1, "x")], "b": None}
    assert second["a"][0].data_ptr() == first["a"][0].data_ptr()
    grown = snapshot.copy({"a": [torch.zeros(4), (1, "x")], "b": None})
    assert grown["a"][0].data_ptr() != first["a"][0].data_ptr()
    assert snapshot.copy({"nothing": 1}) == {"nothing": 1}
    assert type(snapshot.copy([numpy.float64(0.5)])[0]) is float, "what a learning-rate curve may give"


def test_a_sharded_tensor_is_refused() -> None:
    class Sharded(torch.Tensor):
        def to_local(self) -> None: ...

    with pytest.raises(TypeError, match="FSDP"):
        Snapshot().copy({"w": torch.ones(2).as_subclass(Sharded)})
