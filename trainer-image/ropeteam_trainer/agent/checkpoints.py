"""On disk: claim a run, write a granted manifest, prune. Blocking; for a thread.

What is done, and in which order, is decided in checkpoint/journal.py; here each of its operations is a call
or two of the system, durable when they return. Raises OSError, and Superseded.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ropeteam_trainer import durable
from ropeteam_trainer.checkpoint import journal, manifest
from ropeteam_trainer.checkpoint.journal import Claim, Held, Operation, Place, Steps
from ropeteam_trainer.checkpoint.manifest import Manifest
from ropeteam_trainer.contract.config import WorkerConfig
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.world import CheckpointRef, Epoch, Plan

T = TypeVar("T")
_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Claimed:
    held: Held
    restore: tuple[CheckpointRef, ...]
    """What the world may go on from, best first."""
    pasts: tuple[tuple[CheckpointRef, ...], ...]
    """Of each of these: which of the others it descends from."""


def claim(settings: WorkerConfig, pod_uid: str, plan: Plan) -> Claimed:
    """Before a world of this plan saves or restores anything."""
    disk = Disk(settings)
    disk.enter()
    held = disk.carry_out(journal.claim(Claim(plan.epoch, pod_uid)))
    restore = disk.carry_out(journal.line(held, plan.restore))
    return Claimed(held, restore, disk.carry_out(journal.pasts(restore)))


def write_manifest(settings: WorkerConfig, held: Held, grant: Grant) -> CheckpointRef:
    """The same grant twice gives the same bytes."""
    return Disk(settings).carry_out(journal.commit(held, grant))


def prune(settings: WorkerConfig, held: Held, keep: tuple[CheckpointRef, ...]) -> tuple[Place, ...]:
    """Delete what is older than the newest of `keep` and not in it, of this run only. What was deleted."""
    return Disk(settings).carry_out(journal.prune(held, keep))


class Disk:
    """The folder of one run."""

    def __init__(self, settings: WorkerConfig) -> None:
        assert settings.checkpoint is not None
        self._settings = settings
        self._directory = Path(settings.checkpoint.directory)
        self._root = self._directory / manifest.run_folder(settings.job_uid)
        self._journal = self._root / manifest.JOURNAL

    def enter(self) -> None:
        """Make the run's folders. Runs are numbered in the order in which they first claimed the directory:
        no clock tells which is the newest."""
        self._journal.mkdir(parents=True, exist_ok=True)
        runs = self._directory / manifest.RUNS
        runs.mkdir(exist_ok=True)
        names = _names(runs)
        if not any(name.partition(".")[2] == self._settings.job_uid for name in names):
            number = max((int(name.partition(".")[0]) for name in names if name[:1].isdigit()), default=0) + 1
            (runs / f"{number:06}.{self._settings.job_uid}").touch()
        for folder in (self._journal, self._root, runs, self._directory):
            durable.sync_folder(folder)

    def carry_out(self, steps: Steps[T]) -> T:
        answer: Any = None
        try:
            while True:
                answer = self._do(steps.send(answer))
        except StopIteration as end:
            result: T = end.value
            return result

    def _do(self, operation: Operation) -> Any:
        match operation:
            case journal.List():
                return _names(self._journal)
            case journal.Create(name):
                with suppress(FileExistsError):
                    os.close(os.open(self._journal / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
                return durable.sync_folder(self._journal)
            case journal.Write(name, text):
                return durable.write(self._journal / name, text.encode())
            case journal.Read(name):
                with suppress(FileNotFoundError):
                    return (self._journal / name).read_text(errors="replace")
                return ""
            case journal.Rename(name, to):
                return self._rename(name, to)
            case journal.Remove(name):
                return (self._journal / name).unlink(missing_ok=True)
            case journal.Folders():
                return tuple(_places(self._root))
            case journal.Delete(place):
                return self._delete(place)
            case journal.WriteManifest(grant):
                return self._write_manifest(grant)

    def _rename(self, name: str, to: str) -> bool:
        try:
            (self._journal / name).rename(self._journal / to)
        except FileNotFoundError:
            return False
        durable.sync_folder(self._journal)
        return True

    def _delete(self, place: Place) -> None:
        folder = self._root / f"step-{place.step}" / str(place.epoch)
        # Without its manifest a half-deleted folder is no checkpoint any more.
        (folder / manifest.MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # another epoch has saved the same step
            folder.parent.rmdir()

    def _write_manifest(self, grant: Grant) -> CheckpointRef:
        content = Manifest(
            step=grant.ref.step,
            epoch=grant.ref.epoch,
            world_size=grant.world_size,
            job=self._settings.job,
            job_uid=self._settings.job_uid,
            files=grant.files,
            parent=grant.parent,
        )
        folder = self._directory / manifest.folder(
            content.ref
        )  # made durable by the ranks that wrote into it
        durable.write(folder / manifest.MANIFEST, content.to_bytes())
        return content.ref


def _names(folder: Path) -> tuple[str, ...]:
    return tuple(path.name for path in folder.iterdir())


def _places(root: Path) -> Iterator[Place]:
    """Folders only: whatever else somebody puts there is nobody's to prune."""
    for step in root.iterdir():
        if (found := _STEP.fullmatch(step.name)) and step.is_dir():
            for epoch in step.iterdir():
                with suppress(ValueError):
                    place = Place(Epoch.parse(epoch.name), int(found[1]))
                    if epoch.is_dir():
                        yield place
