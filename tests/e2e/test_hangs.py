"""A rank that hangs: status has who it is and where it stands, the logs have the stacks of all ranks."""

from __future__ import annotations

import re
from typing import Any

import pytest
from lab.local.cluster import Cluster
from lab.local.jobs import SCRIPTS, job

HUNG = (
    "made no progress and was killed: "
    "no step for N s after step 3, in phase train (limit 10 s, spec.recovery.hangSeconds)"
)
SCRIPT = SCRIPTS / "hangs.py"


def line(text: str) -> int:
    (found,) = [number for number, each in enumerate(SCRIPT.read_text().splitlines(), 1) if text in each]
    return found


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("start", "how", "text"), [("Exec", "sleeps", "time.sleep(1000)"), ("Fork", "in-c", "# twice")]
)
def test_who_hangs_and_where(cluster: Cluster, name: str, start: str, how: str, text: str):
    recovery = {"hangSeconds": 10, "maxFailures": 0, "start": start}
    command = ["torchrun", str(SCRIPT), how]
    cluster.create(job(name, command, torch=True, recovery=recovery))
    failed = cluster.wait_condition(name, "Failed")
    (seen,) = cluster.status(name)["incidents"]
    assert (seen["cause"], seen["rank"], seen["slot"]) == ("Hang", 1, 1), str(seen)
    message = re.sub(r"for \d+ s", "for N s", seen["message"].splitlines()[0])
    hangs, waits = f"hangs.py:{line(text)} (load)", f"hangs.py:{line('dist.all_reduce')} (main)"
    assert message in (
        f"rank 1 {HUNG}, in {hangs}; it blocked the others",
        f"rank 1 blocked the others (after step 3, in {hangs}): rank 0 {HUNG}, in {waits}",
    )
    assert hangs in failed["message"]
    zero, one = (cluster.logs(pod["metadata"]["name"]) for pod in sorted_pods(cluster, name))
    assert re.search(r'\[rank 0\]   File ".*distributed_c10d.py", line \d+ in all_reduce', zero), zero
    assert f'[rank 1]   File "{SCRIPT}", line {line(text)} in load' in one, one


def sorted_pods(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    return sorted(cluster.pods(name), key=lambda pod: pod["metadata"]["name"])
