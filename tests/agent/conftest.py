"""A coordinator and a pod for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.harness import Coordinator, Pod


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    coordinator = Coordinator()
    await coordinator.start()
    yield coordinator
    await coordinator.stop()


@pytest.fixture
def make_pod(tmp_path: Path, coordinator: Coordinator) -> Iterator[Any]:
    pods: list[Pod] = []

    def make(**settings: Any) -> Pod:
        pods.append(Pod(tmp_path, coordinator.port, **settings))
        coordinator.explain = pods[-1].text
        return pods[-1]

    yield make
    for pod in pods:
        pod.destroy()


@pytest.fixture
def pod(make_pod: Any) -> Pod:
    found: Pod = make_pod()
    return found
