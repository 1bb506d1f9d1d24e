"""A run beside ours in the checkpoint folder: what the job left that had this name before, and still has.

It has claims and checkpoints of our worlds and of far newer ones, written by the shipped code. Whatever
happens to our job, nothing of it is changed, pruned, restored from or named by us (spec.resume.policy Never).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from ropeteam_trainer.agent import checkpoints
from ropeteam_trainer.checkpoint.decisions import journal
from ropeteam_trainer.checkpoint.decisions.manifest import folder, run_folder
from ropeteam_trainer.contract.config import CheckpointConfig
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId

UID = "trainingjob-0"
_CONTENT = b"of another job"
_SAVED = {WorldId(1, 0, 1): (4, 8), WorldId(9, 0, 1): (400, 404)}


def move_in(root: Path) -> None:
    settings = SimpleNamespace(checkpoint=CheckpointConfig(str(root)), job_uid=UID, job="climb")
    disk = checkpoints.RunFolder(cast(Any, settings))
    disk.create_folders()
    for world_id, steps in _SAVED.items():
        held = disk.carry_out(journal.claim(journal.Claim(world_id, "pod-0")))
        for step in steps:
            ref = CheckpointRef(step, world_id, run=UID)
            place = root / folder(ref)
            place.mkdir(parents=True)
            (place / "state.pt").write_bytes(_CONTENT)
            file = ShardFile("state.pt", len(_CONTENT), hashlib.sha256(_CONTENT).hexdigest())
            disk.carry_out(journal.commit(held, Grant(ref, 1, (file,), None)))


def look(root: Path) -> dict[str, bytes]:
    """All of its files."""
    run = root / run_folder(UID)
    return {
        str(path.relative_to(run)): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()
    }
