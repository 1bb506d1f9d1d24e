"""docs/install.md, every command of it as it stands, on a cluster that does not have us yet."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

import pytest
from lab.kube.site import RELEASE, ROOT, SYSTEM, Site
from tests.cluster.test_core import tiny

pytestmark = pytest.mark.nodes


@pytest.fixture
def bare(site: Site) -> Iterator[Site]:
    site.helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait")
    yield site
    site.lab.kubectl("delete", "namespace", "team-a", "--ignore-not-found", "--timeout=120s")
    if site.get("deployment", RELEASE, SYSTEM) is None:
        site.install()


def run(site: Site, block: str) -> None:
    path = f"{site.lab.tools}:{os.environ['PATH']}"
    environment = os.environ | {"KUBECONFIG": str(site.lab.control.kubeconfig), "PATH": path}
    command = ["bash", "-euxo", "pipefail", "-c", block]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, done.stdout


def test_the_guide_works_as_written(bare: Site, name: str) -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    install, upgrade, change, team, uninstall = re.findall(
        r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL
    )
    run(bare, install)
    bare.apply(tiny(bare, name, steps=20, pause=0.0))
    bare.wait(name, "Complete")
    run(bare, upgrade)
    run(bare, change)
    run(bare, uninstall)
    assert bare.get("deployment", RELEASE, SYSTEM) is None
    assert bare.get("trainingjob", name) is not None, "what was the user's stays"

    run(bare, team)
    job = tiny(bare, f"{name}-a", steps=20, pause=0.0)
    job["metadata"]["namespace"] = "team-a"
    bare.apply(job)
    run(bare, f"kubectl -n team-a wait --for=condition=Complete tj/{name}-a --timeout=120s")
    run(bare, "helm uninstall team-a --namespace team-a --wait")
