"""One real cluster for all tests of this folder, with our chart in it.

They run with `make e2e` only: they need root, and minutes. ROPETEAM_LAB=keep leaves the cluster up for the
next run of the same images, which then starts in seconds. KUBECONFIG names a cluster to use instead.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.kube import images
from lab.kube.cluster import KubeCluster
from lab.kube.foreign import Foreign, ForeignSite
from lab.kube.site import SYSTEM, Site

collect_ignore_glob = [] if os.environ.get("ROPETEAM_E2E") else ["test_*.py"]
NODES = 4
KUBECONFIG = os.environ.get("KUBECONFIG", "")
"""A cluster that is there already (foreign.py)."""
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if KUBECONFIG else ():
        if item.get_closest_marker("nodes"):
            item.add_marker(pytest.mark.skip(reason=f"needs nodes of our own, not {KUBECONFIG}'s"))


@pytest.fixture(scope="session")
def lab() -> Iterator[KubeCluster]:
    if KUBECONFIG:
        foreign = Foreign(Path(KUBECONFIG))
        foreign.up()
        yield foreign
        foreign.down()
        return
    lab = KubeCluster(NODES, images.all_of_them())
    keep = os.environ.get("ROPETEAM_LAB") == "keep"
    try:
        if not keep or not lab.is_up():
            lab.up()
        yield lab
    finally:
        if not keep:
            lab.down()


@pytest.fixture(scope="session")
def site(lab: KubeCluster) -> Site:
    site = ForeignSite(lab) if isinstance(lab, Foreign) else Site(lab)
    if site.get("deployment", "ropeteam", SYSTEM) is None:
        site.install()
    return site


@pytest.fixture
def name(request: pytest.FixtureRequest, site: Site) -> Iterator[str]:
    """A name for the test's job, which is gone after the test."""
    test = request.node.originalname.removeprefix("test_").replace("_", "-")[:28].strip("-")
    own = f"{test}-{next(_numbers)}"
    yield own
    site.delete(own)
