"""Manifest: the file that makes a folder a checkpoint.

    <directory>/runs/<number>.<UID>     order in which runs began; a TrainingJob object is a run
    <directory>/run-<UID>/journal/      which of its checkpoints are committed (journal.py)
    <directory>/run-<UID>/step-<step>/<world>/
        __<rank>_0.distcp   tensors, or blocks of them: each is in one file
        .metadata           index of the tensors, written by rank 0
        state.pt            plain values that all ranks share, written by rank 0
        rank-<rank>.pt      state of one rank: RNG
        manifest.json       written last, by the agent of rank 0, after a grant

Without an operator, and before runs had folders of their own, it is <directory>/step-<step>/<world>/. The
first two are the format of torch.distributed.checkpoint. Files are write-once. Without a
manifest that verifies, a folder is not a checkpoint. Standard library only: the agent writes manifests and
never imports torch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

from ropeteam_trainer.contract import codec, seals
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId

MANIFEST = "manifest.json"
METADATA = ".metadata"
STATE = "state.pt"
JOURNAL = "journal"
RUNS = "runs"
FORMAT = 1
MAX_BYTES = 16 << 20
"""Limit on a manifest, and on a file of the journal: 8 times the size that 8,192 ranks need."""


@dataclass(frozen=True)
class Manifest:
    step: int
    world_id: WorldId = field(metadata={codec.JSON_NAME: "epoch"})
    world_size: int
    job: str
    job_uid: str
    files: tuple[ShardFile, ...]
    parent: CheckpointRef | None
    format: int = FORMAT

    def to_bytes(self, keys: seals.Keys = ()) -> bytes:
        """Content of the file: JSON, signed if there are keys."""
        return seals.signed(MANIFEST, codec.encode(self), keys)

    @property
    def ref(self) -> CheckpointRef:
        """Reference of a manifest that was just created, and is not signed."""
        return self.ref_as(self.to_bytes())

    def ref_as(self, content: bytes) -> CheckpointRef:
        """Reference with the digest of `content`: the bytes on disk, which may have other fields."""
        return CheckpointRef(self.step, self.world_id, hashlib.sha256(content).hexdigest(), self.job_uid)


def run_folder(run: str) -> str:
    """Folder of the job with this UID, relative to the checkpoint directory. "" for "": no run, the directory
    itself."""
    return f"run-{run}" if run else ""


def folder(ref: CheckpointRef) -> str:
    """Folder of a checkpoint, relative to the checkpoint directory."""
    return f"{run_folder(ref.run)}/{path_in_run(ref)}" if ref.run else path_in_run(ref)


def path_in_run(ref: CheckpointRef) -> str:
    """Folder of a checkpoint, relative to the folder of its run."""
    return f"step-{ref.step}/{ref.world_id}"


def ref_at(run: str, step: str, world: str) -> CheckpointRef | None:
    """Reference of the checkpoint in folders of these names. None: we write no such names."""
    try:
        ref = replace(parse_ref(f"{step}/{world}"), run=run)
    except ValueError:
        return None
    return ref if path_in_run(ref) == f"{step}/{world}" else None


def ref_text(ref: CheckpointRef) -> str:
    """`run-<UID>/step-12/1.0.3#<digest>`: text form of a reference, in RankPlan."""
    return f"{folder(ref)}#{ref.digest}"


def rank_file(rank: int) -> str:
    """Name of the file with a rank's own state."""
    return f"rank-{rank}.pt"


def parse_ref(text: str) -> CheckpointRef:
    """Inverse of ref_text(). Run and digest may be missing. Raises ValueError."""
    path, _, digest = text.partition("#")
    *run, step, world = path.split("/")
    number = int(step.removeprefix("step-"))
    return CheckpointRef(number, WorldId.parse(world), digest, "/".join(run).removeprefix("run-"))
