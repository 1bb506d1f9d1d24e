"""The witness in a real interpreter: real processes with a real store, and what it writes of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.programs import outcome, witness

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import witness
from torch.distributed import barrier, destroy_process_group, init_process_group
place, rank, size = sys.argv[2:]
init_process_group("gloo", init_method="file://" + place, rank=int(rank), world_size=int(size))
barrier()
destroy_process_group()
"""


def run(folder: Path, world: str, size: int, **variables: str) -> str:
    """The witness's file after a world of this size has met over the file `world`."""
    lines = folder / "lines"
    environment = os.environ | {"PROGRAMS_WITNESS": str(lines), "RANK": "0"} | variables
    place = [str(Path(witness.__file__).parent), str(folder / world)]
    ranks = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, *place, str(rank), str(size)], env=environment)
        for rank in range(size)
    ]
    assert [rank.wait(120) for rank in ranks] == [0] * size
    return lines.read_text() if lines.exists() else ""


def test_who_shares_a_store_is_in_one_group(tmp_path: Path):
    run(tmp_path, "first", 2)
    text = run(tmp_path, "second", 1)
    assert len(outcome.imported(text)) == 3
    lines = outcome.joined(text)
    assert sorted((line.rank, line.size) for line in lines) == [(0, 1), (0, 2), (1, 2)]
    found = outcome.groups(lines, [line.pid for line in lines])
    assert len(found) == 2
    assert len(outcome.whole(found, 2)) == len(outcome.whole(found, 1)) == 1


def test_a_program_that_nobody_watches_is_left_alone(tmp_path: Path):
    assert run(tmp_path, "first", 1, PROGRAMS_WITNESS="") == ""
