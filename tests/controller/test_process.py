"""The operator as a process: how it starts, how it ends, and that killing it at any moment harms nothing."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from lab.waiting import wait_until_async, within
from tests.controller.house import JOB, job, names

from ropeteam.controller.cache.informer import Key
from ropeteam.controller.client import access
from ropeteam.controller.client.apiclient import ApiClient, NotFound, ObjectRef
from ropeteam.controller.kopfwatch import thread
from ropeteam.controller.kopfwatch.handlers import Change
from ropeteam.local.cluster import LocalCluster


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path / "home") as running:
        yield running


@pytest_asyncio.fixture
async def client(cluster: LocalCluster) -> AsyncIterator[ApiClient]:
    async with ApiClient(partial(access.load, cluster.kubeconfig)) as client:
        yield client


OPERATOR = (sys.executable, "-m", "ropeteam.controller")


async def start(
    cluster: LocalCluster, *flags: str, stderr: int = asyncio.subprocess.PIPE
) -> asyncio.subprocess.Process:
    where = ("--kubeconfig", str(cluster.kubeconfig), "--home", str(cluster.home))
    return await asyncio.create_subprocess_exec(*OPERATOR, *where, *flags, stderr=stderr)


@asynccontextmanager
async def operator(cluster: LocalCluster, *flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await start(cluster, *flags)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def uids(client: ApiClient) -> dict[str, str]:
    pods = await client.items(ObjectRef("Pod", "default"))
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


async def test_without_the_definition_it_names_how_to_install_it(
    cluster: LocalCluster, client: ApiClient
) -> None:
    place = ObjectRef("CustomResourceDefinition", "", "trainingjobs.ropeteam.dev")
    await client.delete(place, uid=(await client.get(place))["metadata"]["uid"])
    async with operator(cluster) as process:
        _, output = await within("the operator exits", process.communicate())
    assert process.returncode == 1
    assert b"ropeteam crd | kubectl apply -f -" in output
    assert b"Traceback" not in output


async def test_sigterm_ends_it_in_order(cluster: LocalCluster, client: ApiClient) -> None:
    async with operator(cluster) as process:
        await client.create(job())
        await wait_until_async("a pod is there", lambda: names(client, "Pod"))
        process.terminate()
        _, output = await within("the operator exits", process.communicate())
    assert process.returncode == 0
    assert b"Traceback" not in output


async def test_it_works_and_ends_though_nobody_reads_its_log(
    cluster: LocalCluster, client: ApiClient
) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    process = await start(cluster, "--log-level", "debug", stderr=writer)
    await client.create(job())
    await wait_until_async("a pod is there", lambda: names(client, "Pod"))
    process.terminate()
    assert await within("the operator exits", process.wait()) == 0
    os.close(reader)
    os.close(writer)


async def test_killed_at_any_moment_it_goes_on_where_it_was(cluster: LocalCluster, client: ApiClient) -> None:
    """Each life ends one write later than the one before; nothing is ever made twice."""
    await client.create(job())
    known: dict[str, str] = {}
    for life in range(4):
        before = int((await client.get(JOB))["metadata"]["resourceVersion"])
        async with operator(cluster) as process:
            seen = before + life
            await wait_until_async("the operator has written", lambda: cluster.store.revision > seen)  # noqa: B023 - awaited here
            process.send_signal(signal.SIGKILL)
            await process.wait()
        now = await uids(client)
        assert known.items() <= now.items(), "a pod was replaced for no reason"
        known = now
    async with operator(cluster):

        async def complete() -> bool:
            return sorted(await uids(client)) == ["job-0-1", "job-1-1", "job-coordinator-1"]

        await wait_until_async("all three pods run", complete)
    assert known.items() <= (await uids(client)).items()
    assert (await client.get(JOB))["status"]["attempt"] == 1


async def leader(client: ApiClient) -> str:
    with suppress(NotFound):
        return str((await client.get(ObjectRef("Lease", "default", "ropeteam")))["spec"]["holderIdentity"])
    return ""


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP])
async def test_the_other_operator_acts_when_the_leader_does_not(
    cluster: LocalCluster, client: ApiClient, end: signal.Signals
) -> None:
    lease = ("--lease", "default/ropeteam", "--lease-seconds", "6")
    async with operator(cluster, *lease) as first:
        first_leader = await wait_until_async("an operator leads", lambda: leader(client))
        async with operator(cluster, *lease):
            first.send_signal(end)

            async def changed() -> bool:
                return await leader(client) not in ("", first_leader)

            await wait_until_async("another operator leads", changed)
            await client.create(job())

            async def complete() -> bool:
                pods = await client.items(ObjectRef("Pod", "default"))
                return [pod["status"]["phase"] for pod in pods] == ["Running"] * 3

            await wait_until_async("all three pods run", complete)
            made = await uids(client)
            if end is signal.SIGKILL:
                return
            if end is signal.SIGSTOP:
                first.send_signal(signal.SIGCONT)
            _, output = await within("the first operator exits", first.communicate())
            assert first.returncode == (1 if end is signal.SIGSTOP else 0), output
            # The latter if it was stopped in a renewal, which has run out of time when it continues.
            reasons = (b"leads now", b"could not be renewed within")
            assert any(why in output for why in reasons) is (end is signal.SIGSTOP)
            assert b"Traceback" not in output
            assert await uids(client) == made


async def test_a_standby_operator_ends_on_a_signal(cluster: LocalCluster, client: ApiClient) -> None:
    async with operator(cluster, "--lease", "default/ropeteam"):
        await wait_until_async("an operator leads", lambda: leader(client))
        async with operator(cluster, "--lease", "default/ropeteam") as second:
            assert second.stderr is not None
            while b"standby: " not in await within("the second is a standby", second.stderr.readline()):
                pass
            second.terminate()
            assert await within("the second operator exits", second.wait()) == 0


async def test_it_serves_its_numbers(cluster: LocalCluster, client: ApiClient) -> None:
    file = cluster.home / "operator.address"
    async with operator(cluster):
        address = await wait_until_async(
            "the operator has written its address", lambda: file.exists() and file.read_text()
        )
        await client.create(job())
        async with aiohttp.ClientSession(f"http://{address}".strip()) as session:

            async def counted() -> bool:
                async with session.get("/metrics") as answer:
                    found = re.findall(
                        r'ropeteam_jobs\{state="(Starting|Running)"\} 1\.0', await answer.text()
                    )
                    return len(found) == 1

            await wait_until_async("the job is counted", counted)


async def test_without_a_way_to_a_cluster_it_exits_with_the_reason(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *OPERATOR, "--home", str(tmp_path), "--kubeconfig", "nowhere", stderr=asyncio.subprocess.PIPE
    )
    _, output = await within("the operator exits", process.communicate())
    assert process.returncode == 1
    assert b"ropeteam operator: cannot read the kubeconfig nowhere" in output


async def test_kopf_reports_every_job_that_changes(
    cluster: LocalCluster, client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr("getpass.getuser", nobody)  # as in a container
    changes: list[Change] = []
    load = partial(access.load, cluster.kubeconfig)
    task = asyncio.create_task(thread.run(load, changes.append, ()))
    await client.create(job())
    for number in range(1000):  # what is there before it watches is listed, by others
        await client.merge(JOB, {"metadata": {"annotations": {"number": str(number)}}})
        await asyncio.sleep(0.05)
        if changes:
            break
    assert changes[0].key == Key("default", "job")
    other = job()
    other["metadata"]["name"] = "other"
    await client.create(other)
    await wait_until_async(
        "the other job is reported", lambda: Key("default", "other") in {each.key for each in changes}
    )
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
