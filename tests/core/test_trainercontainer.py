"""The container that a user described: twice, in part, or hardly at all."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ropeteam.api.job import TrainingJobSpec
from ropeteam.core.objects.trainercontainer import merged


def a_spec(containers: Any, **fields: Any) -> TrainingJobSpec:
    return TrainingJobSpec(workers=1, template={"spec": {"containers": containers}}, **fields)


def test_the_short_form_is_merged_into_the_container_of_the_template() -> None:
    given = {
        "name": "trainer",
        "command": ["python", "a.py"],
        "args": ["--lr", "1"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}],
        "resources": {"limits": {"cpu": 1}, "claims": []},
        "tty": True,
    }
    containers = [{"name": "sidecar"}, given]
    before = copy.deepcopy(containers)
    spec = a_spec(
        containers,
        image="train:1",
        working_dir="/src",
        command=("python", "b.py"),
        env=({"name": "B", "value": "2"},),
        resources={"limits": {"memory": "1Gi"}},
    )
    assert merged(spec) == {
        "name": "trainer",
        "image": "train:1",
        "workingDir": "/src",
        "command": ["python", "b.py"],
        "args": ["--lr", "1"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        "resources": {"limits": {"memory": "1Gi"}, "claims": []},
        "tty": True,
    }
    assert containers == before


@pytest.mark.parametrize("containers", [None, "trainer", [], [7, None], [{"name": ["trainer"]}]])
def test_without_a_container_of_that_name_there_is_the_short_form_alone(containers: Any) -> None:
    empty = {"name": "trainer", "args": [], "env": [], "resources": {}}
    assert merged(a_spec(containers, command=("true",))) == {**empty, "command": ["true"]}
