"""Any layout resumes from a checkpoint of any other."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from lab.ranks.processes import RankGroup

SIZES = (1, 2, 3, 4)


def test_every_layout_goes_on_from_every_other(tmp_path: Path) -> None:
    trained: dict[str, list[float]] = {}
    went_on: dict[str, list[float]] = {}
    with ExitStack() as worlds:
        groups = [worlds.enter_context(RankGroup(tmp_path / str(size), size)) for size in SIZES]
        for group in groups:
            group.start("layouts.py", str(tmp_path / "saved"))
        for group in groups:
            ended = group.wait(seconds=600)  # 81 restores of ten processes
            assert ended.codes == [0] * group.world, "\n".join(ended.output)
            trained |= ended.result["trained"]
            went_on |= ended.result["went_on"]
    expected = trained["alone"]
    assert trained == {name: pytest.approx(expected, abs=1e-5) for name in trained}, "they train alike"
    assert len(went_on) == len(trained) ** 2 == 81
    assert went_on == {pair: pytest.approx(expected[3:], abs=1e-5) for pair in went_on}


def test_a_disk_that_fails_on_one_rank_costs_that_checkpoint_on_all_and_no_more(tmp_path: Path) -> None:
    """Rank 0's or rank 1's file, rank 0's metadata, the folder: and the next save is in step again."""
    ended = RankGroup(tmp_path, 2).run("disk_faults.py", str(tmp_path / "saved"))
    assert ended.codes == [0, 0], ended.output
    for rank, written in enumerate(ended.result["written"]):
        own = {f"__{rank}_0.distcp", f"rank-{rank}.pt"} | ({"state.pt", ".metadata"} if rank == 0 else set())
        assert {step: set(files) for step, files in written.items()} == {"1": own, "6": own}
    assert ended.result["same"] == [True, True], "what was saved is the state before training went on"
    assert ended.result["buffers"] == [0, 0], "rank 0's count, as in DDP"
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
