"""train.py on a volume with faults: hiccup.py FAULT RANK COUNT PATIENCE [train.py's options].

The first COUNT times (-1: always) that rank RANK (-1: any) opens a file of a checkpoint whose name matches
FAULT ("errno:pattern"), open() fails with that errno; each time "FIRED <rank>" is printed.
"""

from __future__ import annotations

import fnmatch
import os
import runpy
import sys
import threading
from pathlib import Path
from typing import BinaryIO

from ropeteam_trainer.checkpoint import agreement
from ropeteam_trainer.system.folders import Folder

fault, rank, count, patience = sys.argv[1:5]
number, pattern = int(fault.split(":")[0]), fault.split(":")[1]
left = int(count)
here = int(os.environ["RANK"])
real = Folder.open
lock = threading.Lock()  # several threads verify files
agreement.RETRY_SECONDS = float(patience)
agreement.FIRST_PAUSE = agreement.LONGEST_PAUSE = 0.05


def faulty(self: Folder, name: str) -> BinaryIO:
    global left
    reads = "/step-" in self.path
    if reads and int(rank) in (here, -1) and fnmatch.fnmatch(name, pattern):
        with lock:
            fires, left = left != 0, left - (left != 0)
        if not fires:
            return real(self, name)
        print(f"FIRED {here}", flush=True)
        raise OSError(number, os.strerror(number), f"{self.path}/{name}")
    return real(self, name)


Folder.open = faulty  # type: ignore[method-assign]
script = str(Path(__file__).with_name("train.py"))
sys.argv = [script, *sys.argv[5:]]
runpy.run_path(script, run_name="__main__")
