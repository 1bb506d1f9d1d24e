"""A cluster on a machine that others use too has a folder and a network of its own."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from ropeteam.local.cluster import LocalCluster, _reserve_network, _try_lock


async def test_nobody_else_reads_the_state_folder(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path / "state" / "home") as cluster:
        assert cluster.home.stat().st_mode & 0o777 == 0o700


def test_a_lock_follows_no_link_and_empties_no_file(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.write_text("mine")
    (tmp_path / "link").symlink_to(notes)
    with ExitStack() as locks:
        with pytest.raises(OSError, match="symbolic links"):
            _try_lock(locks, tmp_path / "link")
        assert _try_lock(locks, notes)
        assert not _try_lock(locks, notes)
    assert notes.read_text() == "mine"


def test_a_network_is_one_clusters_whoever_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two users, or two environments of one, share the machine's addresses and no folder."""
    taken = []
    with ExitStack() as locks:
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / name))
            taken.append(_reserve_network(locks))
    assert len(set(taken)) == 2
