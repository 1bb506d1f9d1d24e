"""The folder in memory that outlives ranks: parameter servers keep state in it that must survive processes.

Order: created when the agent starts -> emptied whenever a plan begins a new server generation, so that no
rank resumes from state that others left behind -> removed when the agent ends. Limits: the folder counts as
the container's memory.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from ropeteam_trainer.agent.log import log
from ropeteam_trainer.contract import config


def create_memory_folder(pod_uid: str, scratch: Path) -> Path:
    """Create an empty folder in memory, for this agent alone, or on disk in `scratch` if that fails. Raises
    OSError if that fails, too. Removes what a previous container of this pod has left."""
    folder = Path(config.memory_folder(pod_uid))
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        folder = scratch / "memory"
        log(f"parameter servers keep their state on disk, in {folder}: /dev/shm cannot be used: {error}")
        folder.mkdir(mode=0o700)
    return folder


def empty_folder(folder: Path) -> None:
    """Empty the folder. Raises OSError: left-over files would be taken for the state of the next ranks."""
    for each in folder.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink(missing_ok=True)
