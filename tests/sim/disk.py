"""The shared checkpoint volume: folders of shards and manifests, as the real files would be.

A write takes time (`write_seconds`, longer on a slow disk); what dies meanwhile leaves no manifest. Files are
write-once. A folder can be damaged: then it does not verify, as a torn or altered file would not.
The content of a shard is what the simulator needs to judge a restore: which step and sample came next.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from tests.sim.promise import require

from ropeteam_trainer.checkpoint.decisions import journal
from ropeteam_trainer.checkpoint.decisions.journal import CheckpointKey, Steps
from ropeteam_trainer.checkpoint.decisions.manifest import Manifest, folder
from ropeteam_trainer.checkpoint.decisions.restore import Inspection
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId
from ropeteam_trainer.data.decisions.plan import Position

T = TypeVar("T")


@dataclass
class Folder:
    step: int
    world_id: WorldId
    files: dict[str, Position] = field(default_factory=dict)
    writers: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """Of each file, the rank, and whether it has saved for all."""
    manifest: Manifest | None = None
    damaged: bool = False


class Disk:
    def __init__(self, random: Random, job: str, job_uid: str, lead_rank: int = 0, mates: int = 1) -> None:
        """mates: ranks of a replica, which save together for all."""
        self._random, self._job, self._job_uid, self._lead_rank = random, job, job_uid, lead_rank
        self._mates = mates
        self.folders: dict[str, Folder] = {}
        self.journal: dict[str, str] = {}
        self.slowness = 1.0
        self.away = False
        """Nothing of it can be read."""
        self.missed = 0
        """Looks while it was away."""
        self.saved_positions: dict[tuple[int, WorldId], Position] = {}
        """Of every shard ever written, pruned or not."""
        self._spoilt: set[tuple[int, WorldId]] = set()

    def write_seconds(self) -> float:
        return (0.05 + 0.3 * self._random.random()) * self.slowness

    def _shard_place(self, step: int, world_id: WorldId, rank: int, whole: bool) -> tuple[Folder, list[str]]:
        leads = rank % self._mates == 0 if whole else rank == self._lead_rank
        names = ["state.pt"] if leads else []
        names.append(f"rank-{rank}.pt")
        name = folder(CheckpointRef(step, world_id, run=self._job_uid))
        return self.folders.setdefault(name, Folder(step, world_id)), names

    def begin_shard(self, step: int, world_id: WorldId, rank: int, whole: bool) -> None:
        """A rank that dies while it writes may have written its files, too. whole: for all ranks."""
        place, names = self._shard_place(step, world_id, rank, whole)
        for name in names:
            writer = place.writers.setdefault(name, (rank, whole))
            require(writer == (rank, whole), "two never write the same file", step, world_id, name)

    def write_shard(
        self, step: int, world_id: WorldId, rank: int, position: Position, whole: bool = False
    ) -> tuple[ShardFile, ...]:
        self.saved_positions[step, world_id] = position
        place, names = self._shard_place(step, world_id, rank, whole)
        for name in names:
            place.files[name] = position
        return tuple(ShardFile(name, 100, f"{step}/{world_id}/{name}") for name in names)

    def write_manifest(self, grant: Grant) -> CheckpointRef:
        """Raises OSError: a file that the grant names is not there."""
        place = self.folders.get(folder(grant.ref))
        assert grant.ref.run == self._job_uid
        if place is None or any(file.name not in place.files for file in grant.files):
            raise FileNotFoundError(folder(grant.ref))
        manifest = Manifest(
            grant.ref.step,
            grant.ref.world_id,
            grant.world_size,
            self._job,
            self._job_uid,
            grant.files,
            grant.parent,
        )
        if place.manifest is None:
            place.manifest = manifest
        return place.manifest.ref

    def look(self, ref: CheckpointRef) -> Inspection:
        """As the reader of real files would find it."""
        if self.away:
            self.missed += 1
            return Inspection(None, "its manifest cannot be read: [Errno 116] Stale file handle", unsure=True)
        ref = replace(ref, run=ref.run or self._job_uid)
        place = self.folders.get(folder(ref))
        if place is None or place.manifest is None:
            return Inspection(None, "there is no manifest")
        if ref.digest and place.manifest.ref.digest != ref.digest:
            return Inspection(None, "the manifest is another one")
        missing = [file.name for file in place.manifest.files if file.name not in place.files]
        if place.damaged or missing:
            return Inspection(place.manifest, f"files are damaged or missing: {missing}")
        return Inspection(place.manifest, ref=place.manifest.ref)

    def position(self, ref: CheckpointRef) -> Position:
        return self.folders[folder(ref)].files["state.pt"]

    def found(self) -> tuple[CheckpointRef, ...]:
        """A listing of the directory: folders with a manifest."""
        return tuple(place.manifest.ref for place in self.folders.values() if place.manifest)

    def carry_out(self, steps: Steps[T]) -> T:
        """Do in one instant what the journal of checkpoints requests. Which interleavings are harmless is
        shown by tests/agent/test_claims.py."""
        answer: Any = None
        try:
            while True:
                answer = self._do(steps.send(answer))
        except StopIteration as end:
            result: T = end.value
            return result

    def _do(self, operation: journal.Operation) -> Any:
        match operation:
            case journal.List():
                return tuple(self.journal)
            case journal.Create(name):
                self.journal.setdefault(name, "")
            case journal.Write(name, text):
                self.journal[name] = text
            case journal.ReadEntry(name):
                return self.journal.get(name, "")
            case journal.Rename(name, to):
                there = name in self.journal
                if there:
                    self.journal[to] = self.journal.pop(name)
                return there
            case journal.Remove(name):
                del self.journal[name]
            case journal.Folders():
                return tuple(CheckpointKey(each.world_id, each.step) for each in self.folders.values())
            case journal.Delete(place):
                del self.folders[folder(CheckpointRef(place.step, place.world_id, run=self._job_uid))]
            case journal.WriteManifest(grant):
                return self.write_manifest(grant)
        return None

    def damage_newest(self) -> bool:
        """Alter a file of the newest checkpoint, if there is an older one to fall back to."""
        whole = sorted((place.world_id, place.step) for place in self.folders.values() if place.manifest)
        if len(whole) < 2:
            return False
        world_id, step = whole[-1]
        self.folders[folder(CheckpointRef(step, world_id, run=self._job_uid))].damaged = True
        self._spoilt.add((step, world_id))
        return True

    def spoilt(self, step: int, world_id: WorldId) -> bool:
        return (step, world_id) in self._spoilt
