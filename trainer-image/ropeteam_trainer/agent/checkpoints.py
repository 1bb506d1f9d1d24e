"""Operations on disk: claim a run, write a granted manifest, prune. Blocking; for a thread.

checkpoint/decisions/journal.py decides on operations and their order; here each operation is one system call
or two, durable when they return. Raises OSError, and Superseded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ropeteam_trainer.checkpoint.decisions import journal, manifest
from ropeteam_trainer.checkpoint.decisions.journal import CheckpointKey, Claim, Held, Operation, Steps, key_of
from ropeteam_trainer.checkpoint.decisions.manifest import Manifest
from ropeteam_trainer.checkpoint.deletion import delete
from ropeteam_trainer.contract import codec, seals
from ropeteam_trainer.contract.config import WorkerConfig
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.seals import Keys
from ropeteam_trainer.contract.world import CheckpointRef, Plan
from ropeteam_trainer.system.folders import Folder, UnexpectedFile, location

T = TypeVar("T")
_NUMBER = re.compile(r"\d{1,9}")


@dataclass(frozen=True)
class Claimed:
    held: Held
    restore: tuple[CheckpointRef, ...]
    """Checkpoints that the world may resume from, best first."""
    ancestors: tuple[tuple[CheckpointRef, ...], ...]
    """The ancestors of each of these among the others."""


def claim(settings: WorkerConfig, pod_uid: str, plan: Plan, keys: Keys = ()) -> Claimed:
    """Claim the run, before a world of this plan saves or restores anything."""
    disk = Disk(settings)
    disk.enter()
    held = disk.carry_out(journal.claim(Claim(plan.world_id, pod_uid)))
    entries = seals.of_run(keys, settings.job_uid)
    restore = disk.carry_out(journal.lineage(held, plan.restore, entries))
    return Claimed(held, restore, disk.carry_out(journal.ancestors(restore, entries)))


def write_manifest(settings: WorkerConfig, held: Held, grant: Grant, keys: Keys = ()) -> CheckpointRef:
    """Write the manifest of a grant. Idempotent: the same grant gives the same bytes."""
    entries = seals.of_run(keys, settings.job_uid)
    return Disk(settings, keys).carry_out(journal.commit(held, grant, entries))


def prune(settings: WorkerConfig, held: Held, keep: tuple[CheckpointRef, ...]) -> tuple[CheckpointKey, ...]:
    """Delete checkpoints of this run older than the newest of `keep` and not in it; returns those deleted."""
    return Disk(settings).carry_out(journal.prune(held, keep))


class Disk:
    """The folder of one run."""

    def __init__(self, settings: WorkerConfig, keys: Keys = ()) -> None:
        """A run's folder from settings. `keys` sign manifests."""
        assert settings.checkpoint is not None
        self._settings, self._keys = settings, keys
        self._directory = location(settings.checkpoint.directory, settings.checkpoint.volume)
        self._run = manifest.run_folder(settings.job_uid)

    def enter(self) -> None:
        """Create the run's folders. Runs are numbered in the order in which they first claimed the directory:
        no clock can order them."""
        with (
            Folder.at(self._directory, make=True) as directory,
            directory.folder(self._run, make=True) as run,
            run.folder(manifest.JOURNAL, make=True) as entries,
            directory.folder(manifest.RUNS, make=True) as runs,
        ):
            names = runs.names()
            if not any(name.partition(".")[2] == self._settings.job_uid for name in names):
                numbers = (name.partition(".")[0] for name in names)
                number = max((int(text) for text in numbers if _NUMBER.fullmatch(text)), default=0) + 1
                with suppress(FileExistsError):
                    runs.create(f"{number:06}.{self._settings.job_uid}")
            for folder in (entries, run, runs, directory):
                folder.sync()

    def carry_out(self, steps: Steps[T]) -> T:
        answer: Any = None
        with (
            Folder.at(self._directory) as directory,
            directory.folder(self._run) as run,
            run.folder(manifest.JOURNAL) as entries,
        ):
            try:
                while True:
                    answer = self._do(directory, run, entries, steps.send(answer))
            except StopIteration as end:
                result: T = end.value
                return result

    def _do(self, directory: Folder, run: Folder, entries: Folder, operation: Operation) -> Any:
        match operation:
            case journal.List():
                return tuple(entries.names())
            case journal.Create(name):
                with suppress(FileExistsError):
                    entries.create(name)
                return entries.sync()
            case journal.Write(name, text):
                return entries.write(name, text.encode())
            case journal.ReadEntry(name):
                with suppress(FileNotFoundError, UnexpectedFile):
                    return entries.read(name, manifest.MAX_BYTES).decode(errors="replace")
                return ""
            case journal.Rename(name, to):
                return _rename(entries, name, to)
            case journal.Remove(name):
                return entries.remove(name)
            case journal.Folders():
                return tuple(_keys(run))
            case journal.Delete(key, apart=False):
                return delete(run, key.step, key.world_id)  # the next prune retries what is left
            case journal.Delete(key):
                return self._delete_own(directory, key)
            case journal.WriteManifest(grant):
                return self._commit(directory, run, grant)

    def _commit(self, directory: Folder, run: Folder, grant: Grant) -> CheckpointRef:
        """Write the manifest, also for a library in the image that is too old to use the folders of runs and
        saves into the directory itself."""
        try:
            return self._write_manifest(run, grant)
        except FileNotFoundError:
            if self._contains(directory, grant):
                return replace(self._write_manifest(directory, grant), run="")
            raise

    def _contains(self, directory: Folder, grant: Grant) -> bool:
        """Whether all files of the grant lie in the directory, and are of no other run: numbers
        of worlds repeat there."""
        with suppress(OSError, ValueError), directory.down(manifest.path_in_run(grant.ref)) as folder:
            whole = all(folder.size(file.name) == file.size for file in grant.files)
            return whole and (not folder.has(manifest.MANIFEST) or self._is_own(folder))
        return False

    def _delete_own(self, directory: Folder, key: CheckpointKey) -> None:
        """Delete a checkpoint, unless another run has saved the same step there since."""
        path = manifest.path_in_run(CheckpointRef(key.step, key.world_id))
        with suppress(OSError, ValueError):
            with directory.down(path) as folder:
                ours = self._is_own(folder)
            if ours:
                delete(directory, key.step, key.world_id)

    def _is_own(self, folder: Folder) -> bool:
        """Whether this job wrote the checkpoint. Raises OSError, ValueError if it has no manifest."""
        text = folder.read(manifest.MANIFEST, manifest.MAX_BYTES)
        return codec.decode(Manifest, text).job_uid == self._settings.job_uid

    def _write_manifest(self, parent: Folder, grant: Grant) -> CheckpointRef:
        """Write the manifest beside the files, whose writers have made their names durable."""
        content = Manifest(
            step=grant.ref.step,
            world_id=grant.ref.world_id,
            world_size=grant.world_size,
            job=self._settings.job,
            job_uid=self._settings.job_uid,
            files=grant.files,
            parent=grant.parent,
        )
        text = content.to_bytes(self._keys)
        with parent.down(manifest.path_in_run(grant.ref)) as folder:
            folder.write(manifest.MANIFEST, text)
        return content.ref_as(text)


def _rename(entries: Folder, name: str, to: str) -> bool:
    try:
        entries.rename(name, to)
    except FileNotFoundError:
        return False
    entries.sync()
    return True


def _keys(run: Folder) -> Iterator[CheckpointKey]:
    """Checkpoint folders only: other entries, links too, are never pruned; nor are folders that cannot be
    read."""
    for step in run.names():
        if step.startswith("step-"):
            with suppress(OSError), run.folder(step) as folder:
                for world_id in folder.names():
                    ref = manifest.ref_at("", step, world_id)
                    if ref is not None and folder.is_folder(world_id):
                        yield key_of(ref)
