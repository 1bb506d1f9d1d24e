"""Settings for all tests. Hypothesis judges what happens, never how long it took; in CI it repeats itself."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "house",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    """A socket or file that a module forgot is found at its end, not in whatever test the collector runs."""
    yield
    gc.collect()
