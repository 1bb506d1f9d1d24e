"""Any layout goes on from what any other has saved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.trainer.ranks import Crew

SIZES = (1, 2, 3, 4)


def losses(tmp_path: Path, phase: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for size in SIZES:
        ended = Crew(tmp_path / f"{phase}{size}", size).run("layouts.py", phase, str(tmp_path / "saved"))
        assert ended.codes == [0] * size, "\n".join(ended.output)
        found |= ended.result["losses"]
    return found


def test_every_layout_goes_on_from_every_other(tmp_path: Path) -> None:
    saved = losses(tmp_path, "save")
    expected = saved["alone"]
    assert saved == {name: pytest.approx(expected, abs=1e-5) for name in saved}, "they train alike"
    loaded = losses(tmp_path, "load")
    assert len(loaded) == len(saved) ** 2 == 81
    assert loaded == {pair: pytest.approx(expected[3:], abs=1e-5) for pair in loaded}


def test_a_disk_that_fails_on_one_rank_costs_that_checkpoint_on_all_and_no_more(tmp_path: Path) -> None:
    """Rank 0's or rank 1's file, rank 0's metadata, the folder: and the next save is in step again."""
    ended = Crew(tmp_path, 2).run("disk_faults.py", str(tmp_path / "saved"))
    assert ended.codes == [0, 0], ended.output
    for rank, written in enumerate(ended.result["written"]):
        own = {f"__{rank}_0.distcp", f"rank-{rank}.pt"} | ({"state.pt", ".metadata"} if rank == 0 else set())
        assert {step: set(files) for step, files in written.items()} == {"1": own, "6": own}
    assert ended.result["same"] == [True, True], "what was saved is the state before training went on"
    assert ended.result["left"] == ["step-4/1.0.1/.metadata.tmp"], "only what the test has put there"
    for text in ended.output:
        assert re.findall(
            r"the checkpoint of step (\d) was not written: (rank \d: \[Errno \d+\] [\w ]+)", text
        ) == [
            ("2", "rank 0: [Errno 27] File too large"),
            ("3", "rank 1: [Errno 27] File too large"),
            ("4", "rank 0: [Errno 21] Is a directory"),
            ("5", "rank 0: [Errno 20] Not a directory"),
        ]
