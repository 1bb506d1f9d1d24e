"""A script that waits after a step for a file: held.py STEP FILE SCRIPT [its options]."""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path
from typing import Any

from ropeteam_trainer.job import Job

step, file = int(sys.argv[1]), Path(sys.argv[2])
real = Job.report


def report(self: Job, **keywords: Any) -> None:
    real(self, **keywords)
    while self.step >= step and not file.exists():
        time.sleep(0.01)


Job.report = report  # type: ignore[method-assign]
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
