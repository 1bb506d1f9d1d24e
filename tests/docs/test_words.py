"""Words that a user meets mean one thing: an epoch is one of the data, what ranks form is a world."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [*(ROOT / "operator").rglob("*.py"), *(ROOT / "trainer-image").rglob("*.py")]


def test_no_sentence_calls_a_world_an_epoch() -> None:
    sentence = re.compile(r'"[^"\n]*\bepoch (?:\{|")')
    assert len(SOURCES) > 100
    assert {str(path): found for path in SOURCES if (found := sentence.findall(path.read_text()))} == {}


@pytest.mark.parametrize("file", ["docs/metrics.md", "tools/panels.py", "tests/api/messages.txt"])
def test_neither_metrics_nor_panels_nor_messages_know_epochs(file: str) -> None:
    assert "epoch" not in (ROOT / file).read_text().lower()
