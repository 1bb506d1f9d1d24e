"""One local cluster for all end-to-end tests of a worker process; jobs get names of their own."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import JOBS, Cluster

SCRIPTS = Path(__file__).parent / "scripts"
PROGRAMS = Path(__file__).parents[1] / "programs" / "scripts"
"""Programs of the campaign (tests/programs), which runs each of them in all its ways."""
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("home"))
    yield running
    running.stop()


@pytest.fixture
def name(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """A name for the test's job; the job, and others whose names begin with it, are gone after the test."""
    title = request.node.originalname.removeprefix("test_").replace("_", "-")[:28].strip("-")
    own = f"{title}-{next(_numbers)}"
    yield own
    for job in cluster.call("GET", JOBS)["items"]:
        if job["metadata"]["name"].startswith(own):
            cluster.delete(job["metadata"]["name"])


def ticking(name: str, folder: Path, *arguments: str, workers: int = 2, **spec: Any) -> dict[str, Any]:
    """A TrainingJob of torch-free ranks that count steps into `folder`."""
    folder.mkdir(exist_ok=True)
    return job(name, ["python", str(SCRIPTS / "ticker.py"), str(folder), *arguments], workers=workers, **spec)


def job(
    name: str, command: list[str], *, workers: int = 2, torch: bool = False, **spec: Any
) -> dict[str, Any]:
    env = [] if torch else [{"name": "ROPETEAM_STORE", "value": "none"}]
    return {
        "apiVersion": "ropeteam.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {"workers": workers, "image": "local", "command": command, "env": env, **spec},
    }


def program(name: str, command: list[str], **spec: Any) -> dict[str, Any]:
    """A TrainingJob that runs in the folder of the campaign's own scripts, with our torchrun on its PATH."""
    made = job(name, command, torch=True, workingDir=str(PROGRAMS), **spec)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    made["spec"]["env"] = [{"name": "PATH", "value": path}]
    return made
