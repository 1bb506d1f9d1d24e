"""The agent's end of the zygote, beside a stub of one: to import torch takes ten seconds."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable

import pytest
from lab.waiting import wait_until_async

from ropeteam_trainer.agent.processes import zygoteclient
from ropeteam_trainer.agent.processes.reaper import Reaper
from ropeteam_trainer.agent.processes.zygoteclient import ZygoteClient

STUB = """
import json, socket, struct, sys, time

agent = socket.socket(fileno=int(sys.argv[1]))

def send(message):
    body = json.dumps(message).encode()
    for byte in struct.pack(">I", len(body)) + body:  # in as many pieces as there can be
        agent.sendall(bytes((byte,)))
        time.sleep(0.001)

send({})
while agent.recv(1) == b"r":
    request = json.loads(agent.recv(struct.unpack(">I", agent.recv(4))[0]))
    send({"pid": 4321} if request["op"] == "store" else {"error": "it has 2 threads"})
"""
NEVER_READY = "import time; time.sleep(1000)"


@pytest.fixture
async def make_client() -> AsyncIterator[Callable[[str], ZygoteClient]]:
    reaper = Reaper()
    made: list[ZygoteClient] = []
    reaper.install()

    def make(program: str) -> ZygoteClient:
        made.append(ZygoteClient(reaper, (sys.executable, "-c", program), os.environ, lambda: None))
        return made[-1]

    yield make
    for client in made:
        client.stop()
    await wait_until_async("all zygotes are killed", lambda: all(client.pid is None for client in made))
    asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)


async def test_an_answer_that_comes_in_pieces_is_read_whole(make_client):
    client = make_client(STUB)
    assert await client.fork("store", {}, ()) == 4321
    with pytest.raises(OSError, match="it has 2 threads"):
        await client.fork("rank", {}, ())
    assert await client.fork("store", {}, ()) == 4321


async def test_a_zygote_that_never_is_ready_is_not_waited_for_for_ever(monkeypatch, make_client):
    monkeypatch.setattr(zygoteclient, "_IMPORT_SECONDS", 0.2)
    client = make_client(NEVER_READY)
    with pytest.raises(TimeoutError):
        await client.fork("store", {}, ())
    assert client.pid is None, "it was killed, and the next one may begin"


@pytest.mark.parametrize("stopped", [True, False])
async def test_an_end_is_reported_unless_it_was_wanted(make_client, capfd, stopped):
    client = make_client(STUB)
    assert await client.fork("store", {}, ()) == 4321
    client.stop() if stopped else os.kill(client.pid, signal.SIGKILL)
    await wait_until_async("the zygote is killed", lambda: client.pid is None)
    assert ("the zygote has ended" in capfd.readouterr().err) != stopped
