"""Operations on disk: claim the checkpoint folder, write a granted manifest, prune. Blocking; for a thread.

A job's folder in the checkpoint directory is its run (`run-<job's UID>`); the directory itself may be shared
by jobs. checkpoint/decisions/journal.py decides on operations and their order; here each operation is one
system call or two, durable when they return. All functions raise OSError, and Superseded if a newer world has
claimed the run.
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
from ropeteam_trainer.checkpoint.deletion import delete_checkpoint
from ropeteam_trainer.checkpoint.directory import checkpoint_directory
from ropeteam_trainer.contract import codec, seals
from ropeteam_trainer.contract.config import WorkerConfig
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.seals import Keys
from ropeteam_trainer.contract.world import CheckpointRef, Plan
from ropeteam_trainer.system.folders import Folder, UnexpectedFile

T = TypeVar("T")
_NUMBER = re.compile(r"\d{1,9}")
"""Number of a run. More digits are no number of ours: the next one could not be sorted by name."""


@dataclass(frozen=True)
class Claimed:
    """Result of a claim."""

    held: Held
    restore: tuple[CheckpointRef, ...]
    """Checkpoints that the world may resume from, best first."""
    ancestors: tuple[tuple[CheckpointRef, ...], ...]
    """For each of `restore`, in its order: its ancestors among the others."""


def claim(settings: WorkerConfig, pod_uid: str, plan: Plan, keys: Keys = ()) -> Claimed:
    """Claim the run for the world of this plan, before its ranks start. Creates the run's folders. `keys`
    verify entries of the journal."""
    disk = RunFolder(settings)
    disk.create_folders()
    held = disk.carry_out(journal.claim(Claim(plan.world_id, pod_uid)))
    entries = seals.run_keys(keys, settings.job_uid)
    restore = disk.carry_out(journal.lineage(held, plan.restore, entries))
    return Claimed(held, restore, disk.carry_out(journal.ancestors(restore, entries)))


def write_manifest(settings: WorkerConfig, held: Held, grant: Grant, keys: Keys = ()) -> CheckpointRef:
    """Commit a granted checkpoint: write its manifest, signed with `keys`, and its journal entry. Returns its
    reference, with digest. Idempotent: the same grant gives the same bytes."""
    entries = seals.run_keys(keys, settings.job_uid)
    return RunFolder(settings, keys).carry_out(journal.commit(held, grant, entries))


def prune(settings: WorkerConfig, held: Held, keep: tuple[CheckpointRef, ...]) -> tuple[CheckpointKey, ...]:
    """Delete checkpoints of this run that are not in `keep` and not newer than its first. Returns those
    deleted; what is left of them after an error is deleted by the next call."""
    return RunFolder(settings).carry_out(journal.prune(held, keep))


class RunFolder:
    """The folder of one run. `keys` sign manifests. Folders are opened for each operation, without following
    links."""

    def __init__(self, settings: WorkerConfig, keys: Keys = ()) -> None:
        assert settings.checkpoint is not None
        self._settings, self._keys = settings, keys
        self._directory = checkpoint_directory(settings.checkpoint)
        self._run = manifest.run_folder(settings.job_uid)

    def create_folders(self) -> None:
        """Create the run's folder, its journal and its entry `<number>.<job's UID>` in the directory's list
        of runs, where they do not exist. Numbers give the order in which runs first claimed the directory: no
        clock can order them. Two runs that begin at once may get the same number."""
        with (
            Folder.at(self._directory, make=True) as directory,
            directory.open_folder(self._run, make=True) as run,
            run.open_folder(manifest.JOURNAL, make=True) as entries,
            directory.open_folder(manifest.RUNS, make=True) as runs,
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
        """Carry out the operations that a generator of journal.py yields, and return its result. The folders
        must exist. Raises OSError, and what the generator raises."""
        answer: Any = None
        with (
            Folder.at(self._directory) as directory,
            directory.open_folder(self._run) as run,
            run.open_folder(manifest.JOURNAL) as entries,
        ):
            try:
                while True:
                    answer = self._do(directory, run, entries, steps.send(answer))
            except StopIteration as end:
                result: T = end.value
                return result

    def _do(self, directory: Folder, run: Folder, entries: Folder, operation: Operation) -> Any:
        """Carry out one operation, and return its result, as journal.py describes it. Raises OSError.
        `entries`: the journal's folder."""
        match operation:
            case journal.List():
                return tuple(entries.names())
            case journal.Create(name):
                with suppress(FileExistsError):
                    entries.create(name)
                return entries.sync()  # also if it existed: its writer may have died before this
            case journal.Write(name, text):
                return entries.write(name, text.encode())
            case journal.ReadEntry(name):
                with suppress(FileNotFoundError, UnexpectedFile):
                    return entries.read(name, manifest.MAX_BYTES).decode(errors="replace")
                return ""
            case journal.Rename(name, to):
                return _rename_if_exists(entries, name, to)
            case journal.Remove(name):
                return entries.remove(name)
            case journal.Folders():
                return tuple(_checkpoint_keys(run))
            case journal.Delete(key, outside_run=False):
                return delete_checkpoint(run, key.step, key.world_id)
            case journal.Delete(key):
                return self._delete_own(directory, key)
            case journal.WriteManifest(grant):
                return self._write_manifest(directory, run, grant)

    def _write_manifest(self, directory: Folder, run: Folder, grant: Grant) -> CheckpointRef:
        """Write the manifest beside the files of the grant: in the run, else in the directory itself, where a
        library in the image saves that is older than runs; the reference names no run then. Raises OSError:
        FileNotFoundError if the files are in neither."""
        try:
            return self._write_manifest_in(run, grant)
        except FileNotFoundError:
            if self._has_own_files(directory, grant):
                return replace(self._write_manifest_in(directory, grant), run="")
            raise

    def _has_own_files(self, directory: Folder, grant: Grant) -> bool:
        """Whether all files of the grant, by name and size, lie in the directory itself, without the manifest
        of another job: numbers of worlds repeat there. False also if they cannot be read."""
        with suppress(OSError, ValueError), directory.open_below(manifest.path_in_run(grant.ref)) as folder:
            whole = all(folder.size(file.name) == file.size for file in grant.files)
            return whole and (not folder.has(manifest.MANIFEST) or self._is_own(folder))
        return False

    def _delete_own(self, directory: Folder, key: CheckpointKey) -> None:
        """Delete a checkpoint in the directory itself, unless the manifest there is another job's, which has
        saved the same step since. Nothing is deleted, and nothing raised, if that cannot be read."""
        path = manifest.path_in_run(CheckpointRef(key.step, key.world_id))
        with suppress(OSError, ValueError):
            with directory.open_below(path) as folder:
                ours = self._is_own(folder)
            if ours:
                delete_checkpoint(directory, key.step, key.world_id)

    def _is_own(self, folder: Folder) -> bool:
        """Whether this job wrote the checkpoint in `folder`. Raises OSError if there is no manifest,
        ValueError if it cannot be parsed."""
        text = folder.read(manifest.MANIFEST, manifest.MAX_BYTES)
        return codec.decode(Manifest, text).job_uid == self._settings.job_uid

    def _write_manifest_in(self, parent: Folder, grant: Grant) -> CheckpointRef:
        """Write the manifest beside the grant's files below `parent`, whole or not at all, and durably; the
        ranks have made the files durable. Raises FileNotFoundError if their folder does not exist."""
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
        with parent.open_below(manifest.path_in_run(grant.ref)) as folder:
            folder.write(manifest.MANIFEST, text)
        return content.ref_as(text)


def _rename_if_exists(entries: Folder, name: str, to: str) -> bool:
    """Rename a file durably. False: it does not exist (any more)."""
    try:
        entries.rename(name, to)
    except FileNotFoundError:
        return False
    entries.sync()
    return True


def _checkpoint_keys(run: Folder) -> Iterator[CheckpointKey]:
    """Keys of all checkpoint folders in the run, committed or not. Other entries, links too, are left out,
    and so are folders that cannot be read: they are never pruned."""
    for step in run.names():
        if step.startswith("step-"):
            with suppress(OSError), run.open_folder(step) as folder:
                for world_id in folder.names():
                    ref = manifest.ref_at("", step, world_id)
                    if ref is not None and folder.is_folder(world_id):
                        yield key_of(ref)
