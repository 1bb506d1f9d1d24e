"""A parameter server refuses what is no request, and lives: it keeps the only copy of its parameters."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from lab.ranks.processes import SCRIPTS

from ropeteam_trainer.strategies.parameterserver import requests, wire
from ropeteam_trainer.strategies.parameterserver.client import ServerConnection
from ropeteam_trainer.strategies.parameterserver.payloads import packed
from ropeteam_trainer.strategies.parameterserver.requests import (
    PullWeights,
    ReplaceShare,
    ServerRefused,
    Weights,
)

SECRET = "of this job"
PUSH: dict[str, Any] = {"do": "push", "worker": 0, "epoch": [1, 0, 1], "n": 0, "of": 1, "version": 0}
PUSH |= {"values": [{"lr": 1.0}], "lacking": []}
SIZE = 32
"""Bytes of the parameters of guarded.py."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    command = [sys.executable, str(SCRIPTS / "guarded.py"), str(folder), "1024", SECRET, "8"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        yield f"127.0.0.1:{child.stdout.readline().strip()}"
        _, log = child.communicate()
        assert child.returncode == 0
    assert "ropeteam: refused a request of 127.0.0.1: " in log


BAD = [
    (b"\xff", b"", "not JSON"),
    (b"[1]", b"", "not a JSON object"),
    (b'{"do": "explode"}', b"", "unknown request 'explode'"),
    (b'{"do": "push"}', b"", "missing worker"),
    (PUSH | {"worker": -1}, bytes(SIZE), "no worker has the number -1: there are 1"),
    (PUSH | {"worker": 1}, bytes(SIZE), "no worker has the number 1: there are 1"),
    (PUSH | {"of": 2}, bytes(SIZE), "a step of 2 gradients, but there are 1 workers"),
    (PUSH, bytes(SIZE - 4), "28 bytes of gradients for 32 bytes of parameters"),
    (PUSH | {"values": [{}, {}]}, bytes(SIZE), "has 2 parameter groups, the server's 1"),
    (PUSH | {"values": [{"lr": "fast"}]}, bytes(SIZE), "hyperparameter 'lr' is not a number"),
    (b'{"do": "take", "generation": "ab"}', b"no pickle", "state from the chief cannot be read"),
    (b'{"do": "take", "generation": "ab"}', packed([]), "for parameter weight"),
    (b'{"do": "take", "generation": "ab"}', packed({"weight": {"": torch.ones(4)}}), "for parameter weight"),
]


@pytest.mark.parametrize(("head", "payload", "reason"), BAD)
def test_a_server_refuses_what_is_no_request_and_serves_on(
    head: bytes | dict[str, Any], payload: bytes, reason: str, address: str
) -> None:
    with wire.connect(address, SECRET) as peer:
        wire.send(peer, head if isinstance(head, bytes) else json.dumps(head).encode(), [payload])
        answer, size = wire.receive_header(peer)
        assert reason in json.loads(answer)["error"]
        assert (size, peer.recv(1)) == (0, b"")
    with wire.connect(address, SECRET) as worker:
        wire.send(worker, requests.encode(PullWeights()))
        assert wire.receive_header(worker) == (requests.encode(Weights(0)), SIZE)


def test_a_payload_takes_no_memory_before_it_arrives(address: str) -> None:
    head = requests.encode(PullWeights())
    with wire.connect(address, SECRET) as peer, wire.connect(address, SECRET) as worker:
        peer.sendall(len(head).to_bytes(4, "big") + (1 << 60).to_bytes(8, "big") + head + bytes(3 << 20))
        wire.send(worker, head)
        assert wire.receive_header(worker) == (requests.encode(Weights(0)), SIZE)


def test_who_is_refused_does_not_try_again(address: str) -> None:
    line = ServerConnection(0, lambda: (address,), SECRET, nullcontext)
    with pytest.raises(ServerRefused, match="state from the chief cannot be read"):
        line.call(ReplaceShare("ab"), [b"no pickle"])
    line.close()
