"""A rank dies in every way a process can: the gang restarts in place, or the job's status names the rank and
the cause."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from lab.local.cluster import Cluster
from lab.local.jobs import SCRIPTS, job, ticking
from lab.local.steps import lines, order, wait_steps, worlds
from lab.waiting import wait_until


def incident(cluster: Cluster, name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = wait_until(
        f"incident of {name}", lambda: cluster.status(name).get("incidents")
    )
    return found[-1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=["SIGKILL", "SIGSEGV"])
def test_a_killed_rank_restarts_the_gang_in_place(cluster: Cluster, name: str, tmp_path: Path, number: int):
    cluster.create(ticking(name, tmp_path))
    wait_steps(tmp_path)
    pods, victim = cluster.pod_uids(name), cluster.wait_rank(name, 1)
    os.kill(victim, number)
    wait_steps(tmp_path, world_number=2)
    assert cluster.pod_uids(name) == pods, "no pod was replaced"
    assert all(s["restartCount"] == 0 for p in cluster.pods(name) for s in p["status"]["containerStatuses"])
    seen = incident(cluster, name)
    assert (seen["cause"], seen["rank"], seen["slot"]) == ("Signal", 1, 1)
    assert signal.Signals(number).name in seen["message"]


def test_an_exception_shows_its_last_lines_in_status(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(ticking(name, tmp_path))
    wait_steps(tmp_path)
    order(tmp_path, 0, "raise the learning rate is a lie")
    wait_steps(tmp_path, world_number=2)
    seen = incident(cluster, name)
    assert (seen["cause"], seen["rank"]) == ("Error", 0)
    assert "ValueError: the learning rate is a lie" in seen["message"]
    assert "ticker.py" in seen["message"]


def test_the_same_error_three_times_without_progress_fails_the_job(
    cluster: Cluster, name: str, tmp_path: Path
):
    script = tmp_path / "bad.py"
    script.write_text("raise RuntimeError('shape mismatch')\n")
    cluster.create(job(name, ["python", str(script)]))
    failed = cluster.wait_condition(name, "Failed")
    assert failed["reason"] == "RepeatedError"
    assert "shape mismatch" in failed["message"]
    assert cluster.condition(name, "Finished")["status"] == "True"
    assert len(cluster.status(name)["incidents"]) == 3


def test_exit_codes_are_treated_as_the_rules_require(cluster: Cluster, name: str, tmp_path: Path):
    rules = [{"codes": [42], "action": "Fail"}, {"codes": [75], "action": "RetryFree"}]
    cluster.create(ticking(name, tmp_path, recovery={"exitCodes": rules}))
    wait_steps(tmp_path)
    order(tmp_path, 1, "exit 75")
    wait_steps(tmp_path, world_number=2)
    assert incident(cluster, name)["cause"] == "RetriedFree"
    order(tmp_path, 1, "exit 42")
    failed = cluster.wait_condition(name, "Failed")
    assert failed["reason"] == "ExitCodeRule"
    assert "42" in failed["message"]
    assert len(worlds(tmp_path)) == 2


def test_a_rank_that_ignores_sigterm_does_not_hold_the_gang(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(ticking(name, tmp_path))
    wait_steps(tmp_path)
    order(tmp_path, 0, "ignore-term")
    wait_until("order taken", lambda: not (tmp_path / "do-0").exists())
    os.kill(cluster.wait_rank(name, 1), signal.SIGKILL)
    wait_steps(tmp_path, world_number=2)


def test_descendants_die_with_their_rank(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(ticking(name, tmp_path))
    wait_steps(tmp_path)
    order(tmp_path, 1, "orphan")
    job_uid = cluster.uid(name)

    def sleepers() -> list[str]:
        return [line for line in cluster.leftovers(job_uid) if line.startswith("sleep 1000")]

    wait_until("the orphan", sleepers)
    os.kill(cluster.wait_rank(name, 1), signal.SIGKILL)
    wait_steps(tmp_path, world_number=2)
    assert sleepers() == []


def test_a_clean_exit_of_one_rank_does_not_hide_the_death_of_another(
    cluster: Cluster, name: str, tmp_path: Path
):
    cluster.create(ticking(name, tmp_path, "400"))
    wait_steps(tmp_path)
    order(tmp_path, 0, "exit 0")
    wait_until("rank 0 gone", lambda: cluster.rank_pid(name, 0) is None)
    os.kill(cluster.wait_rank(name, 1), signal.SIGKILL)
    wait_steps(tmp_path, world_number=2)
    cluster.wait_condition(name, "Complete")
    assert lines(tmp_path, 0)[-1]["step"] == lines(tmp_path, 1)[-1]["step"] == 400


def test_jobs_that_get_new_pods_at_the_same_time_wait_for_no_person(
    cluster: Cluster, name: str, tmp_path: Path
):
    """Each fault is another one, so after two of them the pods are replaced: all ends come in one rush."""
    script = tmp_path / "bad.py"
    faults = "".join(f"if at == {line}: raise RuntimeError('fault')\n" for line in range(200))
    script.write_text(f"import random\nat = random.randrange(200)\n{faults}")
    names = [f"{name}-{number}" for number in range(8)]
    for each in names:
        cluster.create(job(each, ["python", str(script)], recovery={"maxFailures": 4}))
    reasons = {cluster.wait_condition(each, "Failed", patience=600)["reason"] for each in names}
    assert reasons <= {"FailureBudgetSpent", "RepeatedError"}
    assert max(cluster.status(each)["attempt"] for each in names) > 1, "new pods"


def test_a_finished_rank_that_aborts_counts_as_done(cluster: Cluster, name: str, tmp_path: Path):
    cluster.create(job(name, ["python", str(SCRIPTS / "abort_at_end.py"), str(tmp_path)]))
    cluster.wait_condition(name, "Complete")
    assert (tmp_path / "aborting").exists(), "the fault fired"
    assert cluster.status(name).get("incidents", []) == []
