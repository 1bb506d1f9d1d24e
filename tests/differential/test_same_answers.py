"""The local API server against a real one: the same requests, the same answers, but for a list of reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.differential import servers
from tests.differential.compare import ABSENT, Difference, differences
from tests.differential.corpus import CORPUS
from tests.differential.known import KNOWN, Known
from tests.differential.play import play
from tests.differential.scenario import Answer, At, Edited, resolve


@pytest.mark.timeout(900)
async def test_both_servers_give_the_same_answers(tmp_path: Path):
    if why := servers.why_not():
        pytest.skip(why)
    found = await play(CORPUS, tmp_path)
    new = [str(each) for each in found if not any(known.covers(each) for known in KNOWN)]
    assert not new, f"{len(new)} differences that known.py does not list:\n" + "\n".join(new[:50])
    stale = [f"{known.reason[:60]}...: {row}" for known in KNOWN for row in known.stale(found)]
    assert not stale, "known.py lists what does not differ any more:\n" + "\n".join(stale)


def answer(status: int = 200, **body: Any) -> Answer:
    return Answer(status, "application/json", (), body)


def obj(uid: str, version: int, **more: Any) -> Any:
    return {"metadata": {"uid": uid, "resourceVersion": str(version), "name": "x", **more}}


def test_what_every_server_makes_up_is_no_difference():
    ours = [answer(**obj("a-a", 7, creationTimestamp="2026-01-01T00:00:00Z")), answer(**obj("a-a", 9))]
    theirs = [
        answer(**obj("b-b", 100, creationTimestamp="2027-02-02T00:00:01Z")),
        answer(**obj("b-b", 340)),
    ]
    assert differences("x", ours, theirs) == []
    late = [theirs[0], answer(**obj("b-b", 100))]
    assert [each.path for each in differences("x", ours, late)] == ["body.metadata.resourceVersion"]


def test_a_difference_names_its_place():
    ours = [answer(items=[{"a": 1}], spec={"ports": [{"name": "http", "port": 1}]})]
    theirs = [answer(items=[], spec={"ports": [{"name": "http", "port": 2}]})]
    found = differences("x", ours, theirs)
    assert [(each.path, each.real) for each in found] == [
        ("body.items[0]", ABSENT),
        ("body.spec.ports[http].port", 2),
    ]


def test_another_status_is_one_difference():
    (found,) = differences("x", [answer(201, kind="Pod")], [answer(422, message="bad", reason="Invalid")])
    assert (found.path, found.local, found.real) == ("status", "201 Pod", "422 bad")


def test_a_scenario_speaks_of_earlier_answers():
    seen = [answer(**obj("u", 5))]
    assert resolve({"uid": At(0, "metadata.uid"), "at": ["{ns}"]}, "n1", seen) == {"uid": "u", "at": ["n1"]}
    assert resolve(Edited(0, {"metadata": {"uid": None}}), "n1", seen)["metadata"] == {
        "resourceVersion": "5",
        "name": "x",
    }


def test_a_listed_difference_that_is_gone_is_reported():
    row = Known("why", ("pod/*", "job/*"), ("body.message",), real="Go")
    seen = Difference("pod/x", 0, "body.message", "ours", "Go says")
    assert row.covers(seen)
    assert not row.covers(Difference("pod/x", 0, "body.message", "ours", "Rust says"))
    assert not row.covers(Difference("pod/x", 0, "status", "ours", "Go says"))
    assert row.stale([seen]) == ["job/*"]
