"""The heartbeat page: what one process writes another reads, whole or not at all."""

from __future__ import annotations

import math
import mmap
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeteam_trainer.contract import local
from ropeteam_trainer.contract.local import PAGE_SIZE, PHASES, Beat, read_beat, write_beat

U64 = st.integers(0, 2**64 - 1)
HEARTBEATS = st.builds(
    Beat,
    U64,
    U64,
    U64,
    st.sampled_from(PHASES),
    st.floats(allow_nan=False, allow_infinity=False),
    reached_end=st.booleans(),
)


def a_page() -> memoryview:
    return memoryview(bytearray(PAGE_SIZE))


@given(heartbeats=st.lists(HEARTBEATS, min_size=1))
def test_the_last_heartbeat_is_read(heartbeats: list[Beat]) -> None:
    page = a_page()
    for sequence, heartbeat in enumerate(heartbeats, 1):
        write_beat(page, heartbeat, sequence)
        assert read_beat(page) == heartbeat


def test_an_empty_page_has_no_heartbeat() -> None:
    assert read_beat(a_page()) is None


@pytest.mark.parametrize("copy", [0, 64])
def test_one_whole_copy_is_enough(copy: int) -> None:
    page = a_page()
    write_beat(page, Beat(step=1), 1)
    for index in range(8):
        torn = memoryview(bytearray(page))
        torn[copy + 8 * index : copy + 8 * index + 8] = bytes(8)
        assert read_beat(torn) == Beat(step=1)


def test_two_torn_copies_are_no_heartbeat() -> None:
    page = a_page()
    write_beat(page, Beat(step=1), 1)
    page[8:16] = page[72:80] = bytes(8)
    assert read_beat(page) is None


def test_a_writer_of_an_older_release_is_read_and_its_successor_too() -> None:
    page = a_page()
    struct.pack_into("<QQQQB7xdQ", page, 0, 1, 5, 4, 3, 1, 2.0, 1)
    assert read_beat(page) == Beat(5, 4, 3, "train", 2.0)
    write_beat(page, Beat(step=6), 2)
    assert read_beat(page) == Beat(step=6)
    begin, step, *_, end = struct.unpack_from("<QQQQB7xdQ", page, 0)  # as a reader of an older release does
    assert begin == end != 0
    assert step == 6


@given(noise=st.binary(min_size=64, max_size=64))
def test_noise_on_the_page_never_raises(noise: bytes) -> None:
    """A script may write anywhere in its memory; the agent must live on."""
    page = a_page()
    page[:64] = noise
    page[7] &= 0x7F  # as if no checksum followed,
    page[48:56] = page[0:8]  # and it were whole
    heartbeat = read_beat(page)
    assert heartbeat is None or (heartbeat.phase in PHASES and math.isfinite(heartbeat.samples))


@pytest.mark.parametrize("samples", [math.nan, math.inf, -math.inf])
def test_samples_that_are_no_number_are_not_read(samples: float) -> None:
    page = a_page()
    write_beat(page, Beat(samples=samples), 1)
    assert read_beat(page) is None


def test_an_unknown_phase_is_refused_by_the_writer() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        write_beat(a_page(), Beat(phase="lunch"), 1)


def test_the_page_is_shared_with_a_child_process(tmp_path: Path) -> None:
    file = tmp_path / "page"
    file.write_bytes(bytes(PAGE_SIZE))
    heartbeat = Beat(7, 3, 123, "train", 42.0, True)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), PAGE_SIZE) as page:
        child = os.fork()
        if child == 0:
            with memoryview(page) as view:
                write_beat(view, heartbeat, 1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with memoryview(page) as view:
            assert read_beat(view) == heartbeat


def test_the_shim_of_another_release_finds_its_names():
    assert {"PAGE_SIZE", "Beat", "read_beat", "write_beat"} <= vars(local).keys()
