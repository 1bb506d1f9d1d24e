"""Foreign files and links in the folder of checkpoints: an agent touches nothing outside of it, waits
for nobody, and continues with what it can read."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.life import a_plan
from tests.agent.test_checkpoints import FILES, claimed, committed, left, run_ref, saved, settings_in

from ropeteam_trainer.agent.checkpoints import claim, prune, write_manifest
from ropeteam_trainer.checkpoint.decisions import journal
from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST
from ropeteam_trainer.contract.config import WorkerConfig
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.world import CheckpointRef
from ropeteam_trainer.system.folders import Folder

PLACE = "run-uid/step-30/1.0.1"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Foreign files in the shape of ours."""
    folder = tmp_path / "elsewhere"
    (folder / "1.0.1" / "deep").mkdir(parents=True)
    for name in ("notes", "1.0.1/manifest.json", "1.0.1/deep/notes"):
        (folder / name).write_text("of somebody else")
    return folder


def content(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    "link", ["step-1", "step-2/1.0.1", "step-10/1.0.1/data", "step-10/1.0.1/manifest.json"]
)
def test_pruning_deletes_nothing_that_a_link_leads_to(link: str, tmp_path: Path, elsewhere: Path) -> None:
    before = content(elsewhere)
    line = committed(tmp_path, 10, 20)
    path = tmp_path / "run-uid" / link
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(elsewhere)
    held = claimed(tmp_path, 2).held
    assert prune(settings_in(tmp_path), held, (line[0],)) == (journal.key_of(line[1]),)
    assert content(elsewhere) == before
    assert not (tmp_path / "run-uid" / "step-10").exists()


@pytest.mark.parametrize("name", [f".{MANIFEST}.tmp", MANIFEST])
def test_a_manifest_overwrites_nothing_that_a_link_leads_to(
    name: str, tmp_path: Path, elsewhere: Path
) -> None:
    before = content(elsewhere)
    held = claimed(tmp_path).held
    saved(tmp_path, (30, 1))
    (tmp_path / PLACE / name).symlink_to(elsewhere / "notes")
    write_manifest(settings_in(tmp_path), held, Grant(run_ref(30), 4, FILES, None))
    assert content(elsewhere) == before
    assert (tmp_path / PLACE / MANIFEST).is_file()
    assert not (tmp_path / PLACE / MANIFEST).is_symlink()


@pytest.mark.parametrize("link", ["run-uid/step-30", "run-uid/step-30/1.0.1"])
def test_no_manifest_is_written_into_a_folder_that_is_a_link(
    link: str, tmp_path: Path, elsewhere: Path
) -> None:
    before = content(elsewhere)
    held = claimed(tmp_path).held
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(elsewhere)
    with pytest.raises(OSError, match="links are not followed"):
        write_manifest(settings_in(tmp_path), held, Grant(run_ref(30), 4, FILES, None))
    assert content(elsewhere) == before


@pytest.mark.parametrize("link", ["runs", "run-uid", "run-uid/journal"])
def test_no_run_is_claimed_in_a_folder_that_is_a_link(link: str, tmp_path: Path, elsewhere: Path) -> None:
    before = content(elsewhere)
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(elsewhere)
    with pytest.raises(OSError, match="links are not followed"):
        claimed(tmp_path)
    assert content(elsewhere) == before


def in_volume(volume: Path, path: str) -> WorkerConfig:
    settings = settings_in(volume / path)
    assert settings.checkpoint is not None
    return replace(settings, checkpoint=replace(settings.checkpoint, volume=str(volume)))


def everything(folder: Path) -> dict[str, str]:
    return {str(path): "" for path in folder.rglob("*")} | content(folder)


Act = Callable[[WorkerConfig, journal.Held, tuple[CheckpointRef, ...]], object]
ACTS: dict[str, Act] = {
    "claim": lambda settings, _, __: claim(settings, "pod-2", a_plan(2)),
    "commit": lambda settings, held, _: write_manifest(settings, held, Grant(run_ref(20), 4, FILES, None)),
    "prune": prune,
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
@pytest.mark.parametrize("link", ["team", "team/job"])
def test_no_part_of_the_path_in_the_volume_may_be_a_link(link: str, act: Act, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    line, held = committed(volume / "team/job", 10, 20), claimed(volume / "team/job").held
    (volume / link).rename(tmp_path / "elsewhere")
    (volume / link).symlink_to(tmp_path / "elsewhere")
    before = everything(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=f"checkpoint.path, {Path(link).name}, is a link") as raised:
        act(in_volume(volume, "team/job"), held, (line[0],))
    assert raised.value.filename == str(volume / link)
    assert everything(tmp_path / "elsewhere") == before


@pytest.mark.parametrize("path", ["jobs", "jobs of 2026/lr=0.1"])
def test_the_volume_may_be_behind_a_link_and_its_folders_have_any_name(path: str, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "mounted").symlink_to("disk")
    claim(in_volume(tmp_path / "mounted", path), "pod-1", a_plan(1))
    assert (tmp_path / "disk" / path / "run-uid").is_dir()


def test_the_folder_of_checkpoints_itself_may_be_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk" / "jobs").mkdir(parents=True)
    (tmp_path / "mounted").symlink_to("disk")
    committed(tmp_path / "mounted" / "jobs", 10)
    assert (tmp_path / "disk" / "jobs" / "run-uid" / "step-10" / "1.0.1" / MANIFEST).is_file()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir])
def test_an_entry_that_is_no_file_is_ignored(make: Callable[[Path], None], tmp_path: Path) -> None:
    committed(tmp_path, 10, 20)
    entry = tmp_path / "run-uid" / "journal" / "step-20.1.0.1.commit"
    entry.unlink()
    make(entry)
    assert [ref.step for ref in claimed(tmp_path, 2).restore] == [10]


def failing(monkeypatch: pytest.MonkeyPatch, method: str, end: str, number: int) -> None:
    """A call of Folder's for what has a path with this end."""
    real = getattr(Folder, method)

    def call(folder: Folder, name: str, *rest: bool) -> object:
        if f"{folder.path}/{name}".endswith(end):
            raise OSError(number, os.strerror(number))
        return real(folder, name, *rest)

    monkeypatch.setattr(Folder, method, call)


def test_a_manifest_that_is_a_folder_is_pruned_too(tmp_path: Path) -> None:
    line = committed(tmp_path, 10, 20, 30)
    for step in (10, 20):
        (tmp_path / f"run-uid/step-{step}/1.0.1" / MANIFEST).unlink()
        (tmp_path / f"run-uid/step-{step}/1.0.1" / MANIFEST / "deep").mkdir(parents=True)
    prune(settings_in(tmp_path), claimed(tmp_path, 2).held, (line[0],))
    assert left(tmp_path) == ["step-30/1.0.1"]


@pytest.mark.parametrize(
    ("method", "end", "number"),
    [
        ("open_folder", "/step-10", errno.EACCES),
        ("open_folder", "/step-10/1.0.1", errno.EIO),
        ("remove", f"/step-10/1.0.1/{MANIFEST}", errno.EIO),
    ],
)
def test_a_place_with_a_fault_is_left_whole_and_stops_no_pruning(
    method: str, end: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = committed(tmp_path, 10, 20, 30)
    held, place = claimed(tmp_path, 2).held, tmp_path / "run-uid/step-10/1.0.1"
    before = content(place)
    with monkeypatch.context() as patched:
        failing(patched, method, end, number)
        prune(settings_in(tmp_path), held, (line[0],))
    assert left(tmp_path) == ["step-10/1.0.1", "step-30/1.0.1"]
    assert content(place) == before
    prune(settings_in(tmp_path), held, (line[0],))
    assert left(tmp_path) == ["step-30/1.0.1"], "tried again"


def test_of_a_folder_all_is_removed_that_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "tree" / name).mkdir(parents=True)
    failing(monkeypatch, "is_folder", "/tree/b", errno.EIO)
    with Folder.at(tmp_path) as folder:
        folder.remove_tree("tree")
    assert [path.name for path in (tmp_path / "tree").iterdir()] == ["b"]


def test_folders_that_are_there_need_not_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of somebody else's mkdir may say EACCES, also for what exists (NFS)."""
    committed(tmp_path, 10)

    def denied(path: str, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "mkdir", denied)
    assert [ref.step for ref in claimed(tmp_path, 2).restore] == [10]
