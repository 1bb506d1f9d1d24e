"""The manifest of docs/guides/code.md that checks out a git commit, where Pod Security is strict.

Another repository is put into it, and nothing else: a pod of the namespace serves that.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable

import pytest
import yaml
from lab.kube import images
from lab.kube.site import Object, Site
from lab.waiting import wait_until
from tests.cluster import gitsync
from tests.cluster.test_injection import namespace as namespace
from tests.docs.test_commands import blocks
from tests.programs.places import Missing

pytestmark = [
    pytest.mark.nodes,
    pytest.mark.timeout(3600),  # the first use builds git-sync
    pytest.mark.skipif(
        bool(os.geteuid() or not shutil.which("go")), reason="builds git-sync: needs Go, as root"
    ),
]
SCRIPT = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
while True:
    dist.all_reduce(torch.ones(1))
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        break
    time.sleep(0.05)
"""
SERVE = """
set -e
git init -q /tmp/srv/llama && cd /tmp/srv/llama
printf '%s' "$SCRIPT" > train.py
git add . && git -c user.name=me -c user.email=me@example.com commit -qm first
exec git daemon --export-all --base-path=/tmp/srv
"""


def guide() -> Object:
    (found,) = [each for each in blocks("docs/guides/code.md", "yaml") if "git-sync" in each]
    return dict(yaml.safe_load(found))


def init(job: Object) -> Object:
    container: Object
    (container,) = job["spec"]["template"]["spec"]["initContainers"]
    return container


@pytest.fixture(scope="module")
def built() -> str:
    """Name of git-sync's image."""
    name: str = init(guide())["image"]
    try:
        gitsync.build(name)
    except Missing as problem:
        pytest.skip(str(problem))
    return name


@pytest.fixture(scope="module")
def loaded(site: Site, built: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """On all nodes, beside our trainer's under the name of the guide's."""
    archive = tmp_path_factory.mktemp("image") / "git-sync.tar"
    images.buildah("push", "--quiet", built, f"docker-archive:{archive}:{built}")
    for node in site.lab.nodes:
        node.ctr("images", "import", str(archive))
        node.ctr("images", "tag", "--force", images.TRAINER, f"docker.io/{guide()['spec']['image']}")
    return built


def ours(name: str, commit: str, repository: str = "llama") -> Object:
    """The guide's job in namespace `name`, with the repository that is served there."""
    job = guide()
    job["metadata"] |= {"name": name, "namespace": name}
    args = init(job)["args"]
    for number, argument in enumerate(args):
        if argument.startswith("--repo="):
            args[number] = f"--repo=git://code/{repository}"
        elif argument.startswith("--ref="):
            assert len(argument) == len("--ref=") + 40
            args[number] = f"--ref={commit}"
    return job


def serve(site: Site, name: str, image: str) -> str:
    """The commit that the namespace's repository has."""
    meta = {"name": "code", "namespace": name, "labels": {"app": "code"}}
    container = {
        "name": "git",
        "image": image,
        "command": ["sh", "-c", SERVE],
        "env": [{"name": "SCRIPT", "value": SCRIPT}],
        "securityContext": init(guide())["securityContext"],
    }
    site.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}})
    ports = {"selector": {"app": "code"}, "ports": [{"port": 9418}]}
    site.apply({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": ports})

    def commit() -> str:
        command = ("exec", "code", "--", "git", "-C", "/tmp/srv/llama", "rev-parse", "HEAD")
        return site.lab.kubectl("-n", name, *command, check=False)

    wait_until("a commit", lambda: len(commit()) == 40, 120)
    return commit()


def status(site: Site, name: str) -> Object:
    return (site.get("trainingjob", name, name) or {}).get("status") or {}


def condition(site: Site, name: str, kind: str) -> Object:
    return next((each for each in status(site, name).get("conditions", ()) if each["type"] == kind), {})


def test_a_commit_trains_and_a_replaced_pod_gets_the_same(
    site: Site, name: str, namespace: Callable[[str], None], loaded: str
) -> None:
    namespace("restricted")
    site.apply(ours(name, serve(site, name, loaded)))
    wait_until("a running job", lambda: condition(site, name, "Running").get("status") == "True", 300)
    site.lab.kubectl("-n", name, "delete", "pod", f"{name}-1-1", "--wait=false")
    wait_until("an end", lambda: condition(site, name, "Finished").get("status") == "True", 300)
    seen = status(site, name)
    assert condition(site, name, "Complete").get("status") == "True", json.dumps(seen, indent=1)
    assert seen["incidents"][0]["cause"] == "PodDeleted"


def test_the_status_has_gits_error_where_there_is_no_repository(
    site: Site, name: str, namespace: Callable[[str], None], loaded: str
) -> None:
    namespace("restricted")
    site.apply(ours(name, serve(site, name, loaded), "another"))
    wait_until("an end", lambda: condition(site, name, "Finished").get("status") == "True", 900)
    message = condition(site, name, "Failed")["message"]
    assert "init container exited with code 1" in message
    assert "git://code/another" in message
