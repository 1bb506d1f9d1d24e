"""The operator's port: requests, answers, and sentences for malformed ones."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest
from lab.coordinator.link import TOKEN, Operator, get_status, http, put_desired, request, shut
from lab.coordinator.reports import agent, config
from prometheus_client.parser import text_string_to_metric_families
from tests.coordinator.conftest import ServedCoordinator

from ropeteam_trainer.contract import codec, wire
from ropeteam_trainer.contract.desired import Desired, JobReport, SlotDesired, WorldPhase
from ropeteam_trainer.contract.messages import Progress
from ropeteam_trainer.contract.world import CheckpointRef, WorldId
from ropeteam_trainer.coordinator import http as http_module
from ropeteam_trainer.coordinator.membership import step as membership
from ropeteam_trainer.coordinator.metrics import render

BEARER = f"Bearer {wire.http_bearer(TOKEN)}"
PUT = f"PUT /desired HTTP/1.1\r\nAuthorization: {BEARER}\r\n".encode()
DESIRED = Desired(1, 1, 1, {"0": SlotDesired(1, "pod-0-1")})


@pytest.fixture
def bearers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unsigned desires are taken, as when no operator signs."""
    monkeypatch.setattr(http_module, "BEARER_SECONDS", 0.0)


async def test_desired_is_answered_with_a_report_and_twice_is_once(served: ServedCoordinator):
    first = await put_desired(served.http, DESIRED)
    assert first.observed_generation == 1
    assert first.phase.value == "Forming"
    again, report = await put_desired(served.http, DESIRED), await get_status(served.http)
    assert first.sent < again.sent < report.sent
    assert replace(again, sent=first.sent) == replace(report, sent=first.sent) == first


@pytest.mark.parametrize("authorization", ["", "Bearer wrong", "Basic eA==", "Bearer ", "Bearer \xe4"])
@pytest.mark.parametrize("path", ["/status", "/desired"])
@pytest.mark.usefixtures("bearers")
async def test_a_signature_or_a_bearer_is_needed(served: ServedCoordinator, authorization: str, path: str):
    method = "PUT" if path == "/desired" else "GET"
    raw = request(method, path, b"{}" if method == "PUT" else b"", Authorization=authorization)
    status, body = await http(served.http, raw)
    assert (status, served.coordinator.state.desired) == (401, None)
    assert body.startswith(
        "the request is not signed with this job's token for term 1, or answers an outdated"
    )


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"{", 400, "not JSON"),
        (b"[]", 400, "Desired: expected an object"),
        (b'{"generation": 1}', 400, "Desired: missing attempt, term, slots"),
        (codec.encode(replace(DESIRED, contract=7)), 400, "contract 7 is unknown"),
        (codec.encode(replace(DESIRED, term=2)), 409, "this is the coordinator of term 1, not of 2"),
        (
            codec.encode(replace(DESIRED, slots={"7": SlotDesired(1)})),
            400,
            "unknown slots 7; there are 0 to 1",
        ),
    ],
)
async def test_a_malformed_desired_state_is_refused_with_a_sentence(
    served: ServedCoordinator, body: bytes, status: int, sentence: str
):
    answered, text = await Operator(served.http).request("PUT /desired", body)
    assert answered == status
    assert sentence in text
    assert served.coordinator.state.desired is None


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"hello\r\n\r\n", 400),
        (b"GET /status SPDY/3\r\n\r\n", 400),
        (b"GET /status HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /status HTTP/1.1\r\n : empty name\r\n\r\n", 400),
        (b"GET /nowhere HTTP/1.1\r\n\r\n", 404),
        (b"POST /status HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
        (PUT + b"\r\n", 411),
        (PUT + b"Transfer-Encoding: chunked\r\n\r\n", 411),
        (PUT + b"Content-Length: -1\r\n\r\n", 400),
        (PUT + b"Content-Length: 99999999\r\n\r\n", 413),
        (b"GET /status HTTP/1.1\r\nX: " + b"x" * (20 << 10) + b"\r\n\r\n", 431),
    ],
)
@pytest.mark.usefixtures("bearers")
async def test_a_malformed_request_is_answered_with_a_status(
    served: ServedCoordinator, raw: bytes, status: int
):
    assert (await http(served.http, raw))[0] == status
    assert (await http(served.http, request("GET", "/healthz")))[0] == 200


@pytest.mark.parametrize("raw", [b"GET /sta", PUT + b"Content-Length: 10\r\n\r\n{}"])
@pytest.mark.usefixtures("bearers")
async def test_a_request_that_ends_early_is_answered(served: ServedCoordinator, raw: bytes):
    reader, writer = await asyncio.open_connection("127.0.0.1", served.http)
    writer.write(raw)
    writer.write_eof()
    assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    await shut(writer)


@pytest.mark.parametrize(
    ("limit", "sent"), [("HEAD_SECONDS", b""), ("SECONDS", PUT + b"Content-Length: 10\r\n\r\n{}")]
)
@pytest.mark.usefixtures("bearers")
async def test_a_peer_that_does_not_go_on_is_dropped(
    served: ServedCoordinator, monkeypatch, limit: str, sent: bytes
):
    monkeypatch.setattr(http_module, limit, 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.http)
    writer.write(sent)
    assert await reader.read() == b""
    await shut(writer)


async def test_an_unauthenticated_body_is_not_waited_for(served: ServedCoordinator):
    assert (await http(served.http, b"PUT /desired HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n"))[0] == 401


async def test_health_and_metrics_need_no_signature(served: ServedCoordinator):
    assert await http(served.http, request("GET", "/healthz")) == (200, "ok\n")
    await put_desired(served.http, DESIRED)
    report = agent(0, progress=Progress(step=7, loss="1.5", samples_per_second=96.0))
    served.coordinator._apply_event(membership.ReportReceived(report))
    status, text = await http(served.http, request("GET", "/metrics?name=x"))
    assert status == 200
    labels = '{job_name="mnist",namespace="default"}'
    assert f"ropeteam_job_registered_slots{labels} 1.0" in text
    assert f"ropeteam_job_world_size{labels} 0.0" in text
    assert 'ropeteam_job_phase{job_name="mnist",namespace="default",phase="Forming"} 1.0' in text
    assert 'ropeteam_job_recent_incidents{cause="Signal",job_name="mnist",namespace="default"} 0.0' in text


def scraped(report: JobReport, **settings: Any) -> dict[str, float]:
    """Values without labels but the job's, by name."""
    text, content_type = render(report, replace(config(), **settings))
    assert content_type.startswith("text/plain")
    samples = (each for family in text_string_to_metric_families(text.decode()) for each in family.samples)
    return {each.name: each.value for each in samples if each.labels.keys() <= {"job_name", "namespace"}}


RUNNING = JobReport("u", 1, 0, WorldPhase.RUNNING, "why", feature_level=2)


def test_progress_is_reported_as_far_as_it_is_known():
    report = scraped(replace(RUNNING, progress=Progress(step=7, loss="1.5", total_steps=90)))
    assert (report["ropeteam_job_step"], report["ropeteam_job_loss"], report["ropeteam_job_total_steps"]) == (
        7,
        1.5,
        90,
    )
    report = scraped(replace(RUNNING, progress=Progress(loss="none yet")))
    assert not {"ropeteam_job_loss", "ropeteam_job_total_steps"} & report.keys()


def test_a_checkpoint_that_is_not_known_has_no_age():
    assert (
        not {"ropeteam_job_checkpoint_step", "ropeteam_job_checkpoint_timestamp_seconds"}
        & scraped(RUNNING).keys()
    )
    ref = CheckpointRef(40, WorldId(1, 0, 1), "digest")
    report = scraped(replace(RUNNING, lineage=(ref,), checkpoint_unix_ms=1_700_000_000_500))
    assert report["ropeteam_job_checkpoint_step"] == 40
    assert report["ropeteam_job_checkpoint_timestamp_seconds"] == 1_700_000_000.5


@pytest.mark.parametrize(
    ("has_place", "feature_level", "wanted"), [(True, 2, 1), (True, 1, 0), (False, 2, 0)]
)
def test_checkpoints_are_wanted_where_there_is_a_place_and_a_script_that_saves(
    has_place: bool, feature_level: int, wanted: int
):
    report = scraped(replace(RUNNING, feature_level=feature_level), checkpoint=has_place)
    assert report["ropeteam_job_checkpoint_enabled"] == wanted


async def test_metrics_contain_no_secret(served: ServedCoordinator):
    await put_desired(served.http, DESIRED)
    served.coordinator._apply_event(membership.ReportReceived(agent(0, node="node-7")))
    status, text = await http(served.http, request("GET", "/metrics"))
    assert (status, re.findall(r"^ropeteam_job_registered_slots\{.*\} (.*)$", text, re.MULTILINE)) == (
        200,
        ["1.0"],
    )
    for secret in (TOKEN.hex(), BEARER, "node-7", "pod-0-1", "10.0.0.1"):
        assert secret not in text
