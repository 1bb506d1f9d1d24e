"""Cases that a campaign has once found are found no more. A file of `corpus` is one case:
<campaign>.<what it was>.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz.campaign import replay
from tests.fuzz.campaigns import named

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.name)
def test_what_was_found_once_is_handled(file: Path) -> None:
    assert replay(named(file.name.partition(".")[0]), file.read_bytes())
