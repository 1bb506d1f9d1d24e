"""exact.py, whose steps a test permits, and which ends or stops itself at a chosen call.

    recovered.py STRATEGY MODEL 0 [ORDER]

PERMITTED: file with two numbers: the last step that may begin, and the last one of the training (0: not known
yet). FAULT_<rank>, if set: "MODULE:FUNCTION CALL SIGNAL", or several of these: the signal that this process
sends itself at this call of the function, counted from 1. HANG: no signal, but the call never returns. HOLD:
no signal, but the call waits for a file beside PERMITTED that ends with .released.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import runpy
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from ropeteam_trainer.job import Job

_POLL_SECONDS = 0.005
_batches = Job.batches


def permitted_batches(job: Job, *arguments: Any, **named: Any) -> Iterator[Any]:
    with closing(_batches(job, *arguments, **named)) as batches:  # type: ignore[type-var]
        for batch in batches:
            if not may_begin(job.step + 1):
                return
            yield batch


def may_begin(step: int) -> bool:
    """Wait until this step is permitted. False: the one before was the last."""
    while True:
        permitted, last = map(int, Path(os.environ["PERMITTED"]).read_text().split())
        if last and step > last:
            return False
        if step <= permitted:
            return True
        time.sleep(_POLL_SECONDS)


def wait_for_release() -> None:
    while not Path(os.environ["PERMITTED"]).with_suffix(".released").exists():
        time.sleep(_POLL_SECONDS)


def inject(place: str, call: str, name: str) -> None:
    module, _, path = place.partition(":")
    *outer, last = path.split(".")
    owner = functools.reduce(getattr, outer, importlib.import_module(module))
    original, calls = getattr(owner, last), itertools.count(1)

    @functools.wraps(original)
    def faulty(*arguments: Any, **named: Any) -> Any:
        if next(calls) == int(call):
            if name == "HANG":
                threading.Event().wait()
            if name == "HOLD":
                wait_for_release()
                return original(*arguments, **named)
            os.kill(os.getpid(), signal.Signals[name])
        return original(*arguments, **named)

    setattr(owner, last, faulty)


Job.batches = permitted_batches  # type: ignore[assignment, method-assign]
faults = os.environ.get(f"FAULT_{os.environ['RANK']}", "").split()
for place, call, name in zip(*[iter(faults)] * 3, strict=True):
    inject(place, call, name)
runpy.run_path(str(Path(__file__).with_name("exact.py")), run_name="__main__")
