"""`ropeteam doctor` on a real cluster: an administrator reads that all is well, a guest what is unknown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml
from lab.kube.site import RELEASE, SYSTEM, Site
from lab.waiting import wait_until

GUEST = "doctor-guest"


def examined(kubeconfig: Path, home: Path, *argv: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    command = [sys.executable, "-m", "ropeteam.cli", "doctor", "--kubeconfig", str(kubeconfig)]
    done = subprocess.run(
        [*command, "--home", str(home), *argv], env=environment, text=True, capture_output=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def of_guest(site: Site, file: Path) -> Path:
    """A kubeconfig of somebody with the role `view` in namespace default."""
    site.lab.kubectl("create", "serviceaccount", GUEST, check=False)
    argv = ("--clusterrole=view", f"--serviceaccount=default:{GUEST}")
    site.lab.kubectl("create", "rolebinding", GUEST, *argv, check=False)
    config = yaml.safe_load(site.lab.control.kubeconfig.read_text())
    token = site.lab.kubectl("create", "token", GUEST)
    name = config["contexts"][0]["context"]["user"]
    file.write_text(yaml.safe_dump({**config, "users": [{"name": name, "user": {"token": token}}]}))
    return file


def test_a_healthy_installation_is_reported_healthy(site: Site, tmp_path: Path) -> None:
    wanted = {
        "ok   definition: TrainingJob v1alpha1, the same as in this client",
        f"ok   leader {SYSTEM}/{RELEASE}: ",
        f"ok   operator {SYSTEM}/{RELEASE}: 2 of 2 ready, image ",
    }

    def well() -> bool:
        lines = examined(site.lab.control.kubeconfig, tmp_path)
        return all(any(line.startswith(begin) for line in lines) for begin in wanted)

    wait_until("all is well", well)


def test_a_guest_gets_a_list_of_what_is_unknown(site: Site, tmp_path: Path) -> None:
    guest = of_guest(site, tmp_path / "guest")
    wanted = {
        "warn operator: not known: you may not read deployments in all namespaces",
        "warn nodes: not known: you may not read nodes",
    }

    def is_reported() -> bool:
        lines = examined(guest, tmp_path)
        return wanted <= set(lines) and not any(line.startswith("FAIL") for line in lines)

    wait_until("what is not known, once the API server knows the role", is_reported)
