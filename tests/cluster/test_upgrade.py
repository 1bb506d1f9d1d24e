"""From each earlier release to this one, with its chart, definition, operator, agents and trainer library:
what runs continues, what is stored is not lost, and the way to the new coordinator is the one in status.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lab import olderrelease
from lab.kube import images
from lab.kube.site import RELEASE, SYSTEM, Object, Site
from lab.olderrelease import ROOT, STATUS_OF_NOW, OlderRelease
from lab.waiting import wait_until
from tests.cluster.test_core import last_cause, step, tiny, wait_for_new_checkpoint

from ropeteam.api.status import JobStatus
from ropeteam_trainer.contract import SIGNED

pytestmark = [pytest.mark.nodes, olderrelease.needed]
FOREVER = 100_000
CRD = "trainingjobs.ropeteam.dev"
PRESERVED = {"state", "attempt", "checkpoint", "failures", "incidents", "progress"}


@pytest.fixture
def before(site: Site, older: OlderRelease, tmp_path: Path) -> Iterator[Site]:
    """The site with the earlier release in it, as if there had never been another."""
    remove(site)
    chart = older.unpack(tmp_path) / "helm" / "ropeteam"
    site.install(f"image.repository={repository(images.older_operator(older))}", chart=chart)
    assert STATUS_OF_NOW not in str(site.get("crd", CRD)), "the definition is the earlier one"
    yield site
    remove(site)
    site.install()


def remove(site: Site) -> None:
    """With the definition, and so all jobs."""
    site.helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait", "--ignore-not-found")
    site.lab.kubectl("delete", "crd", CRD, "--ignore-not-found", "--timeout=120s")


def repository(image: str) -> str:
    return image.removeprefix("ghcr.io/").partition(":")[0]


def an_older_job(site: Site, older: OlderRelease, name: str, steps: int = FOREVER, **spec: Any) -> None:
    """The library comes in the job's image, and does not change with the chart."""
    site.apply(tiny(site, name, steps=steps, image=images.older_trainer(older), **spec))


def patch(site: Site, name: str, spec: str) -> None:
    site.lab.kubectl("patch", "trainingjob", name, "--type=merge", "-p", f'{{"spec": {spec}}}')


def preserved(site: Site, name: str) -> Object:
    """Fields of status that an upgrade preserves, under the names of this release."""
    return JobStatus.model_validate(site.status(name)).model_dump(include=PRESERVED)


def coordinators(site: Site, name: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in site.pods(name, "coordinator")}


def ranks(site: Site, name: str) -> list[int]:
    return [site.rank(name, number) for number in (0, 1)]


def incidents(site: Site, name: str) -> list[str]:
    return [each["cause"] for each in site.status(name).get("incidents") or ()]


def wait_for_reason(site: Site, name: str, reason: str) -> None:
    wait_until("the condition", lambda: site.condition(name, "Running").get("reason") == reason, 60)


def is_stored(site: Site, name: str, known: Object) -> bool:
    """Accepted (by operators of before, under the new definition, it is not), and as it was."""
    return site.condition(name, "Accepted").get("status") == "True" and preserved(site, name) == known


def is_saved_anew(site: Site, name: str) -> bool:
    """By an operator of this release."""
    return STATUS_OF_NOW in site.status(name)


@olderrelease.each
def test_a_running_job_of_an_earlier_release_goes_on_after_an_upgrade(
    before: Site, older: OlderRelease, name: str
) -> None:
    site, signed = before, older.contract >= SIGNED
    reason = "WorldRunning" if signed else "CoordinatorOutdated"
    an_older_job(site, older, name)
    site.wait(name, "Running")
    wait_for_new_checkpoint(site, name)
    uids, coordinator, processes = site.uids(name), coordinators(site, name), ranks(site, name)
    site.install(verb="upgrade")
    wait_until("status is saved anew", lambda: is_saved_anew(site, name), 60)
    wait_for_reason(site, name, reason)
    wait_for_new_checkpoint(site, name)
    assert (site.uids(name), coordinators(site, name)) == (uids, coordinator)
    assert ranks(site, name) == processes, "nothing was started anew, so no step was lost"
    assert incidents(site, name) == []

    site.kill_rank(name, 1)
    wait_until("the incident", lambda: incidents(site, name) == ["Signal"], 60)
    wait_for_new_checkpoint(site, name)
    assert (site.uids(name), coordinators(site, name)) == (uids, coordinator)

    loses_its_leading_pod(site, name)
    wait_for_reason(site, name, reason)
    if not signed:
        gets_a_new_coordinator(site, name)


def loses_its_leading_pod(site: Site, name: str) -> None:
    """The new one has an agent of this release, beside one of the earlier."""
    site.lab.kubectl("delete", "pod", f"{name}-0-1", "--wait=false")
    wait_until("its replacement", lambda: f"{name}-0-2" in site.uids(name), 60)
    wait_until("the incident", lambda: last_cause(site, name) == "PodDeleted", 60)
    wait_for_new_checkpoint(site, name)
    lost = [each for each in site.status(name)["incidents"] if each["cause"] == "PodDeleted"]
    assert [(each["charged"], each["stepsLost"]) for each in lost] == [(False, 0)]
    wait_until("the former one is gone", lambda: f"{name}-0-1" not in site.uids(name), 60)


def gets_a_new_coordinator(site: Site, name: str) -> None:
    """By the command in the condition."""
    uids, faults = site.uids(name), incidents(site, name)
    command = re.search(r"kubectl (delete pod -n \S+ \S+)$", site.condition(name, "Running")["message"])
    assert command is not None
    site.lab.kubectl(*command[1].split())
    wait_until("it is cleared", lambda: site.condition(name, "Running").get("reason") == "WorldRunning", 60)
    wait_for_new_checkpoint(site, name)
    assert (site.uids(name), incidents(site, name)) == (uids, faults)
    site.kill_rank(name, 1)
    wait_until("the incident", lambda: incidents(site, name) == [*faults, "Signal"], 60)
    wait_for_new_checkpoint(site, name)


@olderrelease.latest
def test_a_pod_that_may_live_is_remembered_while_the_definition_is_newer_than_the_operators(
    before: Site, older: OlderRelease, name: str
) -> None:
    """The pod was deleted by force, so nothing but time proves that it has ended. Operators that read a
    status without this would take the pod for ended."""
    site = before

    def slot() -> Object:
        return next((each for each in site.status(name)["slots"] if each["incarnation"] == 2), {})

    an_older_job(site, older, name, recovery={"fenceSeconds": 3600})
    site.wait(name, "Running")
    uid = site.uids(name)[f"{name}-1-1"]
    definition = str(ROOT / "crds" / "ropeteam.dev_trainingjobs.yaml")
    site.lab.kubectl("apply", "--server-side", "--force-conflicts", "-f", definition)
    site.lab.kubectl("delete", "pod", f"{name}-1-1", "--wait=false", "--grace-period=0", "--force")
    wait_until("the new pod, in a later write", lambda: slot().get("podUid"), 60)
    assert (slot()["oldPodUid"], slot()["oldPodGone"]) == (uid, False)
    site.install(verb="upgrade")
    wait_until("status is saved anew", lambda: is_saved_anew(site, name), 60)
    assert (slot()["previousPodUID"], slot()["previousPodFenced"]) == (uid, False)


@olderrelease.each
def test_stored_jobs_of_an_earlier_release_are_whole_after_an_upgrade(
    before: Site, older: OlderRelease, name: str
) -> None:
    site, rests, done, new = before, f"{name}-rests", f"{name}-done", f"{name}-new"
    an_older_job(site, older, rests)
    an_older_job(site, older, done, steps=30)
    site.wait(rests, "Running")
    wait_for_new_checkpoint(site, rests)
    patch(site, rests, '{"suspend": true}')
    site.wait(rests, "Suspended")
    site.wait(done, "Complete")
    wait_until("no pod of it is left", lambda: not site.pods(rests), 60)
    known = {job: preserved(site, job) for job in (rests, done)}
    site.install(verb="upgrade")
    for job, stored in known.items():
        wait_until(f"{job} is as it was", partial(is_stored, site, job, stored), 60)

    patch(site, rests, '{"suspend": false}')
    wait_until("it goes on", lambda: step(site, rests) > known[rests]["checkpoint"]["step"], 240)
    assert site.status(rests)["attempt"] == known[rests]["attempt"] + 1
    assert incidents(site, rests) == []
    patch(site, done, '{"ttlSecondsAfterFinished": 1}')
    wait_until("it is deleted after its time", lambda: site.get("trainingjob", done) is None, 60)

    an_older_job(site, older, name, steps=30)
    site.apply(tiny(site, new, steps=30))
    for job in (name, new):
        site.wait(job, "Complete")
        assert step(site, job) == 30
