"""Terms that a user reads mean one thing: an epoch is one pass over the data, ranks form a world; our images
are those of one registry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [*(ROOT / "operator").rglob("*.py"), *(ROOT / "trainer-image").rglob("*.py")]


def test_no_sentence_confuses_a_world_with_a_pass_over_the_data() -> None:
    sentence = re.compile(r'"[^"\n]*\bepoch (?:\{|")')
    assert len(SOURCES) > 100
    assert {str(path): found for path in SOURCES if (found := sentence.findall(path.read_text()))} == {}


@pytest.mark.parametrize("file", ["docs/metrics.md", "tools/panels.py", "tests/api/messages.txt"])
def test_neither_metrics_nor_panels_nor_messages_know_epochs(file: str) -> None:
    assert "epoch" not in (ROOT / file).read_text().lower()


def test_our_images_are_named_with_their_registry_and_a_tag() -> None:
    """`ropeteam/trainer` alone would be somebody's on Docker Hub."""
    manifests = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.yaml"), ROOT / "README.md"]
    named = [each for file in manifests for each in re.findall(r"image: (\S*ropeteam/\S+)", file.read_text())]
    assert len(named) > 40
    assert {each for each in named if not re.fullmatch(r"ghcr\.io/ropeteam/\w+:[\d.]+", each)} == set()


@pytest.mark.parametrize(
    "field", ["handoverPending", "previousPodFenced", "previousPodUID", "podSpecHash", "lastWorld", "clock"]
)
def test_fields_for_the_operator_alone_are_explained_so(field: str) -> None:
    """The text is that of `kubectl explain`."""
    definition = (ROOT / "crds" / "ropeteam.dev_trainingjobs.yaml").read_text()
    [reader] = re.findall(rf"^ +{field}:\n +description: '?([^:\n]+):", definition, re.MULTILINE)
    assert reader == "For the operator"


def _names_before() -> Iterator[str]:
    """Names that the table in CHANGELOG gives up. Fields that are words of English, or of spec as well, can
    only be found in the definition, and the models make that."""
    rows = re.findall(
        r"^  \| (\w+) \| `(\S+)` \| `\S+` \|$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    for what, name in rows:
        field = name.rpartition(".")[2]
        if what != "status" or (re.search("[a-z][A-Z]", field) and field != "restartedAt"):
            yield field


def test_no_name_of_before_is_left_where_users_read_it() -> None:
    folders = [ROOT / "docs", ROOT / "examples", ROOT / "helm", ROOT / "crds"]
    files = [path for folder in folders for path in folder.rglob("*.*") if path.suffix != ".pyc"]
    texts = [*files, *SOURCES, ROOT / "README.md", ROOT / "tools/panels.py"]
    names = [*_names_before()]
    assert len(names) > 30
    pattern = re.compile(rf"\b(?:{'|'.join(names)})\b")
    found = {path.relative_to(ROOT).as_posix(): pattern.findall(path.read_text()) for path in texts}
    found.pop("operator/ropeteam/api/model.py")  # which reads them
    assert {path: names for path, names in found.items() if names} == {}
