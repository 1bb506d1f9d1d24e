"""The operator's log when nobody reads it."""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Iterator

import pytest

from ropeteam.controller import output
from ropeteam.controller.output import Output


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)


def test_lines_that_nobody_reads_are_dropped_and_counted(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "MOST_LINES", 10)
    log, (reader, writer) = Output(pipe[1]), pipe
    for number in range(1000):
        log.emit(logging.makeLogRecord({"msg": "%d " + "x" * 1000, "args": (number,), "levelname": "INFO"}))
    read = b""
    while b"are read again\n" not in read:
        log.write_line(
            "are read again"
        )  # dropped if it comes before those that were read are counted as written
        if select.select([reader], [], [], 0.05)[0]:
            read += os.read(reader, 1 << 16)
    log.flush()  # nothing is left that its thread would write to a file that has this number next
    os.close(writer)
    lines = read.decode().splitlines()
    dropped = [line for line in lines if line.endswith("were dropped: its reader does not keep up")]
    numbers = [int(line.split()[3]) for line in lines if " I " in line]
    assert numbers == sorted(numbers)
    assert sum(int(line.split()[0]) for line in dropped) >= 1000 - len(numbers)


def test_a_disk_without_space_is_no_error() -> None:
    log = Output(os.open("/dev/full", os.O_WRONLY))
    log.write_line("no space")
    log.flush()
    assert log._written == log._queued == 1, "it is counted as written, so no later line is dropped for it"
    log.close()
