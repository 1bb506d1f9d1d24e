"""Our image comes to nodes as docs/install.md says: from a registry, and out of an archive.

The registry is the CNCF's own (distribution), on the lab's bridge; kubelet and containerd pull from it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from lab.kube import engine, images, network, programs
from lab.kube.engine import Engine
from lab.kube.site import Object, Site
from lab.waiting import wait_until
from tests.cluster.test_core import tiny

IMPORTED = "registry.example/ropeteam/imported:1"

pytestmark = [
    pytest.mark.nodes,
    pytest.mark.timeout(1800),  # the first use builds the registry
    pytest.mark.skipif(bool(os.geteuid() or not shutil.which("buildah")), reason="needs buildah, as root"),
]


@pytest.fixture(scope="module")
def program() -> Path:
    try:
        return programs.ensure(["registry"]) / "registry"
    except programs.CannotBuild as problem:
        pytest.skip(str(problem))


@pytest.fixture
def registry(site: Site, program: Path, tmp_path: Path) -> Iterator[str]:
    """The registry's address, which all nodes take as one without TLS."""
    settings = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "storage")}},
        "http": {"addr": f"{network.CONTROL_PLANE}:0"},
    }
    (tmp_path / "registry.yaml").write_text(yaml.safe_dump(settings))
    log = tmp_path / "registry.log"
    with open(log, "w") as output:
        process = subprocess.Popen(
            [program, "serve", tmp_path / "registry.yaml"], stdout=output, stderr=output
        )
    try:
        listening = wait_until(
            "it listens", lambda: re.search(r"listening on ([\d.]+:\d+)", log.read_text()), 60
        )
        for node in site.lab.nodes:
            folder = node.registries / listening[1]
            folder.mkdir(parents=True)
            (folder / "hosts.toml").write_text(f'server = "http://{listening[1]}"\n')
        yield listening[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


@pytest.fixture
def operators_from_it(site: Site, registry: str) -> Iterator[str]:
    image = images.operator()
    if not images.has(image.name):
        image.build(image)
    target = image.name.replace("ghcr.io", registry)
    images.buildah("push", "--quiet", "--tls-verify=false", image.name, f"docker://{target}")
    site.install(f"image.registry={registry}", "image.pullPolicy=Always", verb="upgrade")
    yield target
    site.install(verb="upgrade")


def repositories(pods: list[Object]) -> set[str]:
    """Where the kubelets say that they have the images from, without the digests."""
    return {each["imageID"].partition("@")[0] for pod in pods for each in pod["status"]["containerStatuses"]}


def test_operators_and_coordinators_are_pulled_from_a_registry_of_ones_own(
    site: Site, name: str, operators_from_it: str
) -> None:
    repository = operators_from_it.rpartition(":")[0]
    wait_until("operators of it alone", lambda: repositories(site.operators()) == {repository}, 120)
    site.apply(tiny(site, name, steps=100_000))
    site.wait(name, "Running")
    assert repositories(site.pods(name, "coordinator")) == {repository}
    site.delete(name)


@pytest.mark.skipif(not engine.find(), reason=engine.NO_ENGINE)
def test_what_an_engine_saves_a_node_imports(site: Site, name: str, tmp_path: Path) -> None:
    docker, image = Engine(engine.find()), images.operator()
    if not images.has(image.name):
        image.build(image)
    docker.take(image.name)
    docker.must("tag", image.name, IMPORTED)
    docker.must("save", "--output", str(tmp_path / "image.tar"), IMPORTED)
    node = site.lab.node(1)
    node.ctr("images", "import", str(tmp_path / "image.tar"))
    container = {
        "name": "ropeteam",
        "image": IMPORTED,
        "imagePullPolicy": "Never",
        "command": ["python", "-m", "ropeteam.cli", "--version"],
    }
    spec = {"containers": [container], "restartPolicy": "Never", "nodeName": node.name}
    site.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    phase = ("get", "pod", name, "-o", "jsonpath={.status.phase}")
    wait_until("its end", lambda: site.lab.kubectl(*phase) == "Succeeded", 120)
    site.lab.kubectl("delete", "pod", name, "--now")
    docker.must("rmi", IMPORTED)
