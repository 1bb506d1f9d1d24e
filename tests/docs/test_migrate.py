"""docs/guides/migrate.md: each manifest of a peer has one of ours beside it that is valid and says the same,
and the page has a row for each field that the peer's manifest uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.docs.test_commands import ROOT, blocks

from ropeteam.api.job import TrainingJobSpec
from ropeteam.api.rules.validate import validate

PAGE = "docs/guides/migrate.md"
Object = dict[str, Any]


def pairs() -> dict[str, tuple[Object, Object]]:
    """By kind: the peer's manifest, and ours below it."""
    found = [yaml.safe_load(block) for block in blocks(PAGE, "yaml")]
    return {theirs["kind"]: (theirs, ours) for theirs, ours in zip(found[::2], found[1::2], strict=True)}


def fields(node: Any) -> Iterator[str]:
    """Names of fields, down to what belongs to Kubernetes."""
    if isinstance(node, list):
        for each in node:
            yield from fields(each)
    elif isinstance(node, dict):
        for name, inside in node.items():
            yield name
            if name not in {
                "resources",
                "resourcesPerNode",
                "env",
                "volumeMounts",
                "volumes",
                "nodeSelector",
            }:
                yield from fields(inside)


def test_both_peers_are_there() -> None:
    assert {kind: ours["kind"] for kind, (_, ours) in pairs().items()} == {
        "PyTorchJob": "TrainingJob",
        "TrainJob": "TrainingJob",
    }


@pytest.mark.parametrize("kind", sorted(pairs()))
def test_ours_is_valid_and_has_the_same_name(kind: str) -> None:
    theirs, ours = pairs()[kind]
    assert validate(ours["spec"]) == ()
    assert ours["metadata"] == theirs["metadata"]


def test_as_many_ranks_run_the_same_command() -> None:
    theirs, ours = pairs()["PyTorchJob"]
    replicas = theirs["spec"]["pytorchReplicaSpecs"].values()
    spec = TrainingJobSpec.model_validate(ours["spec"])
    assert spec.workers == sum(each["replicas"] for each in replicas)
    assert spec.gpus_per_worker == int(theirs["spec"]["nprocPerNode"])
    for each in replicas:
        [container] = each["template"]["spec"]["containers"]
        assert (container["image"], container["command"]) == (ours["spec"]["image"], ours["spec"]["command"])
    theirs, ours = pairs()["TrainJob"]
    trainer = theirs["spec"]["trainer"]
    assert (ours["spec"]["workers"], ours["spec"]["gpusPerWorker"]) == (
        trainer["numNodes"],
        trainer["numProcPerNode"],
    )
    assert [ours["spec"][each] for each in ("image", "command", "args", "env")] == [
        trainer[each] for each in ("image", "command", "args", "env")
    ]


@pytest.mark.parametrize("kind", sorted(pairs()))
def test_every_field_that_the_peer_uses_has_a_row(kind: str) -> None:
    section = (ROOT / PAGE).read_text().partition(f"\n## A {kind}\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"\w+", " ".join(row for row in section.splitlines() if row.startswith("|"))))
    within = {"spec", "replicatedJobs", "containers"}
    assert set(fields(pairs()[kind][0]["spec"])) - within - named == set()


def test_every_field_of_ours_that_the_tables_name_exists() -> None:
    rows = [row.split("|")[2] for row in (ROOT / PAGE).read_text().splitlines() if row.startswith("| ")]
    named = {name for cell in rows for name in re.findall(r"`(\w+)[^`]*`", cell)}
    known = {field.alias or name for name, field in TrainingJobSpec.model_fields.items()}
    assert len(named & known) > 12
    assert named - known - {"TrainingJob", "spec", "trainer", "nvidia", "ropeteam", "windowSeconds"} == set()
