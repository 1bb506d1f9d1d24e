"""A job under sync Exact of changing size, from the manifest: it begins without pods that do not come, pods
join while others are missing, and each step is the one of an undisturbed job.

A pod is missing while its agent is stopped, before it has registered.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from lab.local.cluster import Cluster
from lab.waiting import wait_until
from tests.e2e.test_replicas import (
    SHARDED,
    WORKERS,
    all_steps,
    check_steps,
    exact,
    has_recovered,
    last_step,
    pod_of,
    steps_of_one_replica,
    undisturbed_steps,
    wait_step,
)

pytestmark = pytest.mark.timeout(400)
Undisturbed = Callable[[int], dict[int, tuple[str, str]]]


class Sizes:
    """The pods of one job, some of which are missing."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.missing: dict[int, int] = {}
        """Agents that are stopped, by slot."""
        self.seen: list[tuple[int, str, str]] = []
        """Steps that pods had printed which are gone now."""

    def hold(self, slot: int) -> None:
        """Stop the agent of this slot, which has just been created."""
        uid = pod_of(self.cluster, self.name, slot, "uid")
        self.missing[slot] = wait_until(f"the agent of slot {slot}", partial(self._agent, uid))
        os.kill(self.missing[slot], signal.SIGSTOP)

    def _agent(self, uid: str) -> int | None:
        try:
            return self.cluster.agent_pid(uid)
        except AssertionError:
            return None

    def lose(self, *slots: int) -> None:
        """Kill these pods, and hold those that take their places."""
        self.seen += all_steps(self.cluster, self.name)
        uids = {slot: pod_of(self.cluster, self.name, slot, "uid") for slot in slots}
        for slot in slots:
            os.kill(self.cluster.agent_pid(uids[slot]), signal.SIGKILL)
        for slot in slots:
            another = partial(self._has_another, slot, uids[slot])
            wait_until(f"another pod in slot {slot}", another, seconds=60)
            self.hold(slot)

    def _has_another(self, slot: int, uid: str) -> bool:
        labels = {pod["metadata"]["labels"]["ropeteam.dev/slot"] for pod in self.cluster.pods(self.name)}
        return str(slot) in labels and pod_of(self.cluster, self.name, slot, "uid") != uid

    def let_come(self, *slots: int) -> None:
        """Until the ranks of these slots make steps."""
        for slot in slots:
            os.kill(self.missing.pop(slot), signal.SIGCONT)
        self.await_steps(*slots)

    def await_steps(self, *slots: int) -> None:
        for slot in slots:
            wait_until(f"steps of slot {slot}", partial(self._trains, slot), seconds=90)

    def _trains(self, slot: int) -> bool:
        return last_step(self._log(slot)) > 0

    def trains_with(self, *slots: int) -> None:
        """Wait until these make steps with each other, and the notice names those that are missing."""
        newest = max(last_step(self._log(slot)) for slot in slots) + 3
        wait_until(f"step {newest}", lambda: all(last_step(self._log(slot)) >= newest for slot in slots))
        if self.missing:
            some = ", ".join(map(str, sorted(self.missing)))
            wait_until(f"the notice that {some} are missing", lambda: f"{some}, and wait" in self.notice)
        else:
            wait_until("no notice", lambda: not self.notice)

    def _log(self, slot: int) -> str:
        return self.cluster.logs(pod_of(self.cluster, self.name, slot))

    @property
    def notice(self) -> str:
        """Message of the condition Degraded; "": it is False."""
        conditions = self.cluster.status(self.name).get("conditions", [])
        found = (each for each in conditions if each["type"] == "Degraded")
        return next((each["message"] for each in found if each["status"] == "True"), "")

    def check(self, incidents: int, undisturbed: Undisturbed = undisturbed_steps) -> None:
        """No step was lost, and none differs."""
        lost = [each.get("stepsLost") for each in self.cluster.status(self.name).get("incidents", [])]
        assert lost == [0] * incidents
        wait_until("step 30", lambda: last_step(self._log(0)) >= 30)
        check_steps([*self.seen, *all_steps(self.cluster, self.name)], undisturbed)


@contextmanager
def sizes(cluster: Cluster, name: str) -> Iterator[Sizes]:
    found = Sizes(cluster, name)
    try:
        yield found
    finally:
        for pid in found.missing.values():
            os.kill(pid, signal.SIGCONT)
        cluster.delete(name)


def test_a_job_of_four_pods_becomes_two_three_one_and_four(cluster: Cluster, name: str, tmp_path: Path):
    """Pods without which it continues for long, that of rank 0 among them; and a rank dies meanwhile."""
    cluster.create(exact(name, tmp_path, workers=4))
    wait_until("pods", lambda: len(cluster.pods(name)) == 4)
    wait_step(cluster, name, 3)
    with sizes(cluster, name) as job:
        job.lose(0, 3)
        job.let_come(3)
        job.trains_with(1, 2, 3)
        pid = cluster.wait_rank(name, 2)
        os.kill(pid, signal.SIGKILL)
        cluster.wait_rank(name, 2, pid)
        wait_until("the end of its incident", partial(has_recovered, cluster, name, 2))
        job.trains_with(1, 2, 3)
        job.lose(1, 2)
        job.trains_with(3)
        job.let_come(0, 1, 2)
        job.trains_with(0, 1, 2, 3)
        job.check(incidents=3)


def test_a_job_begins_with_the_pods_that_are_there_and_others_join(
    cluster: Cluster, name: str, tmp_path: Path
):
    made = exact(name, tmp_path)
    made["spec"]["elastic"] = {"minWorkers": 2, "waitSeconds": 2}
    cluster.create(made)
    wait_until("pods", lambda: len(cluster.pods(name)) == WORKERS)
    with sizes(cluster, name) as job:
        job.hold(1)
        job.await_steps(0, 2)
        job.trains_with(0, 2)
        job.let_come(1)
        job.trains_with(0, 1, 2)
        job.check(incidents=0)


def test_a_replica_of_two_pods_begins_without_the_other_one(cluster: Cluster, name: str, tmp_path: Path):
    made = exact(name, tmp_path, 4, SHARDED, parallelism={"shard": 2})
    made["spec"]["elastic"] = {"minWorkers": 2, "waitSeconds": 2}
    cluster.create(made)
    wait_until("pods", lambda: len(cluster.pods(name)) == 4)
    with sizes(cluster, name) as job:
        job.hold(3)
        job.await_steps(0, 1)
        job.let_come(3)
        job.await_steps(2)
        job.trains_with(0, 1, 2, 3)
        job.check(0, partial(steps_of_one_replica, tmp_path))
