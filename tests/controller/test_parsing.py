"""Of jobs and pods, requests for a queue, a gang or a scheduler are cached, within bounds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ropeteam.controller.cache import parsing
from ropeteam.core.seen.observation import PodSeen

QUEUE = "kueue.x-k8s.io/queue-name"


def job(**meta: Any) -> dict[str, Any]:
    obj = {"metadata": {"name": "a", "resourceVersion": "1", **meta}, "spec": {"workers": 1}}
    return dict(parsing.job(obj).parsed()["metadata"])


def pod(labels: dict[str, str] | None = None, status: Any = None, **spec: Any) -> PodSeen:
    meta = {"name": "a-0-1", "uid": "u", "labels": labels, "creationTimestamp": "2026-11-20T12:00:00Z"}
    return parsing.pod({"metadata": meta, "spec": spec, "status": status})[1]


def test_of_a_jobs_labels_and_annotations_those_are_cached_that_request_something() -> None:
    seen = job(
        labels={"team": "a", QUEUE: "q"},
        annotations={"volcano.sh/queue-name": "v" * 10_000, "ropeteam.dev/coordinators-ended": "2", "b": "c"},
    )
    assert seen["labels"] == {QUEUE: "q"}
    assert seen["annotations"] == {"volcano.sh/queue-name": "v" * 64, "ropeteam.dev/coordinators-ended": "2"}
    assert job()["labels"] == {}


def test_a_job_with_many_of_them_takes_no_more_memory() -> None:
    assert len(job(labels={f"volcano.sh/{number}": "a" for number in range(1000)})["labels"]) == 8


def test_a_pod_shows_who_is_to_schedule_it_and_whether_anybody_has() -> None:
    waits = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3"}]}
    seen = pod(
        {"kueue.x-k8s.io/managed": "true"}, waits, schedulerName="volcano", schedulingGates=[{"name": "g"}]
    )
    assert (seen.scheduler, seen.scheduled, seen.gates) == ("volcano", "False", ("g",))
    assert (seen.queued, seen.grouped, seen.scheduled_message) == (True, False, "0/3")
    assert seen.created == datetime(2026, 11, 20, 12, tzinfo=UTC)
    assert pod(schedulingGroup={"podGroupName": "g"}).grouped
    assert pod(workloadRef={"name": "g"}).grouped
    bare = pod()
    assert (bare.scheduler, bare.scheduled, bare.gates, bare.queued, bare.grouped) == (
        "",
        "",
        (),
        False,
        False,
    )


def test_the_init_container_that_a_pod_waits_for_is_known_by_name() -> None:
    done = {"name": "first", "state": {"terminated": {"exitCode": 0}}}
    runs = {"name": "fetch", "state": {"running": {}}}
    seen = pod(status={"initContainerStatuses": [done, runs]})
    assert (seen.init.name, seen.init.running) == ("fetch", True)
    assert pod(status={"initContainerStatuses": [done]}).init.name == ""
