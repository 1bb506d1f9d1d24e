"""One local cluster for all end-to-end tests of a worker process; jobs get names of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from lab.local.cluster import JOBS, Cluster

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
