"""Patience: poll a condition until it holds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = float(os.environ.get("PATIENCE", "180"))
"""Seconds until a wait gives up. Far above anything seen; a test that needs it has found a bug."""


def wait_for(what: str, probe: Callable[[], T | None], patience: float = PATIENCE) -> T:
    """The first truthy answer of `probe`. AssertionError with the last answer after `patience` seconds."""
    deadline = time.monotonic() + patience
    while not (answer := probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {patience:.0f} s; last seen: {answer!r}")
        time.sleep(0.02)
    return answer
