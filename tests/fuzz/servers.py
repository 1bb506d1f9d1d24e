"""A parameter server (29404) on its real port: greetings of unauthenticated clients, and requests of peers.

Unauthenticated: no client is admitted that has not shown the secret, and a worker that knows it is admitted
afterwards. Peers with the secret: whatever request they send, the server lives, and sends weights.
Limits: a peer is a rank of the same job. Hyperparameters that no optimizer takes end the server, loudly, as
any rank that fails; they are not tried here, and neither is a worker that leaves.
"""

from __future__ import annotations

import asyncio
import hmac
import io
import json
import os
import queue
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, redirect_stderr, suppress
from random import Random
from typing import Any
from unittest.mock import patch

import torch
from tests.fuzz import mutations
from tests.fuzz.campaign import Attempt, Campaign

from ropeteam_trainer.contract.strategy import ParameterServer
from ropeteam_trainer.strategies.parameterserver import ledger, requests, wire
from ropeteam_trainer.strategies.parameterserver.admission import Admission
from ropeteam_trainer.strategies.parameterserver.chief import Chief, FullModel
from ropeteam_trainer.strategies.parameterserver.payloads import packed
from ropeteam_trainer.strategies.parameterserver.requests import (
    EndServing,
    FetchGeneration,
    FetchShare,
    PullWeights,
    PushGradient,
    Register,
    ReplaceShare,
    ReportStep,
    Request,
    RequestStep,
    SendProgress,
)
from ropeteam_trainer.strategies.parameterserver.service import Server
from ropeteam_trainer.strategies.parameterserver.share import Share

SECRET, PLACES, AT_ONCE = "of this job", 8, 16


def draw(chance: Random) -> bytes:
    nonce = chance.randbytes(wire.NONCE_BYTES)
    proof = hmac.digest(b"another", b"worker" + nonce, "sha256")
    pull = b"\0\0\0\x0e" + b"\0" * 8 + b'{"do": "pull"}'
    whole = chance.choice((nonce + proof, nonce + proof + pull, pull, nonce * 9, b"GET / HTTP/1.1\r\n\r\n"))
    return mutations.damaged(chance, whole) if chance.random() < 0.7 else whole


@asynccontextmanager
async def _admission() -> AsyncIterator[Attempt]:
    listener = socket.create_server(("127.0.0.1", 0))
    address, inside = f"127.0.0.1:{listener.getsockname()[1]}", queue.Queue[socket.socket]()

    def admit(connection: socket.socket) -> None:
        inside.put(connection)
        with suppress(OSError):  # it may be closed by now
            connection.sendall(b"x" * wire.ANSWER_BYTES)  # a client that waits to be refused gets an answer

    admission = Admission(listener, SECRET, PLACES, admit)

    def attempt(case: bytes) -> str:
        with socket.create_connection(listener.getsockname(), 30) as client, suppress(OSError):
            client.recv(wire.NONCE_BYTES)
            client.sendall(case)
            client.shutdown(socket.SHUT_WR)
            while client.recv(1 << 16) and inside.empty():
                pass
        assert inside.empty()
        return "kept out"

    async def attempted(case: bytes) -> list[str]:
        return [attempt(case)]

    with redirect_stderr(io.StringIO()):
        admission.open()
        yield attempted
        worker = await asyncio.to_thread(wire.connect, address, SECRET)
        inside.get().close()
        worker.close()
        admission.close()


ME = (0, (1, 0, 1))
GRADIENT = bytes(12)
CONTENT = packed({"weight": {"": torch.zeros(3)}})
REQUESTS: tuple[tuple[Request[Any], bytes], ...] = (
    (Register(*ME), b""),
    (RequestStep(*ME, 0), b""),
    (PushGradient(*ME, 0, 1, ({"lr": 0.5, "foreach": None},), 0, (0,)), GRADIENT),
    (ReportStep(*ME, 1), packed({"clock": 1})),
    (PullWeights(), b""),
    (FetchGeneration(), b""),
    (FetchShare(), b""),
    (ReplaceShare("ab"), CONTENT),
    (SendProgress(3, drained=True), b""),
    (EndServing(), b""),
)


def draw_request(chance: Random) -> bytes:
    request, payload = chance.choice(REQUESTS)
    plain = json.loads(requests.encode(request))
    if chance.random() < 0.7:
        plain = mutations.bent(chance, plain, keep=lambda path: path[0] == "values")
    head = mutations.written(plain)
    if chance.random() < 0.3:
        payload = mutations.damaged(chance, payload)
    frame = len(head).to_bytes(4, "big") + len(payload).to_bytes(8, "big") + head + payload
    return mutations.damaged(chance, frame) if chance.random() < 0.1 else frame


def _chief() -> tuple[Server, str]:
    """The server of one worker, and its address."""
    model = torch.nn.ParameterDict({"weight": torch.nn.Parameter(torch.ones(3))})
    named = dict(model.named_parameters())
    optimizer = torch.optim.SGD(named.values(), lr=0.5)
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(Share(named, optimizer, None, 1), listener, SECRET, ParameterServer(), PLACES)
    rules = ledger.Rules(1)
    chief = Chief(FullModel(named, model, optimizer, 1), server, _no_other, rules, None)
    server.start()
    chief.begin_generation(ledger.new_ledger(rules), [packed({"clock": 0})])
    server.set_ready()
    return server, f"127.0.0.1:{listener.getsockname()[1]}"


def _no_other(index: int, request: Request[Any], payload: bytes = b"") -> Any:
    raise AssertionError(f"{request} of {len(payload)} bytes for server {index}: there is one")


class _Nowhere(io.StringIO):
    def write(self, text: str) -> int:
        return len(text)


@asynccontextmanager
async def _server() -> AsyncIterator[Attempt]:
    ends: list[int] = []

    async def attempted(case: bytes) -> list[str]:
        answers = b""
        with wire.connect(address, SECRET) as peer, suppress(OSError):  # it closes what it does not read
            peer.sendall(case)
            peer.shutdown(socket.SHUT_WR)
            while more := peer.recv(1 << 16):
                answers += more
        assert not ends
        return ["refused" if b'{"error"' in answers else "answered" if answers else "closed"]

    with redirect_stderr(_Nowhere()), patch.object(os, "_exit", ends.append):
        server, address = _chief()
        yield attempted
        with wire.connect(address, SECRET) as worker:
            wire.send(worker, requests.encode(PullWeights()))
            assert wire.receive_header(worker)[1] == len(GRADIENT)
        server.close()


CAMPAIGNS = (
    Campaign("servers", "greetings", 1_000_000, draw, _admission),
    Campaign("requests", "requests", 100_000, draw_request, _server),
)
