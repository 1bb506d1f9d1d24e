"""A local cluster of two releases: an image is the folder that has its code, and operators follow each other.

python -m lab.local.releases HOME    the cluster alone
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from lab.local.cluster import Cluster
from lab.processes import die_with_parent
from lab.waiting import wait_until
from ropeteam.local.__main__ import main
from ropeteam.local.node import podspec

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingjobs.ropeteam.dev"


class Releases(Cluster):
    """No operator yet."""

    def __init__(self, home: Path) -> None:
        self.home, self.log, self.kubeconfig = home, home / "up.log", home / "kubeconfig"
        self.operator: subprocess.Popen[bytes] | None = None
        home.mkdir()
        self.process = self._start("lab.local.releases", str(home), path=":".join(sys.path))
        wait_until("API server", self._ready)

    def install(self, tree: Path) -> None:
        """The release of this tree instead of another: its definition, then its operator."""
        self.define(tree)
        self.operate(tree)

    def define(self, tree: Path) -> None:
        """The definition alone."""
        new = yaml.safe_load((tree / "crds" / "ropeteam.dev_trainingjobs.yaml").read_text())
        self.call("PUT", CRD, self.call("GET", CRD) | {"spec": new["spec"]})

    def operate(self, tree: Path) -> None:
        """The operator alone."""
        self._end_operator()
        where = ("--kubeconfig", str(self.kubeconfig), "--home", str(self.home), "--image", image(tree))
        self.operator = self._start("ropeteam.controller", *where, path=f"{tree / 'operator'}:{image(tree)}")

    def stop(self) -> None:
        self._end_operator()
        super().stop()

    def _end_operator(self) -> None:
        if self.operator:
            self.operator.terminate()
            self.operator.wait(30)

    def _start(self, *argv: str, path: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *argv],
                env=os.environ | {"PYTHONPATH": path},
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )


def image(tree: Path) -> str:
    return str(tree / "trainer-image")


_process_spec = podspec.process_spec


def process_spec(pod: Any, container: Any, *rest: Any) -> podspec.ProcessSpec:
    made = _process_spec(pod, container, *rest)
    made.environment["PYTHONPATH"] = container["image"]
    return made


if __name__ == "__main__":
    vars(podspec)["process_spec"] = process_spec
    asyncio.run(main(Path(sys.argv[1])))
