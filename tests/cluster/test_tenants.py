"""Objects of one tenant disturb no other, on a real API server, which takes more than ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import psutil
import pytest
from lab.kube import falsecoordinator
from lab.kube.site import SYSTEM, Site, false_coordinator
from lab.waiting import wait_until
from tests.cluster.test_core import tiny

WIDE, GROWTH = 10, 96
"""Jobs of a megabyte, of which each once took 14; and MiB that an operator may have more beside them."""
LABELS = {"app.kubernetes.io/managed-by": "ropeteam"}


def service(name: str, job: str, uid: str = "", **meta: Any) -> dict[str, Any]:
    labels = {**LABELS, "ropeteam.dev/job": job, "ropeteam.dev/job-uid": uid}
    spec = {"selector": {"ropeteam.dev/term": "x"}, "ports": [{"port": 29402}]}
    meta = {"name": name, "namespace": "default", "labels": labels, **meta}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def planted(site: Site, name: str, template: str) -> None:
    """A suspended job with `template`, a text of JSON that Python would not write."""
    obj = site.shape(name, ["true"], 1, suspend=True) | {"spec": {"workers": 1, "image": "x"}}
    obj["spec"] |= {"command": ["true"], "suspend": True, "template": "HERE"}
    site.lab.kubectl("create", "-f", "-", text=json.dumps(obj).replace('"HERE"', template))


def operators(site: Site) -> dict[str, int]:
    """How often the container of each was started again."""
    return {
        pod["metadata"]["name"]: sum(each["restartCount"] for each in pod["status"]["containerStatuses"])
        for pod in site.operators()
    }


def memory(site: Site) -> float:
    """MiB of the operator that has most of it."""
    pods = (pod["metadata"]["name"] for pod in site.operators())
    return max(psutil.Process(site.operator(pod)).memory_info().rss for pod in pods) / (1 << 20)


def first(name: str) -> str:
    """A name that an API server lists before `name`."""
    return f"aaa-{name}"


def begin_anew(site: Site) -> None:
    """Both operators: they list all there is."""
    for pod in operators(site):
        site.lab.kubectl("-n", SYSTEM, "delete", "pod", pod)
    site.lab.kubectl("-n", SYSTEM, "rollout", "status", "deployment", "ropeteam", "--timeout=60s")


@pytest.fixture
def hostile(site: Site, name: str) -> Iterator[str]:
    """Names that begin with it are deleted."""
    yield f"{name}-x"
    site.lab.kubectl("delete", "service", first(name), "--ignore-not-found")
    for kind in ("service", "pod", "trainingjob"):
        for obj in site.lab.kubectl("get", kind, "-o", "name").split():
            if obj.partition("/")[2].startswith(f"{name}-x"):
                site.lab.kubectl("delete", obj, "--wait=false")


def accepted(site: Site, name: str) -> dict[str, str]:
    """The condition. Python parses no whole object that is nested so deep."""
    text = site.lab.kubectl("get", "trainingjob", name, "-o", "jsonpath={.status.conditions}")
    return next((each for each in json.loads(text or "[]") if each["type"] == "Accepted"), {})


@pytest.mark.nodes
def test_hostile_objects_cost_only_themselves(site: Site, name: str, hostile: str) -> None:
    before, used = operators(site), memory(site)
    site.apply(service(f"{hostile}-service", "no-such-job"))
    pod = {"restartPolicy": "Never", "schedulerName": "nobody", "containers": [{"name": "c", "image": "x"}]}
    meta = {"name": f"{hostile}-pod", "labels": {**LABELS, "ropeteam.dev/job": "no-such-job"}}
    site.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod})
    nested = '{"metadata":{"x":' + '{"a":' * 3000 + "1" + "}" * 3002
    planted(site, f"{hostile}-deep", nested)
    wide = json.dumps({"metadata": {"x": {f"key{number}": [] for number in range(60_000)}}})
    for number in range(WIDE):
        planted(site, f"{hostile}-wide-{number}", wide)
    site.apply(tiny(site, name, steps=30, pause=0.0))
    site.wait(name, "Complete")
    for what, message in (("deep", "nested more than 100 levels deep"), ("wide-0", "KiB")):
        condition = wait_until("it is refused", partial(accepted, site, f"{hostile}-{what}"), 60)
        assert (condition["status"], condition["reason"]) == ("False", "InvalidSpec")
        assert message in condition["message"]
    assert operators(site) == before, "none was started again, by whomever"
    assert site.get("pod", f"{hostile}-pod") is not None, "what is only labelled is not deleted"
    assert site.get("service", f"{hostile}-service") is not None
    begin_anew(site)
    wait_until("another leader", lambda: site.leader() in operators(site), 60)
    assert set(operators(site).values()) == {0}
    assert memory(site) < used + GROWTH


@pytest.mark.nodes
def test_false_coordinators_cost_only_themselves(site: Site, name: str, hostile: str) -> None:
    before, used = operators(site), memory(site)
    pods = []
    for number, how in enumerate(falsecoordinator.ANSWERS):
        job = site.shape(f"{hostile}-{number}", ["true"], 1)
        job["spec"]["template"]["spec"]["schedulerName"] = "nobody"
        site.apply(job)
        pod = false_coordinator(site.get("trainingjob", f"{hostile}-{number}") or {}, how)
        site.apply(pod)
        pods.append(pod["metadata"]["name"])
    for pod in pods:
        wait_until(f"{pod} is asked", partial(is_polled, site, pod), 120)
    site.apply(tiny(site, name, steps=30, pause=0.0))
    site.wait(name, "Complete")
    assert operators(site) == before, "none was started again, by whomever"
    assert memory(site) < used + GROWTH


def is_polled(site: Site, pod: str) -> bool:
    return "asked" in site.lab.kubectl("logs", pod, check=False)


def test_a_service_that_another_tenant_labels_is_not_followed(site: Site, name: str, hostile: str) -> None:
    site.apply(tiny(site, name, steps=100_000))
    site.wait(name, "Running")
    job = site.get("trainingjob", name) or {}
    address, uids = job["status"]["coordinator"]["address"], site.uids(name)
    real = (site.get("service", name) or {})["metadata"]["ownerReferences"]
    site.apply(service(f"{hostile}-plain", name, job["metadata"]["uid"]))
    site.apply(service(f"{hostile}-owned", name, job["metadata"]["uid"], ownerReferences=real))
    forged = service(first(name), name, job["metadata"]["uid"], ownerReferences=real)
    forged["metadata"]["labels"]["ropeteam.dev/term"] = "1"
    site.apply(forged)
    begin_anew(site)
    wait_until("another leader", lambda: site.leader() in operators(site), 60)
    site.kill_rank(name, 0)
    wait_until("an incident", lambda: site.status(name).get("incidents"), 60)
    site.wait(name, "Running")
    assert site.status(name)["coordinator"]["address"] == address
    assert site.uids(name) == uids
