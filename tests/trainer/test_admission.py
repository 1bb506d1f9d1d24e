"""Unauthenticated clients of a parameter server: they neither keep workers out nor end it."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import torch
from lab.ranks.processes import SCRIPTS

from ropeteam_trainer.contract.config import RankPlan, Resume
from ropeteam_trainer.contract.strategy import ParameterServer
from ropeteam_trainer.rank.agentlink import HeartbeatWriter, NoAgent
from ropeteam_trainer.strategies.parameterserver import admission as module
from ropeteam_trainer.strategies.parameterserver import requests, wire
from ropeteam_trainer.strategies.parameterserver.admission import Admission
from ropeteam_trainer.strategies.parameterserver.discovery import Discovery, RankAssignment
from ropeteam_trainer.strategies.parameterserver.requests import PullWeights, Weights
from ropeteam_trainer.strategies.parameterserver.service import Server
from ropeteam_trainer.strategies.parameterserver.share import Share

SECRET = "of this job"
PLACES = 8


@pytest.fixture(autouse=True)
def _nobody_has_to_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_SECONDS", 300.0)


class Guarded:
    """A guarded port, and the connections that it admitted."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        self.inside = queue.Queue[socket.socket]()
        self.admission = Admission(listener, SECRET, PLACES, self.inside.put)
        self.admission.open()

    def comes(self, secret: str = SECRET) -> socket.socket:
        return wire.connect(f"127.0.0.1:{self.port}", secret)


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    guarded = Guarded()
    yield guarded
    guarded.admission.close()


@contextmanager
def unauthenticated(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Of another address, silent. Each has been greeted, or let go."""
    found = []
    with ExitStack() as ends:
        for _ in range(count):
            found.append(socket.create_connection(("127.0.0.1", port), 30, ("127.0.0.2", 0)))
            ends.enter_context(found[-1])
            with suppress(ConnectionError):
                found[-1].recv(wire.NONCE_BYTES)
        yield found


def close(*connections: socket.socket) -> None:
    for each in connections:
        each.close()


def test_silent_clients_keep_no_worker_out(guarded: Guarded) -> None:
    with unauthenticated(guarded.port, 3 * PLACES):
        assert guarded.admission.unauthenticated.taken == PLACES
        with guarded.comes() as worker, guarded.inside.get() as inside:
            wire.send(worker, b"first")
            assert wire.receive_header(inside) == (b"first", 0)


def test_a_thread_that_wakes_by_itself_does_not_keep_the_port_open(guarded: Guarded) -> None:
    guarded.admission._is_open = False
    with socket.create_connection(("127.0.0.1", guarded.port), 30):
        guarded.admission._thread.join()
    guarded.admission.close()


def test_a_worker_behind_hundreds_of_others_waits_in_the_queue_of_a_server_that_starts() -> None:
    """Else the kernel drops a new connection, and lets it try again a second later, and later each time."""
    plan = RankPlan("1.0.1", (), False, None, Resume.LATEST, None, "j", "u", servers=("127.0.0.1:0",))
    listener = Discovery(
        RankAssignment(rank=1, workers=1, servers=1), plan, NoAgent(), HeartbeatWriter(None)
    ).listener
    assert listener is not None
    place = listener.getsockname()
    with ExitStack() as ends:
        for address in ("127.0.0.2",) * 500 + ("127.0.0.1",):
            ends.enter_context(socket.create_connection(place, 30, (address, 0)))
        admission = Admission(listener, SECRET, PLACES, lambda worker: worker.close())
        admission.open()
        wire.connect(f"127.0.0.1:{place[1]}", SECRET).close()
    admission.close()


def test_who_has_shown_the_secret_takes_no_place(guarded: Guarded) -> None:
    workers = [guarded.comes() for _ in range(3 * PLACES)]
    inside = [guarded.inside.get() for _ in workers]
    assert guarded.admission.unauthenticated.taken == 0
    close(*workers, *inside)


def test_the_time_of_a_whole_greeting_is_limited(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then is not enough to stay."""
    monkeypatch.setattr(module, "HANDSHAKE_SECONDS", 0.2)
    sent = 0
    with unauthenticated(guarded.port, 1) as (slow,), suppress(ConnectionError):
        while sent < wire.ANSWER_BYTES - 1:
            sent += slow.send(b"x")
            time.sleep(0.1)
    assert sent < wire.ANSWER_BYTES - 1


def test_a_client_without_the_secret_is_logged_now_and_then(
    guarded: Guarded, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        with pytest.raises(ConnectionError):
            guarded.comes("another job's")
    close(guarded.comes(), guarded.inside.get())
    assert capfd.readouterr().err.count("refused a connection") == 1


def test_a_server_that_gets_no_thread_is_a_server_still(capfd: pytest.CaptureFixture[str]) -> None:
    weights = torch.nn.Parameter(torch.ones(3))
    listener = socket.create_server(("127.0.0.1", 0))
    share = Share({"weights": weights}, torch.optim.SGD([weights], lr=1.0), None, 1)
    server = Server(share, listener, SECRET, ParameterServer(), PLACES)
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    server.start()
    server.set_ready()
    usual = threading.stack_size(1 << 47)  # more than there are addresses
    try:
        with wire.connect(address, SECRET) as refused:
            assert refused.recv(1) == b""
    finally:
        threading.stack_size(usual)
    assert "cannot serve another connection: can't start new thread" in capfd.readouterr().err
    with wire.connect(address, SECRET) as worker:
        wire.send(worker, requests.encode(PullWeights()))
        assert wire.receive_header(worker) == (requests.encode(Weights(0)), 12)
    server.close()


def test_unauthenticated_clients_take_no_descriptor_that_the_server_needs(tmp_path: Path) -> None:
    """A server kept its state in a new file while they held all that it had, and ended for want of one."""
    command = [sys.executable, str(SCRIPTS / "guarded.py"), str(tmp_path), "60", SECRET, "400"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin
        assert child.stdout
        port = int(child.stdout.readline())
        for life in ("one", "two"):
            with unauthenticated(port, 100):
                print(life, file=child.stdin, flush=True)
                assert child.stdout.readline() == "kept\n"
                with wire.connect(f"127.0.0.1:{port}", SECRET) as worker:
                    wire.send(worker, requests.encode(PullWeights()))
                    assert wire.receive_header(worker) == (requests.encode(Weights(0)), 32)
        child.stdin.close()
        assert child.wait() == 0
