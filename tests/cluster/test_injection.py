"""The agent in pods that we did not design: what the template may ask for, and training goes to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.cluster import images
from tests.cluster.site import Object, Site
from tests.cluster.test_core import tiny
from tests.e2e.harness import wait_for

STAYS = ["sh", "-c", "trap exit TERM; sleep infinity & wait"]
SLEEPER = {"image": images.TRAINER, "imagePullPolicy": "Never", "command": STAYS}
UNPRIVILEGED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 1000,
}
ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == 2, total
"""

pytestmark = pytest.mark.nodes


def pod(job: Object) -> Object:
    found: Object = job["spec"]["template"]["spec"]
    return found


def with_own_shared_memory(job: Object) -> None:
    pod(job)["volumes"].append({"name": "mine", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}})
    pod(job)["containers"][0]["volumeMounts"].append({"name": "mine", "mountPath": "/dev/shm"})


def in_a_shell(job: Object) -> None:
    job["spec"]["command"] = ["sh", "-c", "cd /tmp && python /shared/scripts/tiny.py 30 0"]


def with_a_sidecar(job: Object) -> None:
    pod(job)["containers"].append({"name": "sleeper", **SLEEPER})


def with_a_native_sidecar(job: Object) -> None:
    pod(job)["initContainers"] = [{"name": "sleeper", "restartPolicy": "Always", **SLEEPER}]


SHAPES: dict[str, Callable[[Object], None]] = {
    "host-network": lambda job: pod(job).update(hostNetwork=True),
    "one-process-namespace": lambda job: pod(job).update(shareProcessNamespace=True),
    "read-only-root": lambda job: pod(job)["containers"][0].update(securityContext=UNPRIVILEGED),
    "own-shared-memory": with_own_shared_memory,
    "shell": in_a_shell,
    "sidecar": with_a_sidecar,
    "native-sidecar": with_a_native_sidecar,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_job_trains_in_any_pod(site: Site, name: str, shape: str) -> None:
    job = tiny(site, name, steps=30, pause=0.0)
    SHAPES[shape](job)
    site.apply(job)
    site.wait(name, "Complete")
    assert not site.status(name).get("incidents")
    wait_for("no container of it runs", lambda: not site.runs_anything(name), 60)


def in_namespace(name: str, **spec: Any) -> Object:
    """A job without any volume of the node."""
    job: Object = {
        "apiVersion": "ropeteam.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": name},
        "spec": {"workers": 2, "image": images.TRAINER, "command": ["python", "-c", ALL_REDUCE], **spec},
    }
    return job


def test_in_a_restricted_namespace_only_pods_that_keep_to_it_run(site: Site, name: str) -> None:
    site.lab.kubectl("create", "namespace", name)
    level = "pod-security.kubernetes.io/enforce=restricted"
    site.lab.kubectl("label", "namespace", name, level)
    try:
        site.apply(in_namespace(name))

        def refused() -> bool:
            status = (site.get("trainingjob", name, name) or {}).get("status") or {}
            told = {each["type"]: each for each in status.get("conditions", ())}
            return "violates PodSecurity" in told.get("Accepted", {}).get("message", "")

        wait_for("words of PodSecurity", refused, 60)
        site.lab.kubectl("-n", name, "delete", "trainingjob", name, "--wait")

        container = {"name": "trainer", "imagePullPolicy": "Never", "securityContext": UNPRIVILEGED}
        site.apply(in_namespace(name, template={"spec": {"containers": [container]}}))
        site.lab.kubectl("-n", name, "wait", "--for=condition=Complete", f"tj/{name}", "--timeout=120s")
    finally:
        site.lab.kubectl("delete", "namespace", name, "--timeout=120s")
