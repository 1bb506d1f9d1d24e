"""The file that makes a folder a checkpoint.

    <directory>/step-<step>/<epoch>/__<rank>_0.distcp   tensors, or blocks of them: each is in one file
    <directory>/step-<step>/<epoch>/.metadata           which tensor is where, written by rank 0
    <directory>/step-<step>/<epoch>/state.pt            plain values that all ranks share, written by rank 0
    <directory>/step-<step>/<epoch>/rank-<rank>.pt      what differs per rank: RNG
    <directory>/step-<step>/<epoch>/manifest.json       written last, by the agent of rank 0, after a grant

The first two are the format of torch.distributed.checkpoint. Files are write-once. Without a
manifest that verifies, a folder is not a checkpoint. Standard library only: the agent writes manifests and
never imports torch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.world import CheckpointRef, Epoch, ShardFile

MANIFEST = "manifest.json"
METADATA = ".metadata"
STATE = "state.pt"
FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    step: int
    epoch: Epoch
    world_size: int
    job: str
    job_uid: str
    files: tuple[ShardFile, ...]
    parent: CheckpointRef | None
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        return codec.encode(self)

    @property
    def ref(self) -> CheckpointRef:
        return CheckpointRef(self.step, self.epoch, hashlib.sha256(self.to_bytes()).hexdigest())


def folder(ref: CheckpointRef) -> str:
    """Relative to the checkpoint directory."""
    return f"step-{ref.step}/{ref.epoch}"


def ref_text(ref: CheckpointRef) -> str:
    """`step-12/1.0.3#<digest>`: how a reference travels in RankPlan."""
    return f"{folder(ref)}#{ref.digest}"


def parse_ref(text: str) -> CheckpointRef:
    """The inverse of ref_text. Raises ValueError."""
    path, _, digest = text.partition("#")
    step, epoch = path.removeprefix("step-").split("/")
    return CheckpointRef(int(step), Epoch.parse(epoch), digest)
