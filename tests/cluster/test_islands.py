"""All nodes of a job are cut off together, its coordinator among them, while the storage is still shared.

The job trains on there. The way of saving decides what happens next: where checkpoints commit through us a
successor begins at once, and the storage tells the two worlds apart; a script that writes by itself gets no
successor before somebody has proved that the previous coordinator has ended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from lab.kube import network
from lab.kube.node import Node
from lab.kube.site import Site
from lab.local.cluster import files
from lab.waiting import wait_until
from tests.cluster.test_core import UNCHANGED, tiny, wait_for_new_checkpoint
from tests.cluster.test_faults import FOREVER, coordinators_node

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(900)]
TAINT = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"


@pytest.fixture
def island(site: Site) -> Iterator[list[Node]]:
    """Two nodes without an operator. Only they take pods, until they are cut off."""
    taken = {pod["spec"]["nodeName"] for pod in site.operators()}
    free = [node for node in site.lab.nodes if node.name not in taken][:2]
    others = [node for node in site.lab.nodes if node not in free]
    for node in others:
        site.lab.kubectl("cordon", node.name)
    yield free
    for node in (*others, *free):
        site.lab.kubectl("uncordon", node.name)
        site.lab.kubectl("taint", "node", node.name, f"{TAINT}-", check=False)
        node.heal()
        wait_until(f"{node.name} is Ready", partial(site.lab.is_ready, node), 120)


def isolated(site: Site, name: str, island: list[Node]) -> list[int]:
    """The processes of the job's ranks, which are on the island, with its coordinator."""
    places = {site.node_of(name, slot) for slot in (0, 1)} | {coordinators_node(site, name)}
    assert places <= {node.number for node in island}
    ranks = [site.rank(name, rank) for rank in (0, 1)]
    network.isolate({node.number for node in island})
    for node in site.lab.nodes:
        if node not in island:
            site.lab.kubectl("uncordon", node.name)
    return ranks


def whole(folder: Path, ref: dict[str, Any]) -> bool:
    """The manifest and every file that it names are there."""
    try:
        return _whole(folder, ref)
    except FileNotFoundError:  # it is pruned at this moment
        return False


def _whole(folder: Path, ref: dict[str, Any]) -> bool:
    found = [path for path in files(folder) if path.name == "manifest.json"]
    mine = [path for path in found if {f"step-{ref['step']}", ref["world"]} <= set(path.parts)]
    names = [file["name"] for path in mine for file in json.loads(path.read_text())["files"]]
    return bool(names) and all((mine[0].parent / name).exists() for name in names)


def lineage(site: Site, name: str) -> list[dict[str, Any]]:
    return list(site.status(name)["checkpoint"]["lineage"])


@pytest.mark.parametrize("feature_level", [2, 3])
def test_where_checkpoints_are_commits_the_storage_separates_worlds(
    site: Site, name: str, island: list[Node], feature_level: int
) -> None:
    env = [{"name": "OWN_LOOP", "value": "1"}] if feature_level == 2 else []
    site.apply(tiny(site, name, steps=FOREVER, env=env))
    site.wait(name, "Running")
    wait_for_new_checkpoint(site, name)
    assert site.status(name)["featureLevel"] == feature_level
    ranks, folder = isolated(site, name, island), site.shared / name
    wait_until("another coordinator", lambda: site.status(name)["coordinator"]["term"] > 1, 180)
    wait_until("it saves", lambda: lineage(site, name)[0]["world"].startswith("2."), 180)
    for _ in range(5):  # more than are kept
        wait_for_new_checkpoint(site, name)
        named = lineage(site, name)[:2]  # until status names newer ones in their place
        assert all(whole(folder, ref) or ref not in lineage(site, name) for ref in named)
    for node in island:
        node.heal()
    wait_until("the old ranks are gone", lambda: not any(map(psutil.pid_exists, ranks)), 180)
    known = lineage(site, name)
    wait_for_new_checkpoint(site, name)
    assert [ref["world"] for ref in lineage(site, name)] == [known[0]["world"]] * len(known)
    assert site.status(name)["attempt"] == 1
    assert site.status(name)["coordinator"]["term"] == 2


def starts(site: Site, name: str) -> int:
    """How often rank 0 of train_ddp.py has been started."""
    return (site.shared / name / "rank-0.jsonl").read_text().count('"start"')


@pytest.mark.parametrize("feature_level", [0, 1])
def test_a_script_that_saves_by_itself_gets_no_second_world(
    site: Site, name: str, island: list[Node], feature_level: int
) -> None:
    command = [UNCHANGED, ["python", "/shared/scripts/own_saves.py"]][feature_level]
    site.apply(site.job(name, [*command, f"/shared/{name}"], recovery={"fenceSeconds": 20}))
    site.wait(name, "Running")
    wait_until("a save", lambda: site.has_just_saved(name), 60)
    wait_until(
        "its feature level in status", lambda: site.status(name).get("featureLevel", 0) == feature_level, 60
    )
    ranks = isolated(site, name, island)

    def is_reported() -> bool:
        return "coordinators-ended" in str(site.status(name)["conditions"])

    wait_until("what is awaited, and the command that gives it", is_reported, 240)
    time.sleep(60)  # longer than fenceSeconds and its margin: nothing else may begin meanwhile
    assert all(map(psutil.pid_exists, ranks)), "the world on the island goes on"
    assert starts(site, name) == 1
    for node in island:
        node.heal()
    wait_until("the old ranks are gone, or are the world", lambda: not is_reported(), 240)
    site.wait(name, "Running", 180)
    wait_until("a save", lambda: site.has_just_saved(name), 60)


def test_with_proof_that_the_nodes_are_off_a_successor_begins(
    site: Site, name: str, island: list[Node]
) -> None:
    site.apply(site.job(name, [*UNCHANGED, f"/shared/{name}"], recovery={"fenceSeconds": 20}))
    site.wait(name, "Running")
    wait_until("a save", lambda: site.has_just_saved(name), 60)
    isolated(site, name, island)
    for node in island:
        node.power_off()
        site.lab.kubectl("taint", "node", node.name, TAINT)
    try:
        wait_until("another coordinator", lambda: site.status(name)["coordinator"]["term"] > 1, 180)
        wait_until("a save", lambda: site.has_just_saved(name), 180)
    finally:
        for node in island:
            node.power_on(len(site.lab.nodes))
