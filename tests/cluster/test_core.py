"""The core of it on a real cluster: install, train, lose a rank, a pod, a node, an operator, upgrade."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lab.kube.site import RELEASE, SYSTEM, Site
from lab.waiting import wait_until

UNCHANGED = ["torchrun", "--nproc-per-node", "1", "/shared/scripts/train_ddp.py"]


def tiny(site: Site, name: str, steps: int = 400, pause: float = 0.05, **spec: Any) -> dict[str, Any]:
    """A job at feature level 3 that saves every 10 steps."""
    command = ["python", "/shared/scripts/tiny.py", str(steps), str(pause)]
    return site.job(name, command, checkpoint=site.checkpoints(name), **spec)


def served_job(site: Site, name: str) -> dict[str, Any]:
    """Two workers and a parameter server, slot 2, that never end."""
    command = ["python", "-m", "ropeteam_trainer.recipes.char_gpt", "--epochs", "1000000"]
    strategy = {"sync": {"type": "ParameterServer", "parameterServer": {"mode": "Asynchronous"}}}
    return site.job(name, command, checkpoint=site.checkpoints(name), strategy=strategy)


def step(site: Site, name: str) -> int:
    """The newest checkpoint, which status always has."""
    return int((site.status(name).get("checkpoint") or {}).get("step") or 0)


def wait_for_new_checkpoint(site: Site, name: str) -> None:
    known = step(site, name)
    wait_until("a new checkpoint", lambda: step(site, name) > known, 60)


def has_more_incidents(site: Site, name: str, than: int) -> bool:
    return len(site.status(name).get("incidents") or []) > than


def last_cause(site: Site, name: str) -> str:
    return str((site.status(name).get("incidents") or [{}])[-1].get("cause", ""))


def test_two_operators_are_ready_and_one_leads(site: Site) -> None:
    pods = {pod["metadata"]["name"] for pod in site.operators()}
    assert len(pods) == 2
    assert wait_until("a leader", site.leader) in pods
    assert site.get("crd", "trainingjobs.ropeteam.dev") is not None


def test_a_job_trains_to_its_end(site: Site, name: str) -> None:
    site.apply(tiny(site, name, steps=30, pause=0.0))
    site.wait(name, "Complete")
    assert site.status(name)["state"] == "Complete"
    assert site.status(name)["failures"].get("charged", 0) == 0


def test_a_folder_goes_with_its_job_and_away_with_it(site: Site, name: str, tmp_path: Path) -> None:
    (tmp_path / "src" / "pkg").mkdir(parents=True)
    (tmp_path / "src" / "pkg" / "__init__.py").write_text("NAME = 'submitted'\n")
    (tmp_path / "src" / "train.py").write_text("import pkg; print(pkg.NAME)\n")
    job = site.job(name, ["python", "train.py"], ttlSecondsAfterFinished=5)
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    where = ["--kubeconfig", str(site.lab.control.kubeconfig)]
    files = [str(tmp_path / "src"), str(tmp_path / "job.yaml")]
    subprocess.run([sys.executable, "-m", "ropeteam.cli", "submit", *files, *where], check=True)
    label = f"ropeteam.dev/code-of={name}"
    assert len(site.items("configmaps", labels=label)) == 1
    site.wait(name, "Complete")
    wait_until("it is gone", lambda: site.get("trainingjob", name) is None, 60)
    wait_until("its code too", lambda: not site.items("configmaps", labels=label), 60)


def test_a_finished_job_is_deleted_after_its_time(site: Site, name: str) -> None:
    site.apply(tiny(site, name, steps=30, pause=0.0, ttlSecondsAfterFinished=5))
    site.wait(name, "Complete")
    wait_until("it is gone", lambda: site.get("trainingjob", name) is None, 60)
    wait_until("its pods too", lambda: not site.items("pods", labels=f"ropeteam.dev/job={name}"), 60)


def test_an_unchanged_script_goes_on_in_its_pods_when_a_rank_is_killed(site: Site, name: str) -> None:
    site.apply(site.job(name, [*UNCHANGED, f"/shared/{name}"]))
    uids: dict[str, str] = {}
    for incidents, victim in enumerate((1, 0)):
        site.wait(name, "Running")
        wait_until("a save", partial(site.has_just_saved, name), 60)
        uids = uids or site.uids(name)
        site.kill_rank(name, victim)
        wait_until("an incident", partial(has_more_incidents, site, name, incidents), 60)
        assert last_cause(site, name) == "Signal"
    site.wait(name, "Running")
    assert site.uids(name) == uids
    statuses = [each for pod in site.pods(name) for each in pod["status"]["containerStatuses"]]
    assert [each["restartCount"] for each in statuses] == [0, 0]


@pytest.mark.parametrize("how", [(), ("--grace-period=0", "--force")], ids=["with grace", "by force"])
def test_a_deleted_pod_is_replaced(site: Site, name: str, how: tuple[str, ...]) -> None:
    site.apply(tiny(site, name, steps=100_000))
    site.wait(name, "Running")
    wait_for_new_checkpoint(site, name)
    site.lab.kubectl("delete", "pod", f"{name}-1-1", "--wait=false", *how)
    wait_until("its replacement", lambda: f"{name}-1-2" in site.uids(name), 60)
    wait_until("the incident", lambda: last_cause(site, name) == "PodDeleted", 60)
    site.wait(name, "Running")
    wait_for_new_checkpoint(site, name)
    assert site.status(name)["failures"].get("charged", 0) == 0


@pytest.mark.nodes
def test_a_node_that_loses_power_is_not_waited_for(site: Site, name: str) -> None:
    site.apply(tiny(site, name, steps=100_000))
    site.wait(name, "Running")
    wait_for_new_checkpoint(site, name)
    coordinator = site.pods(name, "coordinator")[0]["spec"]["nodeName"]
    slot = next(slot for slot in (0, 1) if f"node-{site.node_of(name, slot)}" != coordinator)
    node = site.lab.node(site.node_of(name, slot))
    node.power_off()
    try:
        assert not node.is_on
        wait_until("a replacement elsewhere", lambda: f"{name}-{slot}-2" in site.uids(name), 60)
        wait_until("another node", lambda: site.is_elsewhere(name, slot, node.number), 60)
        site.wait(name, "Running")
        wait_for_new_checkpoint(site, name)
    finally:
        node.power_on(len(site.lab.nodes))
        wait_until(f"{node.name} is Ready", lambda: site.lab.is_ready(node), 60)


def test_with_parameter_servers_each_comes_back_alone(site: Site, name: str) -> None:
    site.apply(served_job(site, name))
    site.wait(name, "Running")
    ranks = {rank: site.rank(name, rank) for rank in range(3)}
    for incidents, victim in enumerate((1, 2)):
        wait_for_new_checkpoint(site, name)
        os.kill(ranks[victim], signal.SIGKILL)
        wait_until("an incident", partial(has_more_incidents, site, name, incidents), 60)
        wait_for_new_checkpoint(site, name)
        now = {rank: site.rank(name, rank) for rank in ranks}
        assert {rank for rank in ranks if now[rank] != ranks[rank]} == {victim}
        ranks = now
    causes = [(each["cause"], each["stepsLost"]) for each in site.status(name)["incidents"]]
    assert causes == [("Signal", 0)] * 2
    workers = site.uids(name)
    site.lab.kubectl("delete", "pod", f"{name}-2-1", "--wait=false")
    again = f"{name}-2-2"
    wait_until(
        "its replacement", lambda: again in [p["metadata"]["name"] for p in site.pods(name, "server")], 60
    )
    wait_until("the incident", lambda: last_cause(site, name) == "PodDeleted", 60)
    wait_for_new_checkpoint(site, name)
    assert site.uids(name) == workers


def test_training_goes_on_without_the_operator_that_led(site: Site, name: str) -> None:
    site.apply(tiny(site, name, steps=100_000))
    site.wait(name, "Running")
    leader, uids = wait_until("a leader", site.leader), site.uids(name)
    site.lab.kubectl("-n", SYSTEM, "delete", "pod", leader, "--grace-period=0", "--force")
    wait_until("another leader", lambda: site.leader() not in ("", leader), 60)
    wait_for_new_checkpoint(site, name)
    assert site.uids(name) == uids
    site.lab.kubectl("-n", SYSTEM, "rollout", "status", f"deployment/{RELEASE}", "--timeout=60s")


def test_nobody_gets_pods_through_a_job_that_they_could_not_make(site: Site, name: str) -> None:
    rules = [{"apiGroups": ["ropeteam.dev"], "resources": ["trainingjobs"], "verbs": ["create", "get"]}]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}
    site.apply({**role, "metadata": {"name": "jobs-only", "namespace": "default"}, "rules": rules})
    for user, more in (
        ("jobs-only", ()),
        ("both", ({"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]},)),
    ):
        site.apply({**role, "metadata": {"name": user, "namespace": "default"}, "rules": [*rules, *more]})
        site.lab.kubectl("create", "rolebinding", user, f"--role={user}", f"--user={user}", check=False)
    job = json.dumps(tiny(site, name))

    def refused() -> bool:
        command = ("create", "--dry-run=server", "-f", "-", "--as")
        output = site.lab.kubectl_output(*command, "jobs-only", text=job)
        return "you may not create pods in namespace default" in output

    wait_until("the policy is active", refused, 30)
    assert "created" in site.lab.kubectl_output(
        "create", "--dry-run=server", "-f", "-", "--as", "both", text=job
    )


def test_an_upgrade_a_rollback_and_an_uninstall_leave_running_jobs_alone(site: Site, name: str) -> None:
    site.apply(tiny(site, name, steps=100_000))
    site.wait(name, "Running")
    uids, coordinator = site.uids(name), site.pods(name, "coordinator")[0]["metadata"]["uid"]
    site.install("logLevel=DEBUG", verb="upgrade")
    site.helm("rollback", RELEASE, "--namespace", SYSTEM, "--wait")
    wait_for_new_checkpoint(site, name)
    site.helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait")
    assert site.uids(name) == uids
    assert site.pods(name, "coordinator")[0]["metadata"]["uid"] == coordinator
    site.kill_rank(name, 0)  # no operator: ranks are restarted all the same
    site.install()
    wait_until("the incident", lambda: last_cause(site, name) == "Signal", 60)
    wait_for_new_checkpoint(site, name)
    assert site.uids(name) == uids
