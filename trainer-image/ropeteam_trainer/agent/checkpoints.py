"""On disk: write a granted manifest, prune what the lineage no longer names. Blocking; for a thread."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from ropeteam_trainer.checkpoint import manifest
from ropeteam_trainer.checkpoint.manifest import Manifest
from ropeteam_trainer.contract.config import WorkerConfig
from ropeteam_trainer.contract.messages import Grant
from ropeteam_trainer.contract.world import CheckpointRef

_STEP = re.compile(r"step-(\d+)")


def write_manifest(settings: WorkerConfig, grant: Grant) -> CheckpointRef:
    """Durable when this returns. The same grant twice gives the same bytes. Raises OSError."""
    assert settings.checkpoint is not None
    content = Manifest(
        step=grant.ref.step,
        epoch=grant.ref.epoch,
        world_size=grant.world_size,
        job=settings.job,
        job_uid=settings.job_uid,
        files=grant.files,
        parent=grant.parent,
    )
    folder = Path(settings.checkpoint.directory) / manifest.folder(grant.ref)
    final, temporary = folder / manifest.MANIFEST, folder / f".{manifest.MANIFEST}.tmp"
    with open(temporary, "wb") as file:
        file.write(content.to_bytes())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(final)
    for directory in (folder, folder.parent, folder.parent.parent):
        _sync_directory(directory)
    return content.ref


def prune(settings: WorkerConfig, keep: tuple[CheckpointRef, ...]) -> tuple[str, ...]:
    """Delete step folders older than the newest of `keep` that it does not name. What was deleted."""
    assert settings.checkpoint is not None
    root = Path(settings.checkpoint.directory)
    kept = {manifest.folder(ref) for ref in keep}
    deleted = []
    for step in [path for path in root.iterdir() if _is_pruned_up_to(path, keep[0].step)]:
        for epoch in step.iterdir():
            name = f"{step.name}/{epoch.name}"
            if name not in kept:
                # Without its manifest a half-deleted folder is no checkpoint any more.
                (epoch / manifest.MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(epoch, ignore_errors=True)
                deleted.append(name)
        if not any(step.iterdir()):
            step.rmdir()
    return tuple(deleted)


def _is_pruned_up_to(path: Path, newest: int) -> bool:
    found = _STEP.fullmatch(path.name)
    return found is not None and int(found[1]) <= newest


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
