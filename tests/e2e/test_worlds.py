"""One world, or a clear word: a handful of the ways of tests/programs/own.toml, by real processes.

Limit: they prove what is reported and how a job ends, not how soon; the campaign measures that.
"""

from __future__ import annotations

from lab.local.cluster import Cluster
from lab.local.jobs import program
from lab.waiting import wait_until


def trained(cluster: Cluster, name: str) -> list[str]:
    """Last line of each pod's script. torchrun may print after it that the store has gone with another."""
    logs = [cluster.logs(pod["metadata"]["name"]).splitlines() for pod in cluster.pods(name)]
    printed = [[line.partition("] ")[2] for line in lines] for lines in logs]
    return [next((text for text in reversed(each) if text.startswith("trained ")), "") for each in printed]


def test_pods_that_train_alone_are_reported_and_then_the_job_fails(cluster: Cluster, name: str):
    line = "true; torchrun --standalone --nnodes=1 worlds.py env 600"
    cluster.create(program(name, ["bash", "-c", line], recovery={"startSeconds": 10}))

    def smaller() -> str:
        seen = cluster.condition(name, "Degraded")
        return seen["message"] if seen.get("reason") == "SmallerProcessGroup" else ""

    assert "the job has 2 ranks" in wait_until("SmallerProcessGroup", smaller)
    failed = cluster.wait_condition(name, "Failed")
    assert failed["reason"] == "SplitWorld"
    assert "a process group of 1 by worlds.py in slot " in failed["message"]
    assert "spec.worlds to PerPod" in failed["message"]
    assert cluster.status(name)["incidents"] == []


def test_torchrun_in_a_shell_line_joins_the_one_world(cluster: Cluster, name: str):
    cluster.create(program(name, ["bash", "-c", "true; torchrun worlds.py env 1"], cleanPodPolicy="None"))
    assert cluster.wait_condition(name, "Complete")["reason"] == "Succeeded"
    assert trained(cluster, name) == ["trained in a world of 2"] * 2


def test_groups_before_the_one_of_all_ranks_are_no_split_world(cluster: Cluster, name: str):
    cluster.create(program(name, ["python", "worlds.py", "preflight", "1"], cleanPodPolicy="None"))
    assert cluster.wait_condition(name, "Complete")["reason"] == "Succeeded"
    assert trained(cluster, name) == ["trained in a world of 2"] * 2
    assert cluster.condition(name, "Degraded").get("status", "False") == "False"


def test_a_job_without_any_process_group_has_a_condition_at_its_end(cluster: Cluster, name: str):
    cluster.create(program(name, ["python", "worlds.py", "no_group", "0"]))
    complete = cluster.wait_condition(name, "Complete")
    assert complete["reason"] == "NoProcessGroup"
    assert "none of them has reported a process group" in complete["message"]
