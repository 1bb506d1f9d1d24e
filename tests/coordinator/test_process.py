"""The coordinator as a process: it boots, counts, is killed, comes back, adopts, and ends on SIGTERM."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from lab.coordinator.link import PATIENCE, TOKEN, FakeAgent, get_status, put_desired
from lab.coordinator.reports import agent, config
from lab.waiting import wait_until_async, within
from tests.agent.pipes import Pipe

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.desired import Desired, JobReport, SlotDesired
from ropeteam_trainer.coordinator.__main__ import count_boot
from ropeteam_trainer.coordinator.log import LIMIT_SECONDS, Log

DESIRED = Desired(1, 1, 1, {str(slot): SlotDesired(1, f"pod-{slot}-1") for slot in (0, 1)}, allowance=5)


class Process:
    """One container of a coordinator pod, and its ports."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self.child = child
        self.lines: list[str] = []

    async def listening(self) -> tuple[int, int]:
        assert self.child.stdout is not None
        line = (await within("its first line", self.child.stdout.readline())).decode()
        self.lines.append(line)
        found = re.search(r"listening .* agents=(\d+) http=(\d+)", line)
        assert found, line
        return int(found[1]), int(found[2])

    async def ends(self, number: signal.Signals) -> int:
        self.child.send_signal(number)
        out, _ = await within("the coordinator exits", self.child.communicate())
        self.lines += (out or b"").decode().splitlines()
        assert self.child.returncode is not None
        return self.child.returncode


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., asyncio.Future[Process]]]:
    (tmp_path / "token").write_text(TOKEN.hex())
    environ = {
        **os.environ,
        "ROPETEAM_CONFIG": codec.encode(config()).decode(),
        "ROPETEAM_TOKEN_FILE": str(tmp_path / "token"),
        "ROPETEAM_STATE_DIR": str(tmp_path / "state"),
        "ROPETEAM_POD_IP": "127.0.0.1",
    }
    started: list[Process] = []

    async def run(*ports: int, stdout: int = asyncio.subprocess.PIPE, **changes: str) -> Process:
        flags = [
            f"--{name}-port={port}" for name, port in zip(("agent", "http"), ports or (0, 0), strict=True)
        ]
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "ropeteam_trainer.coordinator",
            *flags,
            env={**environ, **changes},
            stdout=stdout,
            stderr=asyncio.subprocess.STDOUT,
        )
        started.append(Process(child))
        return started[-1]

    yield lambda *ports, **changes: asyncio.ensure_future(run(*ports, **changes))
    for each in started:
        if each.child.returncode is None:
            await each.ends(signal.SIGKILL)


@contextmanager
def held(*ports: int) -> Iterator[None]:
    """The kernel gives these ports to nobody else meanwhile; a process that binds one by number gets it."""
    with ExitStack() as holders:
        for port in ports:
            holder = holders.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", port))
        yield


async def test_a_killed_coordinator_adopts_the_world_that_went_on_without_it(start):
    first = await start()
    ports = await first.listening()
    agents = [FakeAgent(agent(slot), ports[0]) for slot in (0, 1)]
    await put_desired(ports[1], DESIRED)
    await wait_until_async(
        "both agents have the plan", lambda: all(each.report.plan is not None for each in agents)
    )
    plan = agents[0].report.plan
    assert await first.ends(signal.SIGKILL) == -9
    with held(*ports):
        second = await start(*ports)
        await second.listening()
    assert " boot=1 " in second.lines[0]
    report = await put_desired(ports[1], DESIRED)

    async def waits_no_more() -> JobReport | None:
        seen = await get_status(ports[1])
        return seen if seen.phase.value != "Waiting" else None

    report = await wait_until_async("the coordinator has left Waiting", waits_no_more)
    assert report.phase.value == "Running"
    assert [each.report.plan for each in agents] == [plan, plan]
    assert all(orders.plan == plan for each in agents for orders in each.seen if orders.boot == 1)
    assert report.incidents == ()
    for each in agents:
        await each.stop()
    assert await second.ends(signal.SIGTERM) == 0
    assert second.lines[-1].endswith("stopped")


async def test_a_coordinator_whose_output_nobody_reads_answers_and_ends(start):
    pipe = Pipe()
    process = await start(stdout=pipe.w)
    await pipe.writes("listening")
    found = re.search(r"http=(\d+)", pipe.text)
    assert found
    pipe.fill()
    for _ in range(2):
        await put_desired(int(found[1]), DESIRED)
    assert pipe.is_full, "somebody reads"
    await pipe.writes(" decision ")
    pipe.fill()
    assert await process.ends(signal.SIGTERM) == 0
    pipe.close()


@pytest.mark.parametrize("port", [0, 1], ids=["agents", "http"])
async def test_a_peer_behind_hundreds_of_unauthenticated_ones_waits_in_the_queue(start, port: int):
    """Else the kernel drops who comes, and lets it try again a second later, and later each time."""
    process = await start()
    ports = await process.listening()
    process.child.send_signal(signal.SIGSTOP)
    async with asyncio.timeout(PATIENCE):
        comes = partial(asyncio.open_connection, "127.0.0.1", ports[port])
        crowd = [(await comes(local_addr=("127.0.0.2", 0)))[1] for _ in range(500)]
        crowd.append((await comes())[1])
    process.child.send_signal(signal.SIGCONT)
    await put_desired(ports[1], DESIRED)
    for writer in crowd:
        writer.transport.abort()
    assert await process.ends(signal.SIGTERM) == 0


async def test_a_decision_is_logged_once(start):
    process = await start()
    _, http = await process.listening()
    for _ in range(3):
        await put_desired(http, DESIRED)
    await process.ends(signal.SIGTERM)
    decisions = [
        line for line in process.lines if " decision " in line and " this coordinator is late: " not in line
    ]
    assert len(decisions) == 1
    assert decisions[0].endswith('why="waiting for the agent of slot 0 to register"')


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ROPETEAM_CONFIG": "{}"}, "missing job, namespace"),
        ({"ROPETEAM_TOKEN_FILE": "/does/not/exist"}, "FileNotFoundError"),
        ({"ROPETEAM_STATE_DIR": "/proc/nowhere"}, "/proc/nowhere"),
    ],
)
async def test_what_it_cannot_start_without_is_named(start, changes: dict[str, str], reason: str):
    process = await start(**changes)
    out, _ = await within("the coordinator exits", process.child.communicate())
    assert process.child.returncode == 1
    assert "cannot-start" in out.decode()
    assert reason in out.decode()
    assert "Traceback" not in out.decode()


def test_boots_are_counted_from_zero_whatever_the_content_of_the_files(tmp_path: Path):
    state = tmp_path / "state"
    assert [count_boot(state) for _ in range(12)] == [*range(12)], "by number, not by name"
    assert [path.name for path in state.iterdir()] == ["boot-11"]
    for content in (b"", b"7", b"\xff"):
        (path,) = state.iterdir()
        path.write_bytes(content)
        count_boot(state)
    (state / "boot-3").touch()
    (state / "boot-x").touch()
    (state / "boot-").touch()
    assert count_boot(state) == 15, "the highest; and a name of another kind is none"


def test_a_nuisance_is_rate_limited_and_a_value_cannot_fake_a_line():
    lines: list[str] = []
    now = [0.0]
    log = Log(lines.append, lambda: now[0])
    for _ in range(5):
        log.write_limited("closed", reason="wrong MAC", peer="a")
    now[0] += LIMIT_SECONDS
    log.write_limited("closed", reason="wrong MAC", peer="b")
    log.write("x", text="two\nlines", none=None, empty="")
    assert [line.partition(" ")[2] for line in lines] == [
        'closed peer=a reason="wrong MAC"',
        'closed peer=b reason="wrong MAC" left_out=4',
        'x text="two\\nlines" empty=""',
    ]
    for number in range(300):
        log.write_limited("closed", reason=f"reason {number}")
    assert len(lines) == 303
