"""GPUs as the scheduler sees them: places that are there, that are not, and that two jobs hold half of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from lab.kube.site import Site
from lab.waiting import wait_until

pytestmark = pytest.mark.nodes

GPU = "nvidia.com/gpu"
TAINT = "test/reserved"


@pytest.fixture(autouse=True)
def nodes(site: Site) -> Iterator[None]:
    yield
    for node in site.lab.nodes:
        give(site, node.number, 0)


def give(site: Site, number: int, gpus: int) -> None:
    """Capacity as a device plugin would report it of this node."""
    amount = {GPU: str(gpus)}
    text = json.dumps({"status": {"capacity": amount, "allocatable": amount}})
    site.lab.kubectl("patch", "node", f"node-{number}", "--subresource=status", "--type=merge", "-p", text)


def a_job(site: Site, name: str, *, workers: int, gpus: int, **spec: Any) -> dict[str, Any]:
    """The job's ranks use the CPU: only the scheduling is real."""
    command = ["python", "/shared/scripts/tiny.py", "100000", "0.05"]
    shape = {"workers": workers, "gpusPerWorker": gpus, "processesPerWorker": 1}
    return site.job(name, command, checkpoint=site.checkpoints(name), **shape, **spec)


def message(site: Site, name: str) -> str:
    return str(site.condition(name, "Running").get("message", ""))


def test_a_job_is_placed_where_gpus_are_and_one_that_does_not_fit_reports_why(site: Site, name: str) -> None:
    for node in site.lab.nodes:
        give(site, node.number, 2)
    site.apply(a_job(site, name, workers=4, gpus=2))
    site.wait(name, "Running")
    assert {site.node_of(name, slot) for slot in range(4)} == {1, 2, 3, 4}
    site.delete(name)

    site.apply(a_job(site, name, workers=2, gpus=4))
    wait_until("words of the scheduler", lambda: "Insufficient nvidia.com/gpu" in message(site, name))
    assert message(site, name).endswith(
        " This job requests 2 x (4 nvidia.com/gpu). Add or free such nodes, or request less: set "
        "spec.suspend to true, change the spec, and resume."
    )
    assert site.condition(name, "Stalled")["reason"] == "Unschedulable"
    for number in (1, 2):
        give(site, number, 4)
    site.wait(name, "Running")
    assert site.status(name)["attempt"] == 1


def place(site: Site, name: str) -> int | None:
    """The node of the one worker that has found one."""
    nodes = {pod["spec"].get("nodeName") for pod in site.pods(name)} - {None}
    return int(nodes.pop().rpartition("-")[2]) if len(nodes) == 1 and len(site.pods(name)) == 2 else None


def test_two_jobs_that_hold_half_of_the_gpus_each_do_not_wait_for_ever(site: Site, name: str) -> None:
    one, two = f"{name}-a", f"{name}-b"
    for number in (1, 2):
        give(site, number, 2)
    site.lab.kubectl("taint", "node", "node-2", f"{TAINT}=two:NoSchedule")
    tolerant = a_job(site, two, workers=2, gpus=2, recovery={"startSeconds": 15})
    tolerant["spec"]["template"]["spec"]["tolerations"] = [{"key": TAINT, "operator": "Exists"}]
    try:
        site.apply(a_job(site, one, workers=2, gpus=2, recovery={"startSeconds": 15}))
        assert wait_until("a half of the GPUs", partial(place, site, one)) == 1
        site.apply(tolerant)
        assert wait_until("the other half", partial(place, site, two)) == 2
    finally:
        site.lab.kubectl("taint", "node", "node-2", f"{TAINT}-")
    try:

        def runs() -> str:
            return next((j for j in (one, two) if site.condition(j, "Running").get("status") == "True"), "")

        first = wait_until("one of them runs", runs, 120)
        second = two if first == one else one
        assert site.status(second)["failures"].get("charged", 0) == 0
        assert not site.status(second).get("incidents")
        site.delete(first)
        site.wait(second, "Running")
        assert site.status(second)["attempt"] > 1
    finally:
        site.delete(one)
        site.delete(two)
