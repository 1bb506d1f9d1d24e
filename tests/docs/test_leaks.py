"""The benchmark `leaks` counts what processes hold, and notices growth."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.leaks import Seen, Snapshot, count_rows, growth_rows
from benchmarks.resources import Held, least, slope, usage
from lab.waiting import wait_until

HOLDER = """
import socket, subprocess, sys, threading
held = [socket.socket() for _ in range(3)], [open("/dev/null") for _ in range(4)]
held += (bytearray(b"x") * 30_000_000,)
shared = open(sys.argv[1])
threading.Thread(target=threading.Event().wait, daemon=True).start()
below = subprocess.Popen(["sleep", "600"])
print("ready", flush=True)
sys.stdin.read()
below.kill()
"""


def test_what_a_process_and_those_below_it_hold_is_counted() -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="torch_") as shared:
        command = [sys.executable, "-c", HOLDER, shared.name]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"ready\n"
            found = usage(holder.pid, lambda pid: Path(f"/proc/{pid}/comm").read_text().strip())
            holder.communicate()
    assert len(found) == 2
    (held,) = (each for each in found.values() if each.pid == holder.pid)
    assert (held.threads, held.sockets, held.files, held.shared) == (2, 3, 3 + 4, 1)
    assert 30_000 < held.kilobytes < 60_000
    assert found["sleep"].sockets == 0


def test_processes_of_one_name_are_all_there_and_one_that_ends_is_left_out() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600 & wait"]) as parent:
        wait_until("both run", lambda: len(usage(parent.pid, str)) == 3)

        def name(pid: int) -> str:
            if pid == parent.pid:
                raise FileNotFoundError
            return "one"

        assert {*usage(parent.pid, name)} == {"one", "one (2)"}
        for each in usage(parent.pid, name).values():
            os.kill(each.pid, 9)


def test_what_is_held_for_a_moment_does_not_count() -> None:
    at_rest = Held(1, threads=2, sockets=3, files=4, shared=0, kilobytes=50)
    passing = Held(2, 1, 1, 1, 1, 1)
    busy = replace(at_rest, sockets=5, threads=1)
    assert least([{"a": at_rest, "b": passing}, {"a": busy}]) == {"a": replace(at_rest, threads=1)}
    assert least([{"a": at_rest}, {"a": replace(at_rest, pid=9)}]) == {}


def test_growth_is_that_of_the_line_that_fits_best() -> None:
    assert slope([0, 10, 20], [100, 120, 140]) == pytest.approx(2)
    assert slope([0, 10, 20, 30], [5, 6, 6, 5]) == pytest.approx(0)


def seen(*each: tuple[int, int]) -> Seen:
    """Sockets and kB of rank 0, after each 20 kills."""
    rest = Snapshot(0, 0, {"rank 0": Held(1, 1, 1, 1, 0, 1000)}, 0, 0)
    after = [
        Snapshot(20 * n, 100 * n, {"rank 0": Held(1, 1, sockets, 1, 0, kilobytes)}, 0, 0)
        for n, (sockets, kilobytes) in enumerate(each, 1)
    ]
    return Seen([rest, replace(rest, step=50)], after)


def holds(found: Seen, name: str) -> bool | None:
    rows = count_rows(found.after_kills)[0] + growth_rows(found)[0]
    (row,) = (row for row in rows if row.id == name)
    return row.holds


def test_a_count_that_grows_in_the_second_half_is_a_leak() -> None:
    assert holds(seen((1, 0), (2, 0), (2, 0), (2, 0), (2, 0)), "sockets")
    assert holds(seen((1, 0), (2, 0), (2, 0), (2, 0), (3, 0)), "sockets") is False


def test_memory_may_grow_by_20_kb_per_kill() -> None:
    assert holds(seen((1, 1000), (1, 1400), (1, 1800)), "memory of rank 0")
    assert holds(seen((1, 1000), (1, 1420), (1, 1840)), "memory of rank 0") is False


def test_a_process_that_is_another_one_each_time_has_no_goal() -> None:
    found = seen((1, 1000), (1, 9000))
    found.after_kills[1] = replace(found.after_kills[1], held={"rank 0": Held(2, 1, 1, 1, 0, 9000)})
    assert holds(found, "memory of rank 0") is None
