"""The operator is away for a while: training continues, and the checkpoints that `status` names are there
when it comes back."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

from lab.local.cluster import Cluster, files
from lab.local.jobs import SCRIPTS, job
from lab.waiting import wait_until

EVERY, KEEP = 10, 3


def test_all_pods_are_lost_while_the_operator_is_away(cluster: Cluster, name: str, tmp_path: Path):
    command = [sys.executable, str(SCRIPTS / "tiny.py"), "100000", "0.05"]
    checkpoint = {"volume": {"hostPath": {"path": str(tmp_path)}}, "everySteps": EVERY, "keep": KEEP}
    cluster.create(job(name, command, workers=1, torch=True, checkpoint=checkpoint))
    wait_until("a checkpoint in status", lambda: cluster.status(name).get("checkpoint"))
    operator = cluster.operator_pid()
    os.kill(operator, signal.SIGSTOP)
    try:
        named = {ref["step"] for ref in cluster.status(name)["checkpoint"]["lineage"]}
        enough = max(named) + 2 * KEEP * EVERY
        wait_until("twice as many commits as are kept", lambda: max(committed(tmp_path)) >= enough)
        for pod in cluster.pods(name, role=None):
            cluster.delete_pod(pod["metadata"]["name"], grace=0)
        wait_until("nothing is left", lambda: not cluster.leftovers(cluster.uid(name)))
        before = committed(tmp_path)
        assert named <= before, "what status names was pruned"
    finally:
        os.kill(operator, signal.SIGCONT)
    wait_until("a commit of the next term", lambda: committed(tmp_path, term=2))
    assert min(committed(tmp_path, term=2)) == max(before) + EVERY, "nothing that was on disk was done again"
    assert cluster.condition(name, "Failed").get("status") != "True"


def committed(volume: Path, term: int = 1) -> set[int]:
    """Steps that this term has committed: a manifest without its entry in the journal does not count."""
    found = (re.fullmatch(r"step-(\d+)\.(\d+)\..*\.commit", path.name) for path in files(volume))
    return {int(each[1]) for each in found if each and int(each[2]) == term}


def test_a_job_that_fences_itself_ends_its_ranks_and_goes_on_in_its_pods(
    cluster: Cluster, name: str, tmp_path: Path
):
    recovery = {"selfFence": True, "fenceSeconds": 10, "lostSeconds": 3, "startSeconds": 20}
    command = [sys.executable, str(SCRIPTS / "ticker.py"), str(tmp_path), "100000", "0.1"]
    cluster.create(job(name, command, recovery=recovery))
    cluster.wait_condition(name, "Running")
    first, pods = cluster.wait_rank(name, 0), cluster.pod_uids(name)
    operator = cluster.operator_pid()
    os.kill(operator, signal.SIGSTOP)
    try:
        wait_until("the rank's end", lambda: cluster.rank_pid(name, 0) is None)
    finally:
        os.kill(operator, signal.SIGCONT)
    cluster.wait_rank(name, 0, not_pid=first)
    wait_until("its incident", lambda: cluster.status(name).get("incidents"))
    (incident,) = cluster.status(name)["incidents"]
    assert (incident["cause"], incident["charged"]) == ("AgentLost", False)
    assert cluster.pod_uids(name) == pods
