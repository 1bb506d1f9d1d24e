"""Memory that outlives a process that is killed at any moment: one whole state is always there."""

from __future__ import annotations

import random
import resource
import time
from pathlib import Path

import pytest
import torch
from lab.ranks.processes import _server
from lab.waiting import wait_until

from ropeteam_trainer.strategies.parameterserver import doublebuffer, flat
from ropeteam_trainer.strategies.parameterserver.doublebuffer import RECORD_BYTES, DoubleBuffer

SHAPES = {"a": (1000,), "b": (3, 7), "c": ()}


def numbered(n: int) -> dict[str, torch.Tensor]:
    return {name: torch.full(shape, float(n)) for name, shape in SHAPES.items()}


def change(halves: DoubleBuffer, n: int) -> None:
    for tensor in halves.begin_draft().values():
        tensor.fill_(n)
    halves.commit(str(n).encode())


def count(path: Path, begun: Path) -> None:
    """Commit the next number, for ever. After the first one `begun` is there."""
    halves = DoubleBuffer.open_existing(path)
    assert halves is not None
    change(halves, int(halves.record) + 1)
    begun.touch()
    while True:
        change(halves, int(halves.record) + 1)


def test_a_process_killed_at_any_moment_leaves_a_whole_state(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    DoubleBuffer(path).rebuild(numbered(0), b"0")
    last = 0
    for attempt in range(8):
        begun = tmp_path / f"begun-{attempt}"  # memory in which another process writes cannot be read
        process = _server.Process(target=count, args=(path, begun))
        process.start()
        wait_until("the process writes", begun.exists)
        time.sleep(random.Random(attempt).random() / 100)
        process.kill()
        process.join()
        found = DoubleBuffer.open_existing(path)
        assert found is not None
        n = int(found.record)
        assert n > last
        for name, tensor in found.current.items():
            assert torch.equal(tensor, numbered(n)[name]), name
        last = n


@pytest.mark.parametrize("where", [None, "memory"])
def test_a_draft_is_not_valid_before_it_is_committed(where: str | None, tmp_path: Path) -> None:
    halves = DoubleBuffer(tmp_path / where if where else None)
    halves.rebuild(numbered(1), b"1")
    draft = halves.begin_draft()
    draft["a"].fill_(5)
    assert float(halves.current["a"][0]) == 1
    for name, tensor in halves.begin_draft().items():  # begun again: the draft before is gone
        assert torch.equal(tensor, numbered(1)[name])
    change(halves, 2)
    assert float(halves.current["a"][0]) == 2
    assert halves.record == b"2"


def test_other_tensors_take_the_place_of_the_old_ones(tmp_path: Path) -> None:
    halves = DoubleBuffer(tmp_path / "memory")
    halves.rebuild(numbered(1), b"1")
    halves.rebuild({"a": torch.arange(3), "d": torch.ones(2, dtype=torch.bfloat16)}, b"2")
    found = DoubleBuffer.open_existing(tmp_path / "memory")
    assert found is not None
    assert found.record == b"2"
    assert found.current["a"].tolist() == [0, 1, 2]
    assert found.current["d"].dtype == torch.bfloat16
    assert [path.name for path in tmp_path.iterdir()] == ["memory"]


def test_readers_see_one_state_while_it_changes(tmp_path: Path) -> None:
    halves = DoubleBuffer(tmp_path / "memory")
    halves.rebuild(numbered(1), b"1")
    with halves.reading(len(SHAPES)) as before:
        change(halves, 2)
        assert torch.frombuffer(before, dtype=torch.float32).unique().tolist() == [1]
        with halves.reading(1) as after:
            assert torch.frombuffer(after, dtype=torch.float32).tolist() == [2] * 1000
    change(halves, 3)


def test_a_record_that_is_too_long_is_refused(tmp_path: Path) -> None:
    halves = DoubleBuffer(tmp_path / "memory")
    with pytest.raises(ValueError, match="does not fit"):
        halves.rebuild(numbered(1), bytes(RECORD_BYTES))


def test_nothing_is_found_where_nothing_was_left(tmp_path: Path) -> None:
    assert DoubleBuffer.open_existing(None) is None
    assert DoubleBuffer.open_existing(tmp_path / "memory") is None


def test_tensors_of_all_widths_lie_where_they_may() -> None:
    tensors = {
        "odd": torch.ones(3, dtype=torch.bfloat16),
        "wide": torch.arange(2, dtype=torch.float64),
        "none": torch.empty(0),
        "byte": torch.tensor(7, dtype=torch.uint8),
    }
    layout = flat.layout_of(tensors)
    assert [entry.begin for entry in layout.entries] == [0, 8, 24, 24]
    joined = bytearray(b"".join(layout.buffers(list(tensors.values()))))
    assert len(joined) == layout.size
    for name, view in layout.tensors(joined).items():
        assert torch.equal(view, tensors[name])
    assert flat.Layout.from_plain(layout.to_plain()) == layout


def test_too_little_memory_is_an_error_before_anything_is_lost(tmp_path: Path) -> None:
    halves = DoubleBuffer(tmp_path / "memory")
    halves.rebuild(numbered(1), b"1")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    try:
        with pytest.raises(MemoryError, match=r"raise spec\.sharedMemory"):
            halves.rebuild({"a": torch.empty(1 << 20)}, b"2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    found = DoubleBuffer.open_existing(tmp_path / "memory")
    assert found is not None
    assert found.record == b"1"


def test_a_small_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    doublebuffer.write_atomically(tmp_path / "state", b"one")
    doublebuffer.write_atomically(tmp_path / "state", b"two")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("state", b"two")]
    with pytest.raises(RuntimeError, match=r"cannot be kept in .*nowhere: No such file"):
        doublebuffer.write_atomically(tmp_path / "nowhere" / "state", b"three")
    with pytest.raises(RuntimeError, match=r"cannot be kept in .*nowhere: No such file"):
        DoubleBuffer(tmp_path / "nowhere" / "memory").rebuild(numbered(1), b"1")
