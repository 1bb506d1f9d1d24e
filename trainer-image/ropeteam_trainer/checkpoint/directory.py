"""Location of a job's checkpoint directory. Standard library only."""

from __future__ import annotations

from pathlib import Path

from ropeteam_trainer.contract.config import CheckpointConfig
from ropeteam_trainer.system.folders import Location, VolumePath


def checkpoint_directory(config: CheckpointConfig) -> Location:
    """Location of the directory with all checkpoints. A VolumePath if it is inside of the configured volume.

    On a local cluster it may be outside: there the pod template can mount another volume at that path. An
    operator of an earlier release names no volume.
    """
    path = Path(config.directory)
    if not config.volume or not path.is_relative_to(config.volume):
        return path
    return VolumePath(Path(config.volume), path.relative_to(config.volume))
