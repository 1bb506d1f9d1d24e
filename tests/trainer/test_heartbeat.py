"""A rank's own end of its page."""

from __future__ import annotations

from pathlib import Path

from ropeteam_trainer.contract.local import PAGE_SIZE, Beat, read_beat, write_beat
from ropeteam_trainer.rank.agentlink import HeartbeatWriter


def test_no_heartbeat_reverts_the_end_of_the_script(tmp_path: Path) -> None:
    """A worker leaves its parameter servers afterwards, which is a phase: it would be taken for hung."""
    path = tmp_path / "page"
    path.write_bytes(bytes(PAGE_SIZE))
    heart = HeartbeatWriter(str(path))
    heart.phase = "train"
    heart.write()
    with path.open("r+b") as page:
        ended = bytearray(PAGE_SIZE)
        write_beat(memoryview(ended), Beat(phase="train", reached_end=True), 2)
        page.write(ended)
    with heart.during("serve"):
        pass
    seen = read_beat(memoryview(path.read_bytes()))
    assert seen is not None
    assert seen.reached_end
