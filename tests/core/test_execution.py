"""Each action is carried out by one request, and by one `match` for all targets."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock, call

import pytest

from ropeteam.core.objects.actions import (
    Action,
    CreatePod,
    CreatePolicy,
    CreateSecret,
    CreateService,
    DeleteJob,
    DeletePod,
    DeleteService,
    EnsureAgent,
    PointService,
)
from ropeteam.core.objects.execution import Target, carry_out

ROOT = Path(__file__).parents[2]
MANIFEST: dict[str, Any] = {"metadata": {"name": "mnist"}}
SECRET = CreateSecret("mnist-x", "u1", {}, {}, "k1")
PATCH = {"metadata": {"uid": "u2"}, "spec": {"selector": {"ropeteam.dev/term": "3"}}}
REQUESTS: list[tuple[Action, Any]] = [
    (CreatePod(MANIFEST), call.create(MANIFEST)),
    (DeletePod("mnist-0-1", "u1", 7), call.delete("Pod", "mnist-0-1", "u1", 7)),
    (CreateService(MANIFEST), call.create(MANIFEST)),
    (PointService("mnist", "u2", {"ropeteam.dev/term": "3"}), call.merge("Service", "mnist", PATCH)),
    (DeleteService("mnist", "u2"), call.delete("Service", "mnist", "u2", None)),
    (SECRET, call.create_secret(SECRET)),
    (CreatePolicy(MANIFEST), call.create_policy(MANIFEST)),
    (EnsureAgent(), call.ensure_agent()),
    (DeleteJob("mnist", "u3"), call.delete("TrainingJob", "mnist", "u3", None)),
]


@pytest.mark.parametrize(
    ("action", "request_"), REQUESTS, ids=[type(action).__name__ for action, _ in REQUESTS]
)
def test_each_action_is_one_request_whose_result_is_returned(action: Action, request_: Any) -> None:
    target = Mock(spec=Target)
    result = carry_out(action, target)
    assert target.mock_calls == [request_]
    assert result is getattr(target, request_[0]).return_value


def test_each_action_has_a_request_here() -> None:
    assert {type(action) for action, _ in REQUESTS} == set(get_args(Action))


def test_one_match_distinguishes_actions() -> None:
    found = []
    for folder in ("operator", "tests", "lab", "benchmarks", "tools"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            if "DeletePod" in text:
                found += [
                    path.relative_to(ROOT).as_posix()
                    for node in ast.walk(ast.parse(text))
                    if isinstance(node, ast.MatchClass) and ast.unparse(node.cls).endswith("DeletePod")
                ]
    assert found == ["operator/ropeteam/core/objects/execution.py"]
