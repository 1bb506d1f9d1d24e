"""Pacing of progress, metrics, probes, and the call to a coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from ropeteam.api.status import IncidentStatus, JobStatus, ProgressStatus, RecoveryTimesStatus
from ropeteam.controller import metrics, probes
from ropeteam.controller.cache.caches import Caches, EndedPods
from ropeteam.controller.cache.informer import Informer, Key, MultiNamespaceInformer, WatchSpec
from ropeteam.controller.cache.parsing import node, own_key
from ropeteam.controller.client.coordinator import BearerAuth, Coordinators, CoordinatorUnreachable
from ropeteam.controller.reconcile.progresslimit import ProgressRateLimiter
from ropeteam.controller.reconcile.reconciler import Reconciler
from ropeteam.core.seen.observation import ContainerSeen, PodSeen, Role
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.desired import Desired, JobReport, WorldPhase
from ropeteam_trainer.contract.world import Cause

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
REPORT = JobReport(job_uid="u", term=1, boot=0, phase=WorldPhase.RUNNING, why="trains")
DESIRED = Desired(generation=1, attempt=1, term=1, slots={})


def at_step(step: int, **more: Any) -> JobStatus:
    return JobStatus(progress=ProgressStatus(step=step), **more)


def test_progress_alone_is_written_twenty_times_a_second_over_all_jobs() -> None:
    limiter = ProgressRateLimiter()
    written = [limiter.permits(at_step(1), at_step(2), NOW) for _ in range(25)]
    assert sum(written) == 20
    later = NOW + timedelta(seconds=0.1)
    assert [limiter.permits(at_step(1), at_step(2), later) for _ in range(3)] == [True, True, False]


def test_a_clock_that_is_set_back_takes_no_writes_of_progress_away() -> None:
    limiter, back = ProgressRateLimiter(), NOW - timedelta(hours=1)
    written = [limiter.permits(at_step(1), at_step(2), when) for when in (NOW, back)]
    assert written == [True, True]
    for _ in range(30):
        limiter.permits(at_step(1), at_step(2), back)
    assert limiter.permits(at_step(1), at_step(2), back + timedelta(seconds=0.1)), "it fills by the new clock"


def test_a_look_at_one_node_does_not_touch_the_others() -> None:
    class Counted(dict[Any, Any]):
        walks = 0

        def __iter__(self) -> Iterator[Any]:
            self.walks += 1
            return super().__iter__()

    nodes = Informer(cast(Any, None), WatchSpec("Node", "", own_key, node), lambda _: None)
    nothing = MultiNamespaceInformer[Any](())
    caches = Caches(cast(Any, None), nothing, nothing, nothing, MultiNamespaceInformer((nodes,)))
    nodes._by_key = counted = Counted()
    assert not caches.node_is_lost("node-1"), "no node is seen: nothing is known"
    assert not caches.node_has_ended("node-1", True)
    for name, ready in (("node-1", "True"), ("node-2", "False")):
        status = {"conditions": [{"type": "Ready", "status": ready}]}
        nodes.upsert({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "status": status})
    lost = [name for name in ("node-1", "node-2", "node-3") if caches.node_is_lost(name)]
    assert lost == ["node-2", "node-3"]
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    dead = {"metadata": {"name": "node-4", "uid": "4", "resourceVersion": "1"}, "spec": {"taints": [taint]}}
    nodes.upsert(dead)
    ended = [name for name in ("node-2", "node-3", "node-4") if caches.node_has_ended(name, False)]
    assert ended == ["node-4"]
    assert caches.node_has_ended("node-3", True), "deleted, where that proves it"
    assert not caches.node_has_ended("node-2", True)
    nodes._by_key.pop(Key("", "node-4"))
    assert counted.walks == 0
    assert len(caches.nodes.known_keys()) == 2
    assert counted.walks == 1, "the count counts"


def test_anything_else_is_written_at_once() -> None:
    limiter = ProgressRateLimiter(per_second=0, _tokens=0)
    assert limiter.permits(at_step(1), at_step(2, state="Recovering"), NOW)


def test_an_incident_is_counted_once_when_it_has_settled() -> None:
    open_ = IncidentStatus(id="1.0.1", time=NOW, cause="Hang", slot=0)
    done = open_.model_copy(
        update={
            "final": True,
            "steps_lost": 3,
            "recovery_milliseconds": RecoveryTimesStatus(stopped=100, first_step=2000),
        }
    )
    before = metrics.REGISTRY.get_sample_value("ropeteam_incidents_total", {"cause": "Hang"}) or 0
    story = [JobStatus(), JobStatus(incidents=(open_,)), *[JobStatus(incidents=(done,))] * 2]
    for old, new in pairwise(story):
        metrics.count_final_incidents(old, new)
    first_step = {"stage": "first_step"}
    assert metrics.REGISTRY.get_sample_value("ropeteam_incidents_total", {"cause": "Hang"}) == before + 1
    assert metrics.REGISTRY.get_sample_value("ropeteam_recovery_seconds_sum", first_step) == 2.0
    assert metrics.REGISTRY.get_sample_value("ropeteam_steps_lost_total", {"cause": "Hang"}) == 3


def test_jobs_and_reconciles_are_counted_at_a_scrape() -> None:
    jobs = [("Running", False), ("Failed", False), ("Running", True)]
    now = metrics.ScrapeCollector(lambda: jobs, lambda: [2.0, 5.0], lambda: {"Pod": 3.0})
    families = {each.name: each for each in now.collect()}
    states = {sample.labels["state"]: sample.value for sample in families.pop("ropeteam_jobs").samples}
    assert {state: count for state, count in states.items() if count} == {"Running": 2, "Failed": 1}
    assert set(states) == set(metrics.STATES), "a state that no job has is 0, not absent"
    assert {name: each.samples[0].value for name, each in families.items()} == {
        "ropeteam_jobs_stalled": 1,
        "ropeteam_cache_age_seconds": 3,
        "controller_runtime_active_workers": 2,
        "workqueue_unfinished_work_seconds": 7,
        "workqueue_longest_running_processor_seconds": 5,
    }


def test_every_series_is_there_before_its_first_event() -> None:
    """`rate` does not see the event with which a series begins."""
    for cause in Cause:
        assert (
            metrics.REGISTRY.get_sample_value("ropeteam_incidents_total", {"cause": cause.value}) is not None
        )
    for stage in RecoveryTimesStatus.model_fields:
        assert (
            metrics.REGISTRY.get_sample_value("ropeteam_recovery_seconds_count", {"stage": stage}) is not None
        )
    series = [sample for family in metrics.REGISTRY.collect() for sample in family.samples]
    assert len(series) < 250
    assert not any(sample.name.endswith("_created") for sample in series)


async def test_a_round_that_fails_is_counted_and_timed_as_one_that_ends_well_is() -> None:
    class Broken:
        async def job_with_text(self, key: Key) -> None:
            raise OSError(f"no access to {key}")

    observer, none = SimpleNamespace(caches=Broken(), own_clock=lambda: 0.0), cast(Any, None)
    reconciler = Reconciler(none, none, cast(Any, observer), none, none, ProgressRateLimiter())
    labels = {"controller": "trainingjob", "result": "error"}

    def counted() -> tuple[float | None, float | None]:
        value = metrics.REGISTRY.get_sample_value
        seconds = value("controller_runtime_reconcile_time_seconds_count", {"controller": "trainingjob"})
        return value("controller_runtime_reconcile_total", labels), seconds

    before = counted()
    with pytest.raises(OSError, match="no access to lab/mnist"):
        await reconciler(Key("lab", "mnist"))
    assert counted() == tuple((each or 0) + 1 for each in before)


async def test_probes_report_ready_healthy_and_numbers() -> None:
    unready, longest = "still listing", 0.0
    async with (
        probes.serve("127.0.0.1:0", lambda: unready, lambda: longest) as address,
        aiohttp.ClientSession(f"http://{address}") as session,
    ):

        async def get(path: str) -> tuple[int, str]:
            async with session.get(path) as answer:
                return answer.status, await answer.text()

        assert await get("/readyz") == (503, "still listing\n")
        unready = ""
        assert (await get("/readyz"))[0] == 200
        assert (await get("/healthz"))[0] == 200
        longest = 1e6
        assert (await get("/healthz"))[0] == 503
        assert "workqueue_depth" in (await get("/metrics"))[1]


async def send_desired(handler: Any) -> JobReport:
    """The report of a coordinator that answers like `handler`."""
    app = web.Application()
    app.router.add_put("/desired", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Coordinators(port=runner.addresses[0][1]) as coordinators:
            return await coordinators.send_desired("127.0.0.1", BearerAuth("bearer"), DESIRED)
    finally:
        await runner.cleanup()


async def test_a_coordinator_receives_what_should_be_and_reports_how_it_is() -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.headers["X-Ropeteam-Bearer"] == "bearer"
        assert codec.decode(Desired, await request.read()) == DESIRED
        return web.Response(body=codec.encode(REPORT))

    assert await send_desired(answer) == REPORT


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [(401, b"no", "HTTP 401: no"), (200, b"{}", "cannot be decoded: JobReport")],
)
async def test_an_answer_that_is_no_report_is_no_report(status: int, body: bytes, expected: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body)

    with pytest.raises(CoordinatorUnreachable, match=expected):
        await send_desired(answer)


async def test_a_coordinator_that_nobody_serves_is_unreachable_at_its_address() -> None:
    async with Coordinators(port=1) as coordinators:
        with pytest.raises(CoordinatorUnreachable, match=r"127\.0\.0\.1"):
            await coordinators.send_desired("127.0.0.1", BearerAuth("bearer"), DESIRED)


def test_of_pods_that_are_gone_it_is_known_which_were_seen_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EndedPods, "MOST", 2)
    ended = EndedPods()
    for uid, phase in (("1", "Failed"), ("2", "Running"), ("3", "Succeeded"), ("4", "Failed")):
        container = ContainerSeen(exit_code=1)
        ended.record(("job", PodSeen(name=uid, uid=uid, role=Role.WORKER, phase=phase, container=container)))
    assert [uid for uid in "1234" if uid in ended] == ["3", "4"]
