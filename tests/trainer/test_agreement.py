"""Ranks agree on a checkpoint: each verifies its part, a hiccup is waited out, and only proof counts."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lab.ranks.processes import Ended, FakeAgent, RankGroup

from ropeteam_trainer.checkpoint import agreement, reader
from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST, METADATA, Manifest, folder
from ropeteam_trainer.checkpoint.decisions.restore import (
    CheckpointUnavailable,
    Choice,
    Inspection,
    files_by_rank,
)
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.config import CheckpointConfig, RankPlan, Resume
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId
from ropeteam_trainer.rank.world import World
from ropeteam_trainer.system.folders import Folder, UnexpectedFile

FIRED = "FIRED"


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[FakeAgent]:
    """Two ranks have made steps 3 and 6, and committed both."""
    agent = FakeAgent(tmp_path, 2, CheckpointConfig(str(tmp_path / "saved"), every_steps=3), WorldId(1, 0, 1))
    with RankGroup(tmp_path, 2) as group:
        group.start("train.py", "--epochs", "100000", agent=agent)
        for step in (3, 6):
            agent.commit(step)
    yield agent
    agent.close()


def newest(agent: FakeAgent) -> Path:
    assert agent.checkpoint is not None
    return Path(agent.checkpoint.directory) / folder(agent.lineage[0])


def again(
    agent: FakeAgent,
    *fault: str,
    world: int = 2,
    during: Callable[[RankGroup], None] = bool,  # type: ignore[assignment]
    **plan: Any,
) -> Ended:
    """The next world, to its end."""
    path = agent.path / "next"
    path.mkdir()
    other = FakeAgent(path, world, agent.checkpoint, WorldId(1, 0, 2))
    script = ("hiccup.py", *fault) if fault else ("train.py",)
    with RankGroup(path, world) as group:
        group.start(*script, "--epochs", "3", agent=other, restore=agent.lineage, **plan)
        during(group)
        ended = group.wait()
    other.close()
    return ended


def goes_on_from(step: int, ended: Ended) -> bool:
    assert ended.codes == [0] * len(ended.codes), ended.output
    return f"resumes from step {step} " in ended.output[0]


def test_a_file_that_only_rank_1_verifies_makes_all_ranks_go_on_from_the_parent(saved: FakeAgent) -> None:
    torn = newest(saved) / "rank-1.pt"
    content = bytearray(torn.read_bytes())
    content[len(content) // 2] ^= 1
    torn.write_bytes(content)
    ended = again(saved)
    assert goes_on_from(3, ended)
    assert (
        "step-6/1.0.1 is not used: rank-1.pt is damaged or altered (its SHA-256 differs) (rank 1)"
        in ended.output[0]
    )


def garbled(agent: FakeAgent, name: str) -> CheckpointRef:
    """The newest checkpoint, with one file that is no state of ours, and its hash in the manifest."""
    place = newest(agent)
    torch.save([1, 2, 3], place / name)
    content = (place / name).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    manifest = codec.decode(Manifest, (place / MANIFEST).read_bytes())
    files = (
        ShardFile(file.name, len(content), digest) if file.name == name else file for file in manifest.files
    )
    manifest = replace(manifest, files=tuple(files))
    (place / MANIFEST).write_bytes(manifest.to_bytes())
    return manifest.ref


def test_one_that_rank_1_proves_malformed_makes_all_ranks_begin_from_the_one_before(saved: FakeAgent) -> None:
    """A new job: no status names its checkpoints."""
    garbled(saved, "rank-1.pt")
    saved.lineage.clear()
    ended = again(saved, job_uid="another")
    assert goes_on_from(3, ended)
    assert "rank-1.pt has the right hash, but is no state of ours" in ended.output[0]


def test_what_status_names_is_never_passed_over_for_its_contents(saved: FakeAgent) -> None:
    """The job itself has saved it, so the script or the image has changed, or we have a bug."""
    saved.lineage[0] = garbled(saved, "rank-1.pt")
    ended = again(saved)
    assert ended.codes == [1, 1]
    assert "resumes from step 3" not in ended.output[0]


@pytest.mark.parametrize(
    ("number", "pattern", "rank"),
    [
        (errno.EIO, "rank-1.pt", 1),
        (errno.ESTALE, "manifest.json", 0),
        (errno.ENOTCONN, "*", -1),
        (errno.ETIMEDOUT, "__0_0.distcp", 0),
        (errno.EACCES, "*", 1),
    ],
)
def test_a_hiccup_of_the_volume_is_waited_out(pattern: str, rank: int, number: int, saved: FakeAgent) -> None:
    ended = again(saved, f"{number}:{pattern}", str(rank), "3", "60")
    assert goes_on_from(6, ended)
    fired = [output.count(FIRED) for output in ended.output]
    assert fired == [3 if rank in (n, -1) else 0 for n in range(2)]
    assert "trying again in" in "".join(ended.output)


def test_a_volume_that_is_mounted_late_is_waited_for(saved: FakeAgent) -> None:
    assert saved.checkpoint is not None
    place = Path(saved.checkpoint.directory)
    place.rename(place.with_name("elsewhere"))
    place.mkdir()

    def mounted(group: RankGroup) -> None:
        output = group.path / "output.0"
        saved.wait(
            lambda: output.exists() and "is its volume mounted? (on 2 of 2 ranks: 0, 1" in output.read_text()
        )
        place.rmdir()
        place.with_name("elsewhere").rename(place)

    assert goes_on_from(6, again(saved, "0:none", "0", "0", "60", during=mounted))


@pytest.mark.parametrize(
    ("rank", "classes"),
    [
        (0, ("CheckpointUnavailable", "UnavailableElsewhere")),
        (1, ("UnavailableElsewhere", "CheckpointUnavailable")),
        (-1, ("UnavailableEverywhere", "UnavailableEverywhere")),
    ],
)
def test_an_unavailable_checkpoint_is_reported_with_the_ranks_that_cannot_read_it(
    rank: int, classes: tuple[str, str], saved: FakeAgent
) -> None:
    pattern = "*" if rank < 1 else "rank-1.pt"
    ended = again(saved, f"{errno.ESTALE}:{pattern}", str(rank), "-1", "0.3")
    assert ended.codes == [1, 1]
    for expected, output in zip(classes, ended.output, strict=True):
        assert f"ropeteam_trainer.checkpoint.decisions.restore.{expected}: " in output
        assert "Stale file handle" in output
        assert "Check the volume of" in output
    assert "".join(ended.output).count(FIRED) > 1


def test_a_folder_that_somebody_deleted_is_done_without(saved: FakeAgent) -> None:
    for file in newest(saved).iterdir():
        file.unlink()
    assert goes_on_from(3, again(saved))


def test_a_directory_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = CheckpointRef(6, WorldId(1, 0, 1), "ab")
    assert reader.find_checkpoints(tmp_path / "none") == ()
    assert reader.inspect_manifest(tmp_path / "none", ref).unsure, "its volume is not there"
    listed: list[str] = []

    def stale(folder: Folder) -> list[str]:
        listed.append(folder.path)
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Folder, "names", stale)
    with pytest.raises(OSError, match="Stale"):
        reader.find_checkpoints(tmp_path)
    assert reader.inspect_manifest(tmp_path, replace(ref, run="uid")).unsure
    assert listed == [str(tmp_path)] * 2


@pytest.mark.parametrize("closed", ["run-other", "step-7", "1.0.2"])
def test_a_folder_that_may_not_be_entered_hides_no_other(
    closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Manifest(6, WorldId(1, 0, 1), 1, "j", "u", (), None)
    theirs = CheckpointRef(7, WorldId(1, 0, 2), run="other")
    for ref in (ours.ref, theirs):
        (tmp_path / folder(ref)).mkdir(parents=True)
        (tmp_path / folder(ref) / MANIFEST).write_bytes(ours.to_bytes())
    real = Folder.open_folder

    def denied(folder: Folder, name: str, make: bool = False) -> Folder:
        if name == closed:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(folder, name, make)

    monkeypatch.setattr(Folder, "open_folder", denied)
    assert reader.find_checkpoints(tmp_path) == (replace(ours.ref, digest=""),)
    assert reader.locate_checkpoint(tmp_path, replace(ours.ref, run="")) == ours.ref
    assert reader.inspect_manifest(tmp_path, replace(theirs, digest="ab")).unsure, "nor is it called bad"


def test_what_is_not_ours_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "RETRY_SECONDS", 0.0)
    ref, file = CheckpointRef(3, WorldId(1, 0, 1)), ShardFile(METADATA, 3, "00")
    (tmp_path / folder(ref)).mkdir(parents=True)
    (tmp_path / folder(ref) / METADATA).write_bytes(b"more")
    with pytest.raises(UnexpectedFile, match="larger than 3 bytes"):
        agreement.call_with_retries(
            lambda: reader.load_metadata(tmp_path, ref, (file,)), tmp_path, lambda: None
        )


def test_a_file_that_is_gone_is_proof_only_beside_its_manifest(tmp_path: Path) -> None:
    file = ShardFile("state.pt", 3, "00")
    ref = CheckpointRef(3, WorldId(1, 0, 1))
    assert reader.check_file(tmp_path, ref, file, print).unsure
    (tmp_path / folder(ref)).mkdir(parents=True)
    assert reader.check_file(tmp_path, ref, file, print).unsure
    (tmp_path / folder(ref) / MANIFEST).touch()
    assert reader.check_file(tmp_path, ref, file, print) == Inspection(None, "state.pt is missing")


names = st.integers(0, 9).flatmap(
    lambda n: st.sampled_from((f"rank-{n}.pt", f"__{n}_0.distcp", "state.pt", ".metadata"))
)


@given(st.dictionaries(names, st.integers(0, 1 << 40)), st.integers(1, 9), st.integers(1, 9))
def test_every_file_is_verified_by_one_rank_and_no_rank_has_much_more(
    sizes: dict[str, int], saved_by: int, ranks: int
) -> None:
    files = tuple(ShardFile(name, size, "") for name, size in sizes.items())
    parts = files_by_rank(Manifest(1, WorldId(1, 0, 1), saved_by, "", "", files, None), ranks)
    assert sorted(file.name for part in parts for file in part) == sorted(sizes)
    if ranks == saved_by:
        own = [file.name for file in parts[ranks - 1]]
        assert f"rank-{ranks - 1}.pt" in own or f"rank-{ranks - 1}.pt" not in sizes, "what it will read, too"
    else:
        loads = [sum(file.size for file in part) for part in parts]
        assert max(loads) - min(loads) <= max(sizes.values(), default=0)


def test_an_error_that_had_passed_does_not_shorten_the_retries_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(agreement, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=lambda _: None))
    shard = ShardFile("shard", 1, hashlib.sha256(b"x").hexdigest())
    manifest = Manifest(3, WorldId(1, 0, 1), 1, "j", "u", (shard,), None)
    ref = manifest.ref
    (tmp_path / folder(ref)).mkdir(parents=True)
    (tmp_path / folder(ref) / "shard").write_bytes(b"x")
    plan = RankPlan("1.0.2", (), False, CheckpointConfig(str(tmp_path)), Resume.LATEST, None, "j", "u")
    restore = agreement.Agreement(plan, World(0, 1, torch.device("cpu")), tmp_path, lambda: None)
    restore._pause_or_give_up("EIO")
    assert restore._verify(manifest, ref) == ""
    clock.now += agreement.RETRY_SECONDS + 1
    restore._pause_or_give_up("EIO")
    clock.now += agreement.RETRY_SECONDS + 1
    with pytest.raises(CheckpointUnavailable):
        restore._pause_or_give_up("EIO")


def test_errors_of_a_checkpoint_that_is_proved_bad_do_not_shorten_the_retries_of_the_next_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)

    def sleep(_: float) -> None:
        clock.now += agreement.RETRY_SECONDS - 1

    monkeypatch.setattr(agreement, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    manifest = Manifest(3, WorldId(1, 0, 1), 1, "j", "u", (ShardFile("shard", 1, ""),), None)
    choices = iter([(Choice(manifest, manifest.ref), ""), *[(None, "EIO")] * 2, (Choice(None), "")])
    inspections = iter([Inspection(None, "EIO", unsure=True), Inspection(None, "altered")])
    plan = RankPlan("1.0.2", (), False, CheckpointConfig(str(tmp_path)), Resume.LATEST, None, "j", "u")
    restore = agreement.Agreement(plan, World(0, 1, torch.device("cpu")), tmp_path, lambda: None)
    monkeypatch.setattr(restore, "_choose_alone", lambda: next(choices))
    monkeypatch.setattr(restore, "_verify_file", lambda *_: next(inspections))
    assert restore.choose() == Choice(None)
