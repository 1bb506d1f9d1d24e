"""A real writer and a real reader on one page: 1 % of the campaign of tools/torn.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import torn


def test_the_shipped_reader_never_takes_a_torn_heartbeat(tmp_path: Path) -> None:
    found = torn.ours(tmp_path, 100_000)
    assert found.wrong == 0
    assert found.heartbeats > 99_000


def test_a_twin_in_c_never_takes_a_torn_heartbeat(tmp_path: Path) -> None:
    program = torn.build(tmp_path)
    if program is None:
        pytest.skip("NOT TESTED: the twin of the heartbeat page needs a C compiler (cc)")
    found = torn.twin(program, 10_000_000)
    assert found.wrong == 0
    assert found.torn > 0, "no record was ever torn: this proves nothing"
