"""The agent's end of one rank: its process, page, socket and output, and its folder for multiprocessing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from ropeteam_trainer.agent.processes.output import Output
from ropeteam_trainer.agent.processes.page import Page
from ropeteam_trainer.agent.processes.ranksocket import RankSocket
from ropeteam_trainer.contract.world import ProcessExit, WorldId

_LONGEST = 107 - len("/listener-12345678")
"""Of the path of a folder with sockets of multiprocessing: that of a Unix socket may have 107 bytes."""


@dataclass
class RankProcess:
    """`pid` None: not started, or reaped."""

    world_id: WorldId
    rank: int
    page: Page
    socket: RankSocket
    output: Output
    write_end: int
    """Write end of the pipe to `output`, until the process has it. -1: closed here."""
    folder: Path | None
    """Of multiprocessing in the rank and its children. None: each process makes one, as without an agent."""
    pid: int | None = None
    library_pid: int = 0
    """Pid of the process that makes the steps, as it reported: it may be the child of a launcher."""
    dying_since: float | None = None
    """Set once dying is reported, or SIGKILL was sent: SESSION_END_SECONDS later the rank is unkillable."""
    exit: ProcessExit = ProcessExit(None, signal.SIGKILL)
    """The exit, as soon as it is known."""
    why_alive: str = "it does not end"
    """Reason why a process of the rank still lives, if one does."""
    is_reported_unkillable: bool = False

    def close(self) -> None:
        """Close pipe, output, socket and page, and remove the files, once no process of the rank lives. The
        last lines stay readable."""
        if self.write_end >= 0:
            os.close(self.write_end)
        self.output.close()
        self.socket.close()
        self.page.close()
        remove_folder(self.folder)
        with contextlib.suppress(OSError):  # another rank of this world has files in it
            self.page.path.parent.rmdir()


def create_folder(path: Path) -> Path | None:
    """Create the empty folder of a rank for multiprocessing. None: the path is too long, or in use by what
    cannot be removed, and the rank's processes put into the pod's temporary folder what they leave when they
    are killed. Raises OSError."""
    if len(os.fsencode(path)) > _LONGEST:
        return None
    remove_folder(path)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return None
    return path


def remove_folder(path: Path | None) -> None:
    """Remove what create_folder has created. What cannot be removed stays, no more."""
    if path:
        shutil.rmtree(path, ignore_errors=True)
