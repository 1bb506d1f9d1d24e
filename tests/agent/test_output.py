"""Output of ranks, and an output that nobody reads: real pipes, and a real agent with its stdout full."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.waiting import wait_until_async, within
from tests.agent.harness import a_plan, exit_of
from tests.agent.pipes import Pipe

from ropeteam_trainer.agent.processes import output as output_module
from ropeteam_trainer.agent.processes.output import Output
from ropeteam_trainer.contract.config import Start, Timeouts
from ropeteam_trainer.system import lines
from ropeteam_trainer.system.lines import MOST_BYTES, Lines

LOUD = """
import sys, time
for number in range(4000):
    print(f'line {number:04}', 'x' * 1000, flush=True)
for step in range(10**9):
    open(sys.argv[1], 'w').write(str(step))
    time.sleep(0.01)
"""
NOT_READ = "this container's output was not read (is the container runtime stopped, or the node's disk full?)"


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    found = Pipe()
    yield found
    found.close()


def many(source: str, count: int, sink: Lines) -> None:
    for number in range(count):
        sink.add(source, [f"{source} {number} {'x' * 1000}".encode()])


async def test_all_lines_go_out_in_order_to_one_who_reads(pipe: Pipe):
    sink = Lines(pipe.w)
    many("rank 0", 500, sink)
    await pipe.writes("rank 0 499 ")
    assert [line.split()[2] for line in pipe.text.splitlines() if line] == [str(n) for n in range(500)]


async def printed(pipe: Pipe, pieces: list[bytes], last: str) -> list[str]:
    """Lines that come out of what a rank writes piece by piece."""
    sink, (read_end, write_end) = Lines(pipe.w), os.pipe()
    output = Output(read_end, "rank 0", sink)
    for piece in pieces:
        os.write(write_end, piece)
        await asyncio.sleep(0.02)
    os.close(write_end)
    output.close()
    await pipe.writes(last)
    return [line.removeprefix("[rank 0] ") for line in pipe.text.splitlines()]


async def test_of_a_progress_bar_the_first_and_the_last_of_a_second_are_forwarded(pipe: Pipe, monkeypatch):
    monkeypatch.setattr(output_module, "BAR_SECONDS", 1000.0)  # all of it comes within one
    bar = [f"\r{percent:3}%|##".encode() for percent in range(0, 101, 10)]
    assert await printed(pipe, [*bar, b"\n", b"done\n"], "done") == ["  0%|##", "100%|##", "done"]


async def test_a_progress_bar_that_ends_its_lines_so_is_forwarded_each_second(pipe: Pipe, monkeypatch):
    monkeypatch.setattr(output_module, "BAR_SECONDS", 0.0)
    got = await printed(pipe, [b"1 of 3\r", b"2 of 3\r", b"3 of 3\r", b"\n", b"done\n"], "done")
    assert got == ["1 of 3", "2 of 3", "3 of 3", "done"]


async def test_lines_that_end_with_a_carriage_return_too_are_lines(pipe: Pipe):
    assert await printed(pipe, [b"one\r", b"\ntwo\r\n", b"\r\n", b"done\n"], "done") == [
        "one",
        "two",
        "",
        "done",
    ]


async def test_unread_output_is_dropped_by_whole_lines_and_counted_when_it_flows_again(pipe: Pipe):
    sink = Lines(pipe.w)
    many("rank 0", 3000, sink)
    sink.add("the agent", [b"one", b"two"])
    assert not sink.flush(0.1)
    await pipe.writes("this container's output was not read")
    await wait_until_async("output flows", lambda: sink.flush(0) and pipe.read())
    got = pipe.read().splitlines()
    whole = [line for line in got if line.startswith("rank 0 ") and line.endswith(" " + "x" * 1000)]
    dropped = 3000 - len(whole)
    assert got[: len(whole)] == whole
    assert got[len(whole) :] == [
        f"ropeteam: {dropped} lines of rank 0 were dropped: {NOT_READ}",
        f"ropeteam: 2 lines of the agent were dropped: {NOT_READ}",
    ]
    assert len(whole) * 1000 <= MOST_BYTES + 3000
    many("rank 0", 1, sink)
    await pipe.writes(f"{NOT_READ}\nrank 0 0 ")


@pytest.mark.parametrize(
    ("written", "count", "first"),
    [
        ([b"x"] * 20, 20, "x"),
        ([b"x"] * 25, 20, "... (6 more lines in the pod's log)"),
        ([b"x" * 5000, b"y" * 4000], 2, "... (1 more line in the pod's log)"),
    ],
)
async def test_lines_that_are_missing_among_the_last_are_counted(
    pipe: Pipe, written: list[bytes], count: int, first: str
):
    read_end, write_end = os.pipe()
    output = Output(read_end, "rank 0", Lines(pipe.w))
    os.write(write_end, b"\n".join([*written, b""]))
    os.close(write_end)
    output.close()
    last = output.last_lines()
    assert (len(last), last[0]) == (count, first)
    assert last[-1] == written[-1].decode()
    assert len("".join(last).encode()) <= output_module.LAST_BYTES


async def test_a_pipe_that_somebody_made_nonblocking_loses_nothing(pipe: Pipe):
    os.set_blocking(pipe.w, False)
    sink = Lines(pipe.w)
    many("rank 0", 100, sink)
    await pipe.writes("rank 0 99 ")
    assert pipe.text.count("\n") == 100


async def test_a_closed_output_stops_nobody(pipe: Pipe):
    sink = Lines(pipe.w)
    os.close(pipe.r)
    many("rank 0", 10, sink)
    assert sink.flush(30)
    pipe.r = os.dup(pipe.w)


async def test_a_rank_waits_for_a_slow_reader_and_not_for_one_who_is_gone(pipe: Pipe, monkeypatch):
    monkeypatch.setattr(lines, "PATIENCE_SECONDS", 1000.0)
    ranks = Pipe()
    output = Output(os.dup(ranks.r), "rank 3", Lines(pipe.w))
    slow_output = os.fdopen(os.dup(ranks.w), "w")

    def print_much() -> None:
        for number in range(6000):
            print("line", number, "y" * 1000, file=slow_output, flush=True)

    printing = asyncio.ensure_future(asyncio.to_thread(print_much))
    await wait_until_async("the rank waits for its output", lambda: ranks.is_full and pipe.is_full)
    await pipe.writes("line 2500 ")
    assert "were dropped" not in pipe.text
    monkeypatch.setattr(lines, "PATIENCE_SECONDS", 0.0)
    await within("all is printed", printing, 300)
    slow_output.close()
    output.close()
    assert output.last_lines()[-1].startswith("line 5999 y")
    await pipe.writes("lines of rank 3 were dropped: this container's output was not read")
    ranks.close()


async def test_an_agent_whose_output_is_full_reports_and_fences(make_pod: Any, coordinator: Any, pipe: Pipe):
    pod = make_pod(timeouts=Timeouts(lost=2, fence=4))
    pod.sink = pipe.w
    (pod.folder / "x.py").write_text(LOUD)
    steps = pod.folder / "steps"
    pod.start("python3", "x.py", str(steps))
    coordinator.order(plan=a_plan())
    await wait_until_async("the rank waits for its output", lambda: Path(steps).exists() and pipe.is_full)
    received = len(coordinator.history)
    await coordinator.wait_for(lambda _: len(coordinator.history) > received + 2)
    port = coordinator.port
    await coordinator.stop()
    await wait_until_async(lambda: f"still alive: {pod.living()}", lambda: set(pod.living()) == {pod.pid})
    assert pipe.is_full
    await coordinator.start(port)
    exit = exit_of(await coordinator.wait_for(lambda r: r.ranks and r.stopped))
    assert exit.fingerprint == "fenced"
    assert exit.last_lines[-1].startswith("line 3999 ")
    await pipe.writes("lines of rank 0 were dropped: this container's output was not read")


async def test_an_agent_that_nobody_reads_ends_on_sigterm(pod: Any, coordinator: Any, pipe: Pipe):
    pipe.fill()
    pod.sink = pipe.w
    pod.start("sh", "-c", "echo much; exec sleep 1000")
    coordinator.order(plan=a_plan())
    await coordinator.wait_for(lambda r: r.ranks and not r.stopped)
    coordinator.order(plan=None, release=True)
    assert await pod.exit_code() == 0


async def test_a_zygote_whose_output_nobody_reads_offers_a_store(make_pod: Any, coordinator: Any, pipe: Pipe):
    pipe.fill()
    pod = make_pod(start=Start.FORK)
    pod.sink = pipe.w
    (pod.folder / "x.py").write_text("import time; time.sleep(1000)")
    pod.start("python3", "-v", "x.py", ROPETEAM_STORE="")  # each import is a line
    coordinator.order(host_store=a_plan().world_id)
    report = await coordinator.wait_for(lambda r: r.store)
    with socket.create_connection((report.store.host, report.store.port)):
        await wait_until_async(lambda: f"no store is forked: {pod.living()}", lambda: len(zygotes(pod)) == 2)
    assert pipe.is_full


def zygotes(pod: Any) -> list[int]:
    """The zygote and its stores: a fork has its command line."""
    return [pid for pid, line in pod.living().items() if "zygote.py" in line]
