"""The pages of docs/techniques: manifests that are valid, plans that are those of today, an index of all."""

from __future__ import annotations

import re
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml
from lab.ranks.forked import Forked, prepare
from lab.ranks.processes import FakeAgent, RankGroup
from tools import techniques

from ropeteam.api.job import TrainingJobSpec
from ropeteam.api.rules.validate import validate
from ropeteam.api.strategy import Strategy, contract_strategy
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.recipes import char_gpt

FOLDER = techniques.FOLDER
PAGES = techniques.pages()
EACH = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)


@EACH
def test_the_manifest_is_that_of_the_file(page: Path):
    text, file = page.read_text(), techniques.EXAMPLES / f"{page.stem}.yaml"
    assert techniques.with_manifest(text, file) == text, "run `python -m tools.techniques`"
    assert f"`ropeteam run {file.relative_to(FOLDER.parents[1])}`" in text


def test_every_file_has_a_page():
    assert [file.stem for file in sorted(techniques.EXAMPLES.iterdir())] == [page.stem for page in PAGES]


@EACH
def test_the_manifest_is_whole_and_valid(page: Path):
    [manifest] = techniques.manifests(page.read_text())
    assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}
    assert manifest["metadata"] == {"name": page.stem}
    assert validate(manifest["spec"]) == ()


@pytest.mark.parametrize("name", ["pipeline", "hybrid"])
def test_a_pipeline_takes_every_batch_of_the_recipe(name: str, tmp_path: Path):
    """The last one of an epoch and those of the evaluation too, which are smaller: 281 and 31 windows."""
    manifest = yaml.safe_load((techniques.EXAMPLES / f"{name}.yaml").read_text())
    spec = TrainingJobSpec.model_validate(manifest["spec"])
    assert spec.strategy
    (tmp_path / "text").write_text("the quick brown fox jumps over the lazy dog " * 455)
    agent = FakeAgent(tmp_path, spec.workers, None, WorldId(1, 0, 1))
    options = ["--text", str(tmp_path / "text"), "--epochs", "1"]
    ended = RankGroup(tmp_path / "group", spec.workers).run(
        char_gpt.__file__, *options, agent=agent, strategy=contract_strategy(spec.strategy)
    )
    agent.close()
    assert ended.codes == [0] * spec.workers, ended.output


@pytest.mark.timeout(330)
@EACH
def test_the_plan_is_that_of_the_manifest(page: Path, monkeypatch: pytest.MonkeyPatch):
    prepare()
    monkeypatch.setattr(subprocess, "Popen", Forked)  # of the dry run
    text = page.read_text()
    assert techniques.has_plan(text)
    assert techniques.planned(text) == text, "run `python -m tools.techniques`"


@EACH
def test_the_figures_are_those_of_the_results(page: Path):
    text = page.read_text()
    assert techniques.measured(text) == text, "run `python -m tools.techniques`"
    for pattern in techniques.named_rows(text):
        assert any(fnmatchcase(row["id"], pattern) for row in techniques.rows()), pattern


@EACH
def test_figures_speak_to_readers(page: Path):
    """Names of rows are in a comment, for the tool."""
    seen = re.sub(r"<!--.*?-->|\]\([^)]*\)", "", page.read_text().partition("**Figure:**")[2])
    assert re.findall(r"\w+\.[\w*]+\.[\w*]+", seen) == []


@EACH
def test_a_page_has_every_heading_in_few_lines(page: Path):
    text = page.read_text()
    missing = [
        heading
        for heading in ("Use it", "Not", "Cost.", "Limits.", "Sources.", "Figure:")
        if not re.search(rf"\*\*{re.escape(heading)}\*\*", text.replace("**Use** ", "**Use it** "))
    ]
    assert missing == []
    picture = text.split("```")[1]
    assert max(map(len, picture.splitlines())) <= 72
    assert len(text.partition("**Figure:**")[0].splitlines()) <= 72


@pytest.mark.parametrize("page", [*PAGES, FOLDER / "README.md"], ids=lambda path: path.stem)
def test_links_of_techniques_lead_somewhere(page: Path):
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    links = [each for each in targets if "://" not in each]
    assert [each for each in links if not (FOLDER / each).exists()] == []


def test_the_index_has_every_page():
    linked = re.findall(r"^\| \[[^]]+\]\(([^)]+)\)", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert sorted(linked) == [page.name for page in PAGES]


def test_every_field_of_a_strategy_has_a_page():
    fields = {field.alias or name for name, field in Strategy.model_fields.items()}
    shown = {
        name
        for page in PAGES
        for spec in techniques.manifests(page.read_text())
        for name in spec["spec"]["strategy"]
    }
    assert fields - shown == set()
