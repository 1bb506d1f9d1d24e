"""The server that all ranks of these tests are forked from."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lab.ranks.forkserver import forkserver

EXPECTED = {
    "torch._dynamo",
    "ropeteam_trainer.job",
    "ropeteam_trainer.strategies.wrap",
    "tests.trainer.planted",
}
"""The first three for ranks: without them each takes a second of a processor longer to start."""
_server = forkserver("tests.trainer.planted")


def write_modules(answer: str) -> None:
    """In a process of its own."""
    Path(answer).write_text(json.dumps([*sys.modules]))


def test_modules_for_one_kind_of_process_take_none_from_another(tmp_path: Path) -> None:
    process = _server.Process(target=write_modules, args=(str(tmp_path / "answer"),))
    process.start()
    process.join(60)
    assert {*json.loads((tmp_path / "answer").read_text())} >= EXPECTED
