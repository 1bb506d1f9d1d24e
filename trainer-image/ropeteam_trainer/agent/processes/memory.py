"""The folder in memory that outlives ranks: there parameter servers keep what must survive their processes.

Order: made when the agent starts -> emptied whenever a plan begins anew, so that nobody goes on from state
that others have left behind -> removed when the agent ends. Limits: it is part of the container's memory.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from ropeteam_trainer.agent.log import log
from ropeteam_trainer.contract import config


def make(pod_uid: str, scratch: Path) -> Path:
    """An empty folder, ours alone. In `scratch` if there is no memory to write to."""
    folder = Path(config.memory_folder(pod_uid))
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        folder = scratch / "memory"
        log(f"parameter servers keep their state in {folder}, on disk, because of: {error}")
        folder.mkdir(mode=0o700)
    return folder


def empty(folder: Path) -> None:
    """Raises OSError: what is left there would be taken for the state of the ranks to come."""
    for each in folder.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink(missing_ok=True)
