"""The shared checkpoint volume: folders of shards and manifests, as the real files would be.

A write takes time (`write_seconds`, longer on a slow disk); what dies meanwhile leaves no manifest. Files are
write-once. A folder can be damaged: then it does not verify, as a torn or altered file would not.
The content of a shard is what the simulator needs to judge a restore: which step and sample came next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from ropeteam_trainer.checkpoint.manifest import Manifest, folder
from ropeteam_trainer.checkpoint.restore import Look
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.world import CheckpointRef, Epoch, ShardFile
from ropeteam_trainer.data.plan import Position


@dataclass
class Folder:
    step: int
    epoch: Epoch
    files: dict[str, Position] = field(default_factory=dict)
    manifest: Manifest | None = None
    damaged: bool = False


class Disk:
    def __init__(self, random: Random, job: str, job_uid: str, lead_rank: int = 0) -> None:
        self._random, self._job, self._job_uid, self._lead_rank = random, job, job_uid, lead_rank
        self.folders: dict[str, Folder] = {}
        self.slowness = 1.0
        self.saved_positions: dict[tuple[int, Epoch], Position] = {}
        """Of every shard ever written, pruned or not."""
        self._spoilt: set[tuple[int, Epoch]] = set()

    def write_seconds(self) -> float:
        return (0.05 + 0.3 * self._random.random()) * self.slowness

    def write_shard(self, step: int, epoch: Epoch, rank: int, position: Position) -> tuple[ShardFile, ...]:
        self.saved_positions[step, epoch] = position
        names = ["state.pt"] if rank == self._lead_rank else []
        names.append(f"rank-{rank}.pt")
        place = self.folders.setdefault(folder(CheckpointRef(step, epoch)), Folder(step, epoch))
        for name in names:
            place.files[name] = position
        return tuple(ShardFile(name, 100, f"{step}/{epoch}/{name}") for name in names)

    def write_manifest(self, grant: Grant) -> CheckpointRef | None:
        """None: a file that the grant names is not there."""
        place = self.folders.get(folder(grant.ref))
        if place is None or any(file.name not in place.files for file in grant.files):
            return None
        manifest = Manifest(
            grant.ref.step,
            grant.ref.epoch,
            grant.world_size,
            self._job,
            self._job_uid,
            grant.files,
            grant.parent,
        )
        if place.manifest is None:
            place.manifest = manifest
        return place.manifest.ref

    def look(self, ref: CheckpointRef) -> Look:
        """As the reader of real files would find it."""
        place = self.folders.get(folder(ref))
        if place is None or place.manifest is None:
            return Look(None, "there is no manifest")
        if ref.digest and place.manifest.ref.digest != ref.digest:
            return Look(None, "the manifest is another one")
        missing = [file.name for file in place.manifest.files if file.name not in place.files]
        if place.damaged or missing:
            return Look(place.manifest, f"files are damaged or missing: {missing}")
        return Look(place.manifest)

    def position(self, ref: CheckpointRef) -> Position:
        return self.folders[folder(ref)].files["state.pt"]

    def found(self) -> tuple[CheckpointRef, ...]:
        """What a listing of the directory gives: folders with a manifest."""
        return tuple(place.manifest.ref for place in self.folders.values() if place.manifest)

    def prune(self, keep: tuple[CheckpointRef, ...]) -> None:
        """Delete folders of steps up to the newest kept one that are not kept."""
        kept = {folder(ref) for ref in keep}
        for name in [n for n, f in self.folders.items() if n not in kept and f.step <= keep[0].step]:
            del self.folders[name]

    def damage_newest(self) -> bool:
        """Alter a file of the newest checkpoint, if there is an older one to fall back to."""
        whole = sorted((place.epoch, place.step) for place in self.folders.values() if place.manifest)
        if len(whole) < 2:
            return False
        epoch, step = whole[-1]
        self.folders[folder(CheckpointRef(step, epoch))].damaged = True
        self._spoilt.add((step, epoch))
        return True

    def spoilt(self, step: int, epoch: Epoch) -> bool:
        return (step, epoch) in self._spoilt
