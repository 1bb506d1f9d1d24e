"""The image to try all in (stage `local` of the Dockerfile), in a container without rights and network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from lab.kube import engine, images
from lab.kube.engine import Engine
from lab.kube.images import LOCAL
from lab.waiting import wait_until

ALONE = ("--network", "none", "--cap-drop", "all", "--security-opt", "no-new-privileges")
UP = "ropeteam-test-up"

pytestmark = [
    pytest.mark.nodes,
    pytest.mark.timeout(3600),  # the first use builds the image, with torch
    pytest.mark.skipif(bool(os.geteuid() or not shutil.which("buildah")), reason="needs buildah, as root"),
    pytest.mark.skipif(not engine.find(), reason=engine.NO_ENGINE),
]


@pytest.fixture(scope="module")
def docker() -> Engine:
    """Or podman. With the image."""
    image, found = images.local(), Engine(engine.find())
    if fault := found.fault():
        pytest.skip(f"{found.name} starts no container here: {fault}")
    image.build(image)
    found.take(LOCAL)
    return found


def test_the_demo_survives_its_faults_in_it(docker: Engine) -> None:
    output = docker.must("run", "--rm", *ALONE, LOCAL, "python", "examples/demo.py")
    assert "char-gpt" in output


@pytest.mark.parametrize(
    "job", ["examples/digits.yaml", "-n 2 -- torchrun examples/plain_ddp/train.py /tmp/model.pt"]
)
def test_a_job_runs_in_it(docker: Engine, job: str) -> None:
    docker.must("run", "--rm", *ALONE, LOCAL, "ropeteam", "run", *job.split())


def test_nobody_in_it_is_root_or_may_change_our_code(docker: Engine) -> None:
    look = 'test "$(id -u)" = 65532 && ! touch /opt/ropeteam/code/operator/ropeteam/here 2>/dev/null'
    docker.must("run", "--rm", *ALONE, LOCAL, "sh", "-c", look)


@pytest.fixture
def up(docker: Engine) -> Iterator[Engine]:
    """With a container in which `ropeteam up` runs."""
    docker.must("run", "--detach", "--init", "--name", UP, *ALONE, LOCAL, "ropeteam", "up")
    yield docker
    docker.must("rm", "--force", UP)


def test_its_kubectl_drives_a_cluster_in_it_which_ends_in_order(up: Engine) -> None:
    def answers() -> bool:
        look = "kubectl get trainingjobs >/dev/null 2>&1 && echo yes || true"
        return "yes" in up.must("exec", UP, "sh", "-c", look)

    wait_until("a cluster", answers, 180)
    up.must("exec", UP, "kubectl", "apply", "-f", "examples/digits.yaml")
    up.must("exec", UP, "kubectl", "wait", "--for=condition=Complete", "--timeout=900s", "tj/digits")
    up.must("stop", "--time", "120", UP)
    assert up.must("inspect", "--format", "{{.State.ExitCode}}", UP).strip() == "0"
