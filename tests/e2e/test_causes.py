"""Why a job failed, through launchers: the innermost exception and its rank are in status.

A handful of the failures of tests/programs/own.toml, by real processes; the campaign runs all of them.
"""

from __future__ import annotations

from typing import Any

import pytest
from lab.local.cluster import Cluster
from lab.local.jobs import program


def incident(cluster: Cluster, name: str, command: list[str], **spec: Any) -> dict[str, Any]:
    """The only one of a job that may have none."""
    cluster.create(program(name, command, recovery={"maxFailures": 0}, **spec))
    assert cluster.wait_condition(name, "Failed")["reason"] == "FailureBudgetSpent"
    (only,) = cluster.status(name)["incidents"]
    return only


@pytest.mark.parametrize(
    ("way", "cause"), [("value", "ValueError: the learning rate is a lie (failures.py:"), ("kill", "SIGKILL")]
)
def test_a_process_of_mp_spawn_that_fails_is_named(cluster: Cluster, name: str, way: str, cause: str):
    seen = incident(cluster, name, ["python", "failures.py", "1", way, "spawn"], workers=1)
    assert seen["rank"] == 1
    assert cause in seen["message"]


def test_a_chain_of_processes_is_followed_to_its_innermost(cluster: Cluster, name: str):
    seen = incident(cluster, name, ["python", "failures.py", "1", "value", "chain_twice"])
    assert (seen["rank"], seen["slot"]) == (1, 1)
    assert "ValueError: the learning rate is a lie (failures.py:" in seen["message"]


def test_torchrun_in_a_shell_line_names_the_rank_that_failed_first(cluster: Cluster, name: str):
    seen = incident(cluster, name, ["bash", "-c", "true; torchrun failures.py 1 value"])
    assert (seen["rank"], seen["slot"]) == (1, 1)
    assert "ValueError: the learning rate is a lie (failures.py:" in seen["message"]
