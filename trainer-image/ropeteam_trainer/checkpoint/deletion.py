"""Deletion of one checkpoint. Standard library only: agents prune, and never import torch."""

from __future__ import annotations

from contextlib import suppress

from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.system.folders import Folder, UnexpectedFile


def delete_checkpoint(run: Folder, step: int, world_id: WorldId) -> None:
    """Delete a checkpoint from the folder of its run, as far as possible: no OSError is raised. A missing one
    is no error. Another world's save of the same step stays."""
    name = f"step-{step}"
    with suppress(OSError), run.open_folder(name) as folder:
        with (
            suppress(FileNotFoundError, UnexpectedFile, IsADirectoryError),
            folder.open_folder(str(world_id)) as inner,
        ):
            inner.remove(MANIFEST)  # without it a half-deleted folder is no checkpoint any more
        folder.remove_tree(str(world_id))
        with suppress(OSError):  # another world has saved the same step
            run.remove_folder(name)
