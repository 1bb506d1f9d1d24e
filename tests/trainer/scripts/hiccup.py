"""train.py on a volume with faults: hiccup.py FAULT RANK COUNT PATIENCE [train.py's options].

The first COUNT times (-1: always) that rank RANK (-1: any) opens a file of a checkpoint whose name matches
FAULT ("errno:pattern"), open() fails with that errno; each time "FIRED <rank>" is printed.
"""

from __future__ import annotations

import builtins
import fnmatch
import io
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from ropeteam_trainer.checkpoint import together

fault, rank, count, patience = sys.argv[1:5]
number, pattern = int(fault.split(":")[0]), fault.split(":")[1]
left = int(count)
here = int(os.environ["RANK"])
real = io.open
together.PATIENCE_SECONDS = float(patience)
together.FIRST_PAUSE = together.LONGEST_PAUSE = 0.05


def faulty(path: Any, mode: str = "r", *more: Any, **fields: Any) -> Any:
    global left
    reads = isinstance(path, (str, Path)) and "/step-" in str(path) and "r" in mode
    if reads and left != 0 and int(rank) in (here, -1) and fnmatch.fnmatch(Path(path).name, pattern):
        left -= 1
        print(f"FIRED {here}", flush=True)
        raise OSError(number, os.strerror(number), str(path))
    return real(path, mode, *more, **fields)


io.open = builtins.open = faulty  # type: ignore[assignment]
script = str(Path(__file__).with_name("train.py"))
sys.argv = [script, *sys.argv[5:]]
runpy.run_path(script, run_name="__main__")
