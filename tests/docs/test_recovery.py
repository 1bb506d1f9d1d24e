"""docs/recovery.md shows the tree along which the code adds, its examples can recover in the step, and the
message fields that the architecture names exist.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from ropeteam.api.job import TrainingJobSpec
from ropeteam.api.strategy import contract_strategy
from ropeteam_trainer.contract.local import FromRank, ToRank
from ropeteam_trainer.contract.messages import Orders, RankReport
from ropeteam_trainer.contract.strategy import SyncType
from ropeteam_trainer.contract.world import Plan
from ropeteam_trainer.partition.layout import layout
from ropeteam_trainer.partition.reductiontree import Node, children, equal_parts, maximal_nodes, redealt

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "recovery.md").read_text()
EXAMPLES = ("examples/exact.yaml", "examples/techniques/exact.yaml")
LEAVES, REPLICAS, LOST = 6, 3, 1
_ROW = re.compile(r"(\d)   +((?:\d )+) +((?:\[\d, \d\) ?)+)$", re.MULTILINE)
Row = tuple[int, tuple[int, ...], tuple[Node, ...]]


def picture() -> str:
    """The block with the tree."""
    [block] = [
        each for each in re.findall(r"^```text\n(.*?)^```", PAGE, re.M | re.S) if "micro-batches" in each
    ]
    return block


def nodes(text: str) -> tuple[Node, ...]:
    return tuple(Node(int(begin), int(end)) for begin, end in re.findall(r"\[(\d), (\d)\)", text))


def drawn(part: str) -> list[Row]:
    """Rows of the table beside the tree: a replica, its micro-batches, and the nodes that it sends."""
    return [
        (int(replica), tuple(map(int, leaves.split())), nodes(sent))
        for replica, leaves, sent in _ROW.findall(part)
    ]


def dealt(owned: dict[int, tuple[int, ...]]) -> list[Row]:
    return [(replica, leaves, maximal_nodes(leaves, LEAVES)) for replica, leaves in owned.items()]


def test_the_picture_shows_the_micro_batches_and_sums_of_the_code() -> None:
    before, _, after = picture().partition(f"{LOST} is lost")
    parts = {replica: tuple(part) for replica, part in enumerate(equal_parts(LEAVES, REPLICAS))}
    assert drawn(before) == dealt(parts)
    del parts[LOST]
    assert drawn(after) == dealt(redealt(parts, LEAVES))


def test_the_picture_shows_the_tree_of_the_code() -> None:
    tree, below = {Node(0, LEAVES)}, [Node(0, LEAVES)]
    while below:
        inner = [child for child in children(below.pop()) if child.end - child.begin > 1]
        tree |= {*inner}
        below += inner
    left = "\n".join(line[:30] for line in picture().splitlines())
    assert {*nodes(left)} == tree


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_example_recovers_in_the_step(example: str) -> None:
    job, *others = yaml.safe_load_all((ROOT / example).read_text())
    spec = TrainingJobSpec.model_validate(job["spec"])
    assert spec.strategy
    assert spec.strategy.sync.type == SyncType.EXACT.value
    grid = layout(contract_strategy(spec.strategy), spec.workers)
    assert grid.replicate == spec.workers > 1
    assert spec.checkpoint
    claims = {each["metadata"]["name"] for each in others}
    assert claims <= {job["spec"]["checkpoint"]["volume"]["persistentVolumeClaim"]["claimName"]}


def test_the_example_is_short_and_whole() -> None:
    text = (ROOT / EXAMPLES[0]).read_text()
    assert len(text.splitlines()) <= 20
    assert [each["kind"] for each in yaml.safe_load_all(text)] == ["TrainingJob", "PersistentVolumeClaim"]


def test_every_message_field_that_the_architecture_names_exists() -> None:
    section = (ROOT / "docs" / "architecture.md").read_text().partition("\n### Sync Exact\n")[2]
    named = set(
        re.findall(r"`(Orders|ToRank|FromRank|Plan|RankReport)\.(\w+)`", section.partition("\n### ")[0])
    )
    classes = {each.__name__: each for each in (Orders, ToRank, FromRank, Plan, RankReport)}
    assert len(named) >= 5
    assert {
        pair for pair in named if pair[1] not in {each.name for each in fields(classes[pair[0]])}
    } == set()
