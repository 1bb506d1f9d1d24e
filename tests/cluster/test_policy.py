"""The NetworkPolicy of a job on a real cluster."""

from __future__ import annotations

from typing import Any

from lab.kube.site import RELEASE, SYSTEM, Site
from lab.waiting import wait_until
from tests.cluster.test_core import tiny, wait_for_new_checkpoint

Object = dict[str, Any]


def policies(site: Site, name: str) -> list[Object]:
    return site.items("networkpolicies", labels=f"ropeteam.dev/job={name}")


def names(objects: list[Object]) -> set[str]:
    return {each["metadata"]["name"] for each in objects}


def selected(site: Site, selector: Object, namespace: str = "default") -> set[str]:
    labels = ",".join(f"{key}={value}" for key, value in selector["matchLabels"].items())
    return names(site.items("pods", namespace, labels))


def test_a_jobs_policy_is_its_own_and_goes_with_it(site: Site, name: str) -> None:
    site.apply(tiny(site, name, steps=100_000))
    site.wait(name, "Running")
    (made,) = policies(site, name)
    job = site.get("trainingjob", name) or {}
    assert [each["uid"] for each in made["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    pods = names(site.pods(name)) | names(site.pods(name, "coordinator"))
    assert selected(site, made["spec"]["podSelector"]) == pods
    own, operator, _ = made["spec"]["ingress"]
    assert own == {"from": [{"podSelector": made["spec"]["podSelector"]}]}
    (peer,) = operator["from"]
    assert selected(site, peer["podSelector"], SYSTEM) == names(site.operators())
    assert peer["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": SYSTEM}}
    site.delete(name)
    wait_until("the policy goes with its job", lambda: not policies(site, name), 60)


def test_a_job_that_runs_gets_one_when_the_chart_begins_to_make_them(site: Site, name: str) -> None:
    """As one does that runs while Ropeteam is upgraded. Its pods stay, and it trains on."""
    site.install("networkPolicy.jobs=false", verb="upgrade")
    site.apply(tiny(site, name, steps=100_000))
    site.wait(name, "Running")
    uids = site.uids(name)
    assert policies(site, name) == []
    site.helm("rollback", RELEASE, "--namespace", SYSTEM, "--wait")
    wait_until("a policy", lambda: policies(site, name), 60)
    wait_for_new_checkpoint(site, name)
    assert site.uids(name) == uids
