"""How much of jobs is kept has a bound for each namespace and for all, and a job of which nothing is kept is
looked after as any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
import pytest_asyncio
import yaml
from lab.waiting import wait_until_async
from tests.controller.house import JOB, condition, job, names, operator_of, status
from tests.controller.scripted import Scripted, an_object

from ropeteam.controller.cache import budget, parsing
from ropeteam.controller.cache.caches import Caches, make_caches
from ropeteam.controller.cache.informer import Key
from ropeteam.controller.client.apiclient import ApiClient, Object
from ropeteam.controller.reconcile import reconciler
from ropeteam.controller.reconcile.failing import REASON, REPORT_AFTER_FAILURES
from ropeteam.local.cluster import LocalCluster

LARGE = 250 << 10
DEFAULT = Key("default", "job")
VALUES = Path(__file__).parents[2] / "helm" / "ropeteam" / "values.yaml"


def stored(namespace: str, number: int, version: int = 1, size: int = LARGE, state: str = "") -> Object:
    seen = an_object(f"job-{number}", version, env="x" * size) | {"kind": "TrainingJob"}
    seen["metadata"] |= {"namespace": namespace, "uid": f"uid-{namespace}-{number}"}
    return seen | {"status": {"state": state} if state else {}}


def caches_of(client: ApiClient | None = None) -> Caches:
    return make_caches(cast(Any, client), (), lambda _: None)


def cached_bytes(caches: Caches) -> Counter[str]:
    cached = Counter[str]()
    for key in caches.jobs.known_keys():
        cached[key.namespace] += len(text_of(caches, key))
    return cached


def text_of(caches: Caches, key: Key) -> bytes:
    (seen,) = caches.jobs.values_of(key)
    return seen.text


def test_one_tenant_fills_half_of_the_memory_and_others_find_theirs() -> None:
    caches = caches_of()
    caches.jobs.upsert(stored("tenant", 0, state="Running"))
    for number in range(1, 400):
        caches.jobs.upsert(stored("tenant", number))
    for number in range(50):
        caches.jobs.upsert(stored("other", number))
    held = cached_bytes(caches)
    assert 0.9 * budget.MOST_BYTES / 2 < held["tenant"] <= budget.MOST_BYTES / 2
    assert held["other"] > 50 * LARGE
    assert text_of(caches, Key("tenant", "job-0")), "what was kept stays so"
    assert len(caches.jobs.known_keys()) == 450


def test_many_tenants_fill_no_more_than_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MOST_BYTES", 100_000)
    caches = caches_of()
    for number in range(20):
        for tenant in range(20):
            caches.jobs.upsert(stored(f"tenant-{tenant}", number, size=1000))
    held = cached_bytes(caches)
    assert 90_000 < held.total() <= 100_000
    assert min(held.values()) > 0


def test_all_of_it_is_a_quarter_of_the_operators_memory() -> None:
    limit = yaml.safe_load(VALUES.read_text())["resources"]["limits"]["memory"]
    assert limit == f"{4 * budget.MOST_BYTES >> 20}Mi"


def test_memory_that_was_freed_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MOST_BYTES", 10_000)
    caches = caches_of()
    for version in range(1, 50):
        caches.jobs.upsert(stored("tenant", 1, version, size=4000))
        caches.jobs.upsert(stored("tenant", 2, version, size=4000))
    assert [bool(text_of(caches, Key("tenant", f"job-{n}"))) for n in (1, 2)] == [True, False]
    caches.jobs.remove_object("uid-tenant-1")
    caches.jobs.upsert(stored("tenant", 2, 60, size=4000))
    assert text_of(caches, Key("tenant", "job-2"))
    caches.jobs.remove_object("uid-tenant-2")
    assert cached_bytes(caches).total() == 0


def test_a_change_of_a_job_of_which_nothing_is_cached_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MOST_BYTES", 0)
    bells = list[Key]()
    caches = make_caches(cast(Any, None), (), bells.append)
    for version in (1, 2, 2, 3):
        caches.jobs.upsert(stored("tenant", 1, version))
    assert bells == [Key("tenant", "job-1")] * 3


async def test_a_list_is_never_whole_in_memory(
    api: Scripted, client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "MOST_BYTES", 2 << 20)
    api.listed = [stored("tenant", number, number + 1) for number in range(20)]
    caches, known, request = caches_of(client), list[int](), client.request

    async def counting(*args: Any, **kwargs: Any) -> Object:
        known.append(len(caches.jobs.known_keys()))
        return await request(*args, **kwargs)

    monkeypatch.setattr(client, "request", counting)
    for version in (100, 200):
        await caches.jobs.parts[0].list()
        assert 3 * LARGE < cached_bytes(caches).total() <= 1 << 20
        assert {4, 8, 12} < set(known), "a page is kept before the next one is asked for"
        api.listed = [stored("tenant", number, version) for number in range(20)]


@pytest_asyncio.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalCluster]:
    """Of an operator that has room for nothing."""
    monkeypatch.setattr(budget, "MOST_BYTES", 0)
    async with LocalCluster(tmp_path / "home") as running:
        yield running


async def test_a_job_of_which_nothing_is_cached_runs_is_suspended_and_resumes(cluster: LocalCluster) -> None:
    async with operator_of(cluster) as operator:

        async def pods() -> list[str]:
            return [name for name in await names(operator.client, "Pod") if "coordinator" not in name]

        async def runs() -> bool:
            return len(await pods()) == 2

        async def suspended() -> bool:
            return condition(await status(operator.client), "Suspended").get("status") == "True"

        await operator.client.create(job())
        await wait_until_async("both pods are there", runs)
        (seen,) = operator.caches.jobs.values_of(DEFAULT)
        assert seen.text == b""
        await operator.client.merge(JOB, {"spec": {"suspend": True}})
        await wait_until_async("the job is Suspended", suspended)
        await operator.client.merge(JOB, {"spec": {"suspend": False}})
        await wait_until_async("both pods are there again", runs)
        gone = await operator.client.get(JOB)
        await operator.client.delete(JOB, uid=gone["metadata"]["uid"])
        await wait_until_async("the job is gone", lambda: operator.caches.jobs.known_keys() == ())


async def test_what_is_wrong_with_it_is_reported_and_not_remembered_at_length(cluster: LocalCluster) -> None:
    async with operator_of(cluster) as operator:
        label = {"metadata": {"labels": {"a": "x" * 100_000}}}
        await operator.client.create(job(template=label))

        async def refusal() -> str:
            accepted = condition(await status(operator.client), "Accepted")
            return str(accepted["message"]) if accepted.get("status") == "False" else ""

        assert "refuses the worker pod" in await wait_until_async("the job is not Accepted", refusal)
        state = operator.reconciler.jobs.state_of(
            DEFAULT, (await operator.client.get(JOB))["metadata"]["uid"], 0.0
        )
        assert state.admission.refusal is not None
        assert len(state.admission.refusal.message) <= 4096
        await wait_until_async("the reason is known", lambda: state.last.why != "")
        assert len(state.last.why) <= 4096


async def test_one_that_is_gone_already_is_no_error(cluster: LocalCluster) -> None:
    async with operator_of(cluster, works=False) as operator:
        await operator.client.create(job())
        await operator.caches.jobs.parts[0].list()
        seen = await operator.client.get(JOB)
        assert await operator.reconciler(DEFAULT) == 0.0
        await operator.client.delete(JOB, uid=seen["metadata"]["uid"])
        assert await operator.reconciler(DEFAULT) is None


async def test_that_its_reconciles_fail_is_reported(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> NoReturn:
        raise ValueError("odd")

    async with operator_of(cluster, works=False) as operator:
        await operator.client.create(job())
        await operator.caches.jobs.parts[0].list()
        monkeypatch.setattr(reconciler, "decide", broken)
        for _ in range(REPORT_AFTER_FAILURES):
            with pytest.raises(ValueError, match="odd"):
                await operator.reconciler(DEFAULT)
        assert condition(await status(operator.client), "Stalled")["reason"] == REASON


@pytest.mark.parametrize(("text", "is_cached"), [("3", True), ("3" * 65, False), ("", False)])
def test_of_annotations_only_a_short_one_that_is_read_is_cached(text: str, is_cached: bool) -> None:
    seen = stored("tenant", 1)
    ended = {"ropeteam.dev/coordinators-ended": text}
    seen["metadata"]["annotations"] = {**ended, "ropeteam.dev/other": "x" * 1000, "example.com/x": "x"}
    assert parsing.job(seen).parsed()["metadata"]["annotations"] == (ended if is_cached else {})
