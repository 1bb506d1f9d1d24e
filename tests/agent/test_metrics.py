"""Metrics of an agent: about its ranks, to anyone, and never at the cost of training."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import pytest
from lab.coordinator.link import Crowd, come_at_once, shut
from prometheus_client.parser import text_string_to_metric_families
from tests.agent.harness import Coordinator, Pod, a_plan
from tests.agent.life import Life

from ropeteam_trainer.agent import http
from ropeteam_trainer.agent.http import MetricsServer
from ropeteam_trainer.agent.machine import metrics
from ropeteam_trainer.contract.config import AGENT_METRICS_PORT
from ropeteam_trainer.contract.local import Served
from ropeteam_trainer.contract.messages import AgentReport, RankPhase

Samples = dict[tuple[str, str], float]


def samples(text: str) -> Samples:
    """(name, rank) -> value; of the phases only the one that holds, as ("phase", rank) -> 1."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            assert (each.labels["namespace"], each.labels["job_name"], each.labels["slot"]) == ("n", "j", "0")
            found[each.labels.get("phase") or each.name, each.labels.get("rank", "")] = each.value
    return found


def scraped(life: Life, counts: metrics.Counts) -> Samples:
    return samples(metrics.render(life.state, counts, unix_minus_monotonic=1e9))


def test_without_a_world_only_the_agent_is_described():
    assert set(scraped(Life(), {})) == {
        ("ropeteam_agent_incarnation", ""),
        ("ropeteam_agent_connected", ""),
        ("ropeteam_agent_terminating", ""),
    }
    assert metrics.updated_counts({}, Life().state) == {}


def test_steps_and_their_time_grow_over_worlds():
    life, counts = Life().running(), dict[int, metrics.RankCounters]()

    def look(step: int, n: int) -> None:
        nonlocal counts
        life.heartbeats(0, step, n)
        counts = dict(metrics.updated_counts(counts, life.state))

    look(3, n=1)  # the first look at a world says nothing of how long its steps took
    life.wait(4)
    look(5, n=1)
    life.died(0, 1).running(2)
    counts = dict(metrics.updated_counts(counts, life.state))
    look(4, n=2)
    life.wait(1)
    look(6, n=2)
    look(6, n=2)
    seen = scraped(life, counts)
    assert seen["ropeteam_rank_step_seconds_count", "0"] == 4
    assert seen["ropeteam_rank_step_seconds_sum", "0"] == 5.0
    assert seen["ropeteam_rank_starts_total", "0"] == seen["ropeteam_rank_starts_total", "1"] == 2
    assert seen["ropeteam_rank_step", "0"] == 6
    assert seen["ropeteam_rank_last_step_timestamp_seconds", "0"] == 1e9 + life.now
    assert ("ropeteam_rank_last_step_timestamp_seconds", "1") not in seen, "it made none in this world"
    assert (seen["Running", "0"], seen["Exited", "0"]) == (1, 0)


def test_a_rank_that_was_never_started_has_no_start():
    life = Life().ordered(plan=Life().running().state.orders.plan)
    assert scraped(life, metrics.updated_counts({}, life.state))["ropeteam_rank_starts_total", "0"] == 0


def test_the_number_of_series_is_bounded_by_the_ranks_of_the_pod():
    life = Life(processes=8).running(processes=8)
    for rank in range(8):
        life.heartbeats(rank, 2)
    text = metrics.render(life.state, metrics.updated_counts({}, life.state), 0.0)
    series = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == 3 + 8 * (len(RankPhase) + 5)


def test_what_a_parameter_server_has_done_with_gradients():
    life = Life().running().rank_sends(1, served=Served(applied=7, staleness=9))
    seen = scraped(life, {})
    assert seen["ropeteam_rank_gradient_staleness_count", "1"] == 7
    assert seen["ropeteam_rank_gradient_staleness_sum", "1"] == 9
    assert not [name for name, _ in seen if "dropped" in name], "the first server alone knows"
    life.rank_sends(1, served=Served(applied=8, staleness=9, dropped=3))
    assert scraped(life, {})["ropeteam_rank_gradients_dropped_total", "1"] == 3


# ---- the server


async def get(port: int, raw: bytes, address: str = "127.0.0.1") -> tuple[str, str]:
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(raw)
    answer = ""
    with suppress(ConnectionResetError):  # closed before it read what we sent
        answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return head.partition("\r\n")[0].removeprefix("HTTP/1.1 "), body


GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(http, "FRESH_SECONDS", 1000.0)
    texts = iter(f"a {number}\n" for number in range(100))
    server = MetricsServer(lambda: next(texts))
    yield server, await server.listen("127.0.0.1", 0)
    server.close()


async def test_only_get_metrics_is_answered(served: Any):
    _, port = served
    assert await get(port, GET) == ("200 OK", "a 0\n")
    assert await get(port, GET.replace(b" /metrics", b" /metrics?x=y")) == ("200 OK", "a 0\n")
    assert (await get(port, GET.replace(b"GET", b"PUT")))[0] == "405 Method Not Allowed"
    assert (await get(port, GET.replace(b"/metrics", b"/status")))[0] == "404 Not Found"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\r\n\r\n", "400 Bad Request"),
        (b"GET /metrics SPDY/3\r\n\r\n", "400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", "400 Bad Request"),
        (b"GET /" + b"x" * (9 << 10) + b"\r\n\r\n", "431 Request Header Fields Too Large"),
        (
            b"GET /metrics HTTP/1.1\r\nX: " + b"x" * (60 << 10) + b"\r\n\r\n",
            "431 Request Header Fields Too Large",
        ),
    ],
)
async def test_a_malformed_request_is_answered_with_a_status(served: Any, raw: bytes, status: str):
    _, port = served
    assert (await get(port, raw))[0] == status
    assert await get(port, GET) == ("200 OK", "a 0\n")


async def test_a_request_that_ends_early_is_answered(served: Any):
    reader, writer = await asyncio.open_connection("127.0.0.1", served[1])
    writer.write(b"GET /met")
    writer.write_eof()
    assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    await shut(writer)


async def test_a_text_is_made_at_most_once_in_a_while(served: Any, monkeypatch: pytest.MonkeyPatch):
    _, port = served
    assert {await get(port, GET) for _ in range(5)} == {("200 OK", "a 0\n")}
    monkeypatch.setattr(http, "FRESH_SECONDS", 0.0)
    assert await get(port, GET) == ("200 OK", "a 1\n")


async def test_a_peer_that_sends_nothing_is_left(served: Any, monkeypatch: pytest.MonkeyPatch):
    _, port = served
    monkeypatch.setattr(http, "HEAD_SECONDS", 0.05)
    assert await get(port, b"GET /met") == ("", "")


async def test_silent_peers_do_not_keep_prometheus_out(served: Any):
    _, port = served
    crowd = Crowd(port, 40)
    await crowd.has_come()
    assert await get(port, GET) == ("200 OK", "a 0\n")
    await crowd.go()


async def test_prometheus_waits_in_the_queue_behind_who_comes_while_the_agent_is_busy(served: Any):
    _, port = served
    come_at_once(port)
    assert await get(port, GET) == ("200 OK", "a 0\n")


async def test_a_port_that_is_taken_is_replaced_and_none_at_all_is_no_error(
    served: Any, capfd: pytest.CaptureFixture[str]
):
    _, taken = served
    second = MetricsServer(str)
    port = await second.listen("127.0.0.1", taken)
    assert port not in (0, taken)
    assert f"metrics are at http://127.0.0.1:{port}/metrics" in "".join(capfd.readouterr())
    second.close()
    assert await MetricsServer(str).listen("192.0.2.1", 0) == 0
    assert "metrics cannot be served at 192.0.2.1, on any port" in "".join(capfd.readouterr())


async def test_a_real_agent_is_scraped_while_its_ranks_come_and_go(pod: Pod, coordinator: Coordinator):
    address = "127.0.0.7"  # no other agent's: one that ends would free its port for this one
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((address, AGENT_METRICS_PORT))
        holder.listen()
        pod.start("sleep", "1000", ROPETEAM_POD_IP=address)
        await pod.printed("metrics are at ")
    port = int(pod.text().partition(f"metrics are at http://{address}:")[2].partition("/")[0])

    def runs(report: AgentReport) -> bool:
        phases = [each.phase for each in report.ranks]
        return report.plan == plan and phases == [RankPhase.RUNNING]

    for number in (1, 2):
        plan = a_plan(number)
        coordinator.order(plan=plan)
        await coordinator.wait_for(runs)
        seen = samples((await get(port, GET, address))[1])
        assert seen["ropeteam_agent_connected", ""] == 1
        await asyncio.sleep(http.FRESH_SECONDS)
    seen = samples((await get(port, GET, address))[1])
    assert (seen["Running", "0"], seen["ropeteam_rank_starts_total", "0"]) == (1, 2)
