"""A coordinator and a pod for each test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.harness import Coordinator, Pod

from ropeteam_trainer.agent.processes.spawn import write_shims


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    coordinator = Coordinator()
    await coordinator.start()
    yield coordinator
    await coordinator.stop()
    coordinator.give_back()


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


@pytest.fixture
def shim(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the shim itself, as the agent would."""
    folder = tmp_path / "state"
    folder.mkdir()
    rank = write_shims(folder).rank
    environment = {"PATH": "/usr/bin:/bin"}

    def run(*arguments: str, flags: tuple[str, ...] = (), **variables: str) -> Any:
        return subprocess.run(
            [sys.executable, *flags, rank, *arguments],
            cwd=tmp_path,
            env=environment | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    return run
