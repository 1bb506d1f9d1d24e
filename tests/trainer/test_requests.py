"""Requests to parameter servers, as earlier releases write and read them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from ropeteam_trainer.contract.codec import DecodeError
from ropeteam_trainer.strategies.parameterserver import requests
from ropeteam_trainer.strategies.parameterserver.requests import (
    Deregister,
    Done,
    EndServing,
    FetchGeneration,
    FetchShare,
    Generation,
    PullWeights,
    PushDecision,
    PushGradient,
    Register,
    Registered,
    ReplaceShare,
    ReportStep,
    Request,
    RequestStep,
    SendProgress,
    SkipDecision,
    Weights,
)

ME = (2, (1, 0, 3))
GROUPS = ({"lr": 0.5, "betas": [0.9, 0.999], "growth_rate": math.inf, "foreach": None, "maximize": False},)
REQUESTS: dict[str, Request[Any]] = {
    '{"do": "hello", "worker": 2, "epoch": [1, 0, 3]}': Register(*ME),
    '{"do": "done", "worker": 2, "epoch": [1, 0, 3], "clock": 7}': ReportStep(*ME, 7),
    '{"do": "leave", "worker": 2, "epoch": [1, 0, 3]}': Deregister(*ME),
    '{"do": "ask", "worker": 2, "epoch": [1, 0, 3], "n": 6}': RequestStep(*ME, 6),
    '{"do": "push", "worker": 2, "epoch": [1, 0, 3], "n": 6, "of": 3, "values": [{"lr": 0.5, '
    '"betas": [0.9, 0.999], "growth_rate": Infinity, "foreach": null, "maximize": false}], '
    '"version": 5, "lacking": [1]}': PushGradient(*ME, 6, 3, GROUPS, 5, (1,)),
    '{"do": "pull"}': PullWeights(),
    '{"do": "state"}': FetchGeneration(),
    '{"do": "content"}': FetchShare(),
    '{"do": "take", "generation": "ab"}': ReplaceShare("ab"),
    '{"do": "progress", "step": 6, "drained": true}': SendProgress(6, True),
    '{"do": "end"}': EndServing(),
}
ANSWERS: list[tuple[Request[Any], str, Any]] = [
    (Register(*ME), '{"clock": 7, "generation": "ab"}', Registered(7, "ab")),
    (RequestStep(*ME, 6), '{"push": 6, "of": 3}', PushDecision(6, 3)),
    (RequestStep(*ME, 6), '{"skip": 8}', SkipDecision(8)),
    (PullWeights(), '{"version": 5}', Weights(5)),
    (FetchGeneration(), '{"generation": null}', Generation(None)),
    (EndServing(), "{}", Done()),
]


@pytest.mark.parametrize("head", REQUESTS, ids=lambda head: json.loads(head)["do"])
def test_requests_are_those_of_earlier_releases(head: str) -> None:
    assert requests.encode(REQUESTS[head]) == head.encode()
    assert requests.parse(head.encode()) == REQUESTS[head]


@pytest.mark.parametrize(("request_", "head", "answer"), ANSWERS, ids=[each[1] for each in ANSWERS])
def test_answers_are_those_of_earlier_releases(request_: Request[Any], head: str, answer: Any) -> None:
    assert requests.encode(answer) == head.encode()
    assert requests.parse_answer(request_, head.encode()) == answer


def test_a_failure_is_raised_whatever_the_request() -> None:
    for request in REQUESTS.values():
        with pytest.raises(requests.ServerRefused, match="no such worker"):
            requests.parse_answer(request, requests.encode(requests.Failure("no such worker")))


PUSH = json.loads(next(head for head in REQUESTS if "push" in head))


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"{}", "no request"),
        (b'{"do": ["push"]}', "no request"),
        (b'{"do": "put"}', "unknown request 'put'"),
        (b'{"do": "ask", "worker": 2, "epoch": [1, 0, 3]}', "missing n"),
        (b'{"do": "ask", "worker": "2", "epoch": [1, 0, 3], "n": 1}', r"RequestStep\.worker: expected int"),
        (json.dumps(PUSH | {"of": 0}).encode(), "a step of 0 gradients"),
        (json.dumps(PUSH | {"values": [{"lr": "fast"}]}).encode(), "hyperparameter 'lr' is not a number"),
        (
            json.dumps(PUSH | {"values": [{"params": [0]}]}).encode(),
            "hyperparameter 'params' is not a number",
        ),
        (json.dumps(PUSH | {"values": [{"lr": [[1]]}]}).encode(), "hyperparameter 'lr' is not a number"),
    ],
)
def test_what_is_no_request_is_refused_with_the_reason(head: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        requests.parse(head)


def test_what_is_no_answer_is_refused_with_the_reason() -> None:
    with pytest.raises(DecodeError, match="missing push, of"):
        requests.parse_answer(RequestStep(*ME, 6), b"{}")
    with pytest.raises(DecodeError, match="not a JSON object"):
        requests.parse_answer(RequestStep(*ME, 6), b"3")
