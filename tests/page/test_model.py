"""A heartbeat that is read was written: every way in which a reader may see the words of a record.

Two models. In the weak one each word that a look returns is any value that was ever stored there, by any of
three heartbeats in a row: more than any machine does. In the strong one stores are seen in their order (x86),
for writers of an older release, whose records have no checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import product

import pytest

from ropeteam_trainer.contract.local import PAGE_SIZE, Beat, decode_beat, write_beat

WORDS = 8
Decode = Callable[[int, bytes, int], Beat | None]
HEARTBEATS = (
    Beat(40, 4, 2_000_000_000, "train", 320.0),
    Beat(41, 5, 2_300_000_000, "train", 328.0),
    Beat(41, 5, 2_300_400_000, "eval", 328.0, True),
)


def words(record: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{WORDS}Q", record)


def written(heartbeats: tuple[Beat, ...]) -> list[tuple[int, ...]]:
    """The record that each leaves on the page."""
    page = memoryview(bytearray(PAGE_SIZE))
    found = []
    for sequence, heartbeat in enumerate(heartbeats, 7):
        write_beat(page, heartbeat, sequence)
        assert page[:64] == page[64:128]
        found.append(words(bytes(page[:64])))
    return found


def old_decode(end: int, record: bytes, begin: int) -> Beat | None:
    """As it was: one look at the whole, and no checksum."""
    del end, begin
    first, step, here, at, phase, samples, last = struct.unpack_from("<QQQQB7xdQ", record)
    if first != last or first == 0:
        return None
    return Beat(step, here, at, ("", "train", "eval")[phase & 0x7F], samples, bool(phase >> 7))


def weak(decode: Decode, records: list[tuple[int, ...]]) -> Iterator[Beat]:
    """Records accepted when each word of each look is one of any of the records."""
    values = [sorted(set(column)) for column in zip(*records, strict=True)]
    for end, begin in product(values[6], values[0]):
        for row in product(*values):
            if heartbeat := decode(end, struct.pack(f"<{WORDS}Q", *row), begin):
                yield heartbeat


@pytest.mark.parametrize(
    ("heartbeats", "empty"),
    [(HEARTBEATS, False), (HEARTBEATS[:2], True), ((HEARTBEATS[0], HEARTBEATS[0]), True)],
    ids=["three heartbeats", "two heartbeats on an empty page", "the same heartbeat twice"],
)
def test_no_order_of_stores_gives_a_torn_heartbeat(heartbeats: tuple[Beat, ...], empty: bool) -> None:
    records = [(0,) * WORDS] * empty + written(heartbeats)
    assert set(weak(decode_beat, records)) == set(heartbeats)
    assert set(weak(old_decode, records)) - set(heartbeats), "this model does not see what was wrong"


def old_stores(heartbeats: tuple[Beat, ...]) -> list[tuple[int, int]]:
    """(word, value) in the order of an older release: the number, zeros all over, then the fields."""
    found = []
    for number, each in enumerate(heartbeats, 1):
        phase = 1 if each.phase == "train" else 2
        fields = struct.pack(
            "<QQQQB7xdQ", number, each.step, each.steps_here, each.monotonic_ns, phase, each.samples, number
        )
        found += [(0, number), *((word, 0) for word in range(7)), *enumerate(struct.unpack("<7Q", fields))]
    return found


def strong(decode: Decode, stores: list[tuple[int, int]]) -> Iterator[Beat]:
    """Records accepted at any speed of reader and writer. Looks come one after the other; in which order
    the one in the middle copies the words is left open."""
    memory = [(0,) * WORDS]
    for word, value in stores:
        memory.append((*memory[-1][:word], value, *memory[-1][word + 1 :]))
    for last in range(len(memory)):
        for first in range(last + 1):
            seen = [sorted(set(column)) for column in zip(*memory[first : last + 1], strict=True)]
            if memory[first][6] not in seen[0] or memory[last][0] != memory[first][6]:
                continue  # the numbers differ, whatever lies between
            for row in product(*seen):
                if heartbeat := decode(memory[first][6], struct.pack(f"<{WORDS}Q", *row), memory[last][0]):
                    yield heartbeat


def test_an_older_writer_is_read_whole_where_stores_keep_their_order() -> None:
    heartbeats = HEARTBEATS[:2]
    stores = old_stores(heartbeats)
    assert set(strong(decode_beat, stores)) == set(heartbeats)
    assert set(strong(old_decode, stores)) - set(heartbeats), "this model does not see what was wrong"
