"""Record of each rank's steps, exact to the bit, for tests.

With ROPETEAM_TRACE=file, rank N appends to `file.N` one JSON line per report():

    {"world": "1.0.2", "step": 41, "epoch": 0, "samples": [17, 4], "loss": "0x1.8p+1"}

`samples` are the ids that this rank took since the last report (in order), `loss` the
value that it reported (float.hex, null if none). A step that was done twice has two lines; the one of the
newer world counts. One write call per line: a killed rank leaves no partial line behind.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence


class Trace:
    """Trace file of one rank, open until the process ends."""

    def __init__(self, path: str, rank: int, world: str) -> None:
        """path: the file's name without the rank."""
        self._file = os.open(f"{path}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._world = world

    def write_step(self, step: int, epoch: int, samples: Sequence[int], loss: float | None) -> None:
        """Append the line of one step. samples: ids since the last line."""
        line = {
            "world": self._world,
            "step": step,
            "epoch": epoch,
            "samples": list(samples),
            "loss": None if loss is None else float(loss).hex(),
        }
        os.write(self._file, json.dumps(line).encode() + b"\n")
