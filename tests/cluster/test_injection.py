"""The agent in pods that we did not design: whatever the template requests, training runs to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lab.kube import images
from lab.kube.site import Object, Site
from lab.waiting import wait_until
from tests.cluster.test_core import tiny

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
WHO = """
import getpass, os, pathlib
assert (os.getuid(), getpass.getuser()) == ({user}, "{name}"), (os.getuid(), getpass.getuser())
(pathlib.Path.home() / "here").write_text("it can be written")
assert "CapEff:\\t0000000000000000\\n" in pathlib.Path("/proc/self/status").read_text()
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
    wait_until("no container of it runs", lambda: not site.runs_anything(name), 60)


def in_namespace(name: str, **spec: Any) -> Object:
    """A job without any volume of the node."""
    job: Object = {
        "apiVersion": "ropeteam.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": name},
        "spec": {"workers": 2, "image": images.TRAINER, "command": ["python", "-c", ALL_REDUCE], **spec},
    }
    return job


@pytest.fixture
def namespace(site: Site, name: str) -> Iterator[Callable[[str], None]]:
    """Makes one of the job's name, of this level of Pod Security."""

    def make(level: str) -> None:
        site.lab.kubectl("create", "namespace", name)
        site.lab.kubectl("label", "namespace", name, f"pod-security.kubernetes.io/enforce={level}")

    yield make
    site.lab.kubectl("delete", "namespace", name, "--timeout=120s")


def accepted(site: Site, name: str) -> Object:
    """The condition, of the job in the namespace of its name."""
    status = (site.get("trainingjob", name, name) or {}).get("status") or {}
    return next((each for each in status.get("conditions", ()) if each["type"] == "Accepted"), {})


def completes(site: Site, name: str) -> None:
    job = ("get", "tj", name, "-o", "yaml")
    wait = ("wait", "--for=condition=Finished", f"tj/{name}", "--timeout=180s")
    message = site.lab.kubectl("-n", name, *wait, check=False) and site.lab.kubectl("-n", name, *job)
    assert "type: Complete" in message, site.lab.kubectl("-n", name, *job)


def test_in_a_restricted_namespace_only_pods_that_keep_to_it_run(
    site: Site, name: str, namespace: Callable[[str], None]
) -> None:
    namespace("restricted")
    container = {"name": "trainer", "imagePullPolicy": "Never", "securityContext": {"runAsUser": 0}}
    site.apply(in_namespace(name, template={"spec": {"containers": [container]}}))
    wait_until("a refusal", lambda: accepted(site, name).get("reason") == "PodRefused", 60)
    message = accepted(site, name)["message"]
    assert "violates PodSecurity" in message
    assert "runAsNonRoot != true" in message
    site.lab.kubectl("-n", name, "delete", "trainingjob", name, "--wait")

    container["securityContext"] = UNPRIVILEGED
    site.apply(in_namespace(name, template={"spec": {"containers": [container]}}))
    completes(site, name)
    assert accepted(site, name)["reason"] == "Accepted"


@pytest.mark.parametrize(
    ("level", "user", "user_name", "reason"),
    [("baseline", 0, "root", "Accepted"), ("restricted", 1000, "trainer", "RunsAsNonRoot")],
)
def test_an_image_that_runs_as_root_trains_where_root_may_and_where_it_may_not(
    site: Site,
    name: str,
    namespace: Callable[[str], None],
    level: str,
    user: int,
    user_name: str,
    reason: str,
) -> None:
    """Without capabilities in both, with a home that it can write, and a name."""
    namespace(level)
    container = {"name": "trainer", "imagePullPolicy": "Never"}
    template = {"spec": {"containers": [container]}}
    script = WHO.format(user=user, name=user_name) + ALL_REDUCE
    command = ["python", "-c", script]
    site.apply(in_namespace(name, image=images.ROOTED, command=command, template=template))
    completes(site, name)
    assert accepted(site, name)["reason"] == reason
