"""Recovery in the step, from the manifest: ranks, pods and the coordinator die under sync Exact, and each
step of the others is the one that they would have made undisturbed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lab.local.cluster import Cluster, files
from lab.local.jobs import job
from lab.ranks.processes import RankGroup
from lab.ranks.recovery import fields
from lab.waiting import wait_until

pytestmark = pytest.mark.timeout(400)
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "lab" / "ranks" / "scripts" / "exact.py"
STRATEGY = {"sync": {"type": "Exact"}, "batch": {"microBatches": 8}}
IN_SCRIPT = {"sync": {"type": "Exact"}, "batch": {"micro_batches": 8}}
"""STRATEGY as a script names it."""
WORKERS, LAST_STEP = 3, 290
SHARDED = [str(SCRIPT), json.dumps(fields(8, {"shard": 2})), "statistics", str(LAST_STEP)]
"""A script whose replicas are two ranks each."""


def command(steps: int) -> list[str]:
    return [str(SCRIPT), json.dumps(IN_SCRIPT), "everything", str(steps)]


def exact(
    name: str,
    folder: Path,
    workers: int = WORKERS,
    script: Sequence[str] = command(LAST_STEP),
    **strategy: Any,
) -> dict[str, Any]:
    """A model with all that makes bits differ, on three workers, each step 0.4 s longer than it needs."""
    made = job(
        name,
        ["python", *script],
        workers=workers,
        torch=True,
        checkpoint={"volume": {"hostPath": {"path": str(folder)}}, "everySteps": 20},
        recovery={"hangSeconds": 6},
        strategy={**STRATEGY, **strategy},
    )
    env = {"STEP_SECONDS": "0.4", "PYTHONPATH": str(ROOT)}
    made["spec"]["env"] = [{"name": name, "value": value} for name, value in env.items()]
    return made


def steps_of_one_replica(folder: Path, steps: int) -> dict[int, tuple[str, str]]:
    """As undisturbed_steps(), of SHARDED."""
    ended = RankGroup(folder / "one", 2).run("exact.py", *SHARDED[1:3], str(steps))
    return {step: of_step for step, *of_step in steps_in(ended.output[0])}  # type: ignore[misc]


def undisturbed_steps(steps: int) -> dict[int, tuple[str, str]]:
    """Digest and loss by step of the same training in one process."""
    python = [sys.executable, *command(steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    found = subprocess.run(python, capture_output=True, text=True, check=True, env=environment).stdout
    return {step: of_step for step, *of_step in steps_in(found)}  # type: ignore[misc]


def steps_in(text: str) -> Iterator[tuple[int, str, str]]:
    """Number, digest and loss of each step that was printed."""
    for line in text.splitlines():
        if "STEP " in line:
            _, step, digest, loss = line[line.index("STEP ") :].split()
            yield int(step), digest, loss


def last_step(text: str) -> int:
    """Number of the last step that was printed; 0: none was."""
    return max((step for step, *_ in steps_in(text)), default=0)


def logs(cluster: Cluster, name: str) -> list[str]:
    return [cluster.logs(pod["metadata"]["name"]) for pod in cluster.pods(name)]


def all_steps(cluster: Cluster, name: str) -> list[tuple[int, str, str]]:
    return [step for log in logs(cluster, name) for step in steps_in(log)]


def wait_step(cluster: Cluster, name: str, beyond: int) -> None:
    """Wait until all pods have printed so many more steps than any has now."""
    newest = max(last_step(log) for log in logs(cluster, name)) + beyond

    def reached() -> bool:
        return all(last_step(log) >= newest for log in logs(cluster, name))

    wait_until(f"step {newest} in all pods", reached)


def has_recovered(cluster: Cluster, name: str, incidents: int) -> bool:
    seen = cluster.status(name).get("incidents", [])
    return len(seen) == incidents and bool(seen[-1]["recoveryMilliseconds"].get("firstStep"))


def degraded(cluster: Cluster, name: str) -> str:
    found = (each for each in cluster.status(name)["conditions"] if each["type"] == "Degraded")
    return next((each["message"] for each in found if each["status"] == "True"), "")


def pod_of(cluster: Cluster, name: str, slot: int, key: str = "name") -> str:
    """Name of the pod, or its UID."""
    pods = {pod["metadata"]["labels"]["ropeteam.dev/slot"]: pod for pod in cluster.pods(name)}
    return str(pods[str(slot)]["metadata"][key])


def evict(cluster: Cluster, name: str, slot: int, pid: int) -> None:
    """Until the rank of the pod has ended."""
    cluster.delete_pod(pod_of(cluster, name, slot), grace=30)
    wait_until("the end of its rank", lambda: not Path(f"/proc/{pid}").exists())


def check_steps(
    seen: list[tuple[int, str, str]],
    undisturbed: Callable[[int], dict[int, tuple[str, str]]] = undisturbed_steps,
) -> None:
    """All are those of a job that nothing has disturbed."""
    expected = undisturbed(max(step for step, *_ in seen))
    assert {step for step, *_ in seen} >= {*range(30)} - {0}
    assert [each for each in seen if [*each[1:]] != [*expected[each[0]]]] == []


def test_each_step_is_the_undisturbed_one_whoever_dies_or_hangs(cluster: Cluster, name: str, tmp_path: Path):
    """A rank is killed, one hangs, a pod vanishes with its agent, the coordinator with a rank, and a pod is
    evicted: one after the other. Only those who died are started again."""
    cluster.create(exact(name, tmp_path))
    wait_until("pods", lambda: len(cluster.pods(name)) == WORKERS)
    wait_step(cluster, name, 5)
    pids = {rank: cluster.wait_rank(name, rank) for rank in range(WORKERS)}
    left_at, seen_before = list[int](), list[tuple[int, str, str]]()

    def strike(rank: int) -> None:
        seen_before.extend(all_steps(cluster, name))  # logs of pods that are gone are gone, too
        match number:
            case 1:
                os.kill(pids[rank], signal.SIGKILL)
            case 2:
                os.kill(pids[rank], signal.SIGSTOP)
            case 3:
                cluster.delete_pod(pod_of(cluster, name, rank), grace=0)
            case 4:
                os.kill(cluster.coordinator_pid(name), signal.SIGKILL)
                os.kill(pids[rank], signal.SIGKILL)
            case 5:
                evict(cluster, name, rank, pids[rank])
                left_at.append(max(map(last_step, logs(cluster, name))))

    for number, victim in enumerate((1, 2, 0, 2, 1), start=1):
        strike(victim)
        cluster.wait_rank(name, victim, pids[victim])
        wait_until(f"the end of incident {number}", partial(has_recovered, cluster, name, number))
        wait_step(cluster, name, 3)
        now = {rank: cluster.wait_rank(name, rank) for rank in range(WORKERS)}
        assert {rank for rank in now if now[rank] != pids[rank]} == {victim}
        pids = now

    incidents = [(seen["slot"], seen.get("stepsLost")) for seen in cluster.status(name)["incidents"]]
    assert incidents == [(1, 0), (2, 0), (0, 0), (2, 0), (1, 0)]
    joined_at = min(step for step, *_ in steps_in(cluster.logs(pod_of(cluster, name, 1))))
    assert joined_at > left_at[0] + 1, "the others made steps without the evicted pod"
    check_steps([*seen_before, *all_steps(cluster, name)])
    cluster.delete(name)


def test_the_mates_of_a_killed_rank_are_replaced_with_it_and_the_other_replica_continues(
    cluster: Cluster, name: str, tmp_path: Path
):
    """The model is sharded over two pods, and two of these replicas train it."""
    cluster.create(exact(name, tmp_path, 4, SHARDED, parallelism={"shard": 2}))
    wait_until("pods", lambda: len(cluster.pods(name)) == 4)
    wait_step(cluster, name, 5)
    pids = {rank: cluster.wait_rank(name, rank) for rank in range(4)}
    os.kill(pids[1], signal.SIGKILL)
    cluster.wait_rank(name, 0, pids[0])
    wait_until("the end of the incident", partial(has_recovered, cluster, name, 1))
    wait_step(cluster, name, 3)
    assert [rank for rank in range(4) if cluster.wait_rank(name, rank) == pids[rank]] == [2, 3]
    (incident,) = cluster.status(name)["incidents"]
    assert (incident["rank"], incident["cause"], incident["stepsLost"]) == (1, "Signal", 0)
    wait_until("step 30", lambda: max(map(last_step, logs(cluster, name))) >= 30)
    check_steps(all_steps(cluster, name), partial(steps_of_one_replica, tmp_path))
    cluster.delete(name)


def test_pods_that_are_evicted_in_turn_save_before_the_last_one_ends(
    cluster: Cluster, name: str, tmp_path: Path
):
    """The pod of rank 0 follows as the rank before it ends: it has no replacement yet. A step that is lost is
    printed twice by the rank whose pod stays."""
    cluster.create(exact(name, tmp_path))
    wait_until("pods", lambda: len(cluster.pods(name)) == WORKERS)
    wait_step(cluster, name, 5)
    pids = {rank: cluster.wait_rank(name, rank) for rank in range(WORKERS)}
    for slot in (1, 0):
        evict(cluster, name, slot, pids[slot])
    for rank in range(WORKERS):
        cluster.wait_rank(name, rank, pids[rank])
    wait_step(cluster, name, 20)
    seen = [*steps_in(cluster.logs(pod_of(cluster, name, 2)))]
    assert [step for step, *_ in seen] == [*range(1, len(seen) + 1)]
    assert {each.get("stepsLost") for each in cluster.status(name)["incidents"]} == {0}
    check_steps(seen)
    cluster.delete(name)


def test_all_resume_from_what_another_agent_has_committed_while_the_pod_of_rank_0_was_missing(
    cluster: Cluster, name: str, tmp_path: Path
):
    """The operator is stopped, so that nobody replaces that pod."""
    made = exact(name, tmp_path)
    made["spec"]["checkpoint"]["everySteps"] = 4
    made["spec"]["recovery"]["lostSeconds"] = 3
    cluster.create(made)
    wait_until("pods", lambda: len(cluster.pods(name)) == WORKERS)
    wait_step(cluster, name, 5)
    pids = {rank: cluster.wait_rank(name, rank) for rank in range(WORKERS)}
    operator = cluster.operator_pid()
    os.kill(operator, signal.SIGSTOP)
    try:
        os.kill(cluster.agent_pid(pod_of(cluster, name, 0, "uid")), signal.SIGKILL)
        left_at = last_step(cluster.logs(pod_of(cluster, name, 1)))
        wait_until("a commit of its deputy", lambda: max(committed(tmp_path, "1.0.2")) > left_at + 8)
        for rank in (1, 2):
            os.kill(pids[rank], signal.SIGKILL)
        wait_until("their end", lambda: not any(Path(f"/proc/{pids[rank]}").exists() for rank in (1, 2)))
        printed = len([*steps_in(cluster.logs(pod_of(cluster, name, 1)))])
    finally:
        os.kill(operator, signal.SIGCONT)
    for rank in range(WORKERS):
        cluster.wait_rank(name, rank, pids[rank])
    wait_until("step 30", lambda: min(map(last_step, logs(cluster, name))) >= 30)
    seen = [*steps_in(cluster.logs(pod_of(cluster, name, 1)))]
    assert seen[printed][0] - 1 == max(committed(tmp_path, "1.0.2"))
    check_steps(seen)
    cluster.delete(name)


def committed(folder: Path, world: str) -> set[int]:
    """Steps that were committed under this name, and 0."""
    entry = re.compile(rf"step-(\d+)\.{re.escape(world)}\.(commit|pruned)")
    found = (entry.fullmatch(path.name) for path in files(folder))
    return {0, *(int(each[1]) for each in found if each)}
