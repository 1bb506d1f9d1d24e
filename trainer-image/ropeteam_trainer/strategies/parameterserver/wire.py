"""Messages between workers and parameter servers: a head of JSON, then raw tensors.

    4-byte length of the head | 8-byte length of the payload | head | payload

A connection begins with proof of the job's secret, both ways, by HMAC-SHA256 over the other's nonce: nobody
else reads weights or adds gradients. What follows is neither encrypted nor signed, as that of gloo and NCCL.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
from collections.abc import Sequence
from typing import Any

MOST_HEAD = 1 << 20
_LENGTHS = struct.Struct(">IQ")
NONCE, _PROOF = 16, 32
ANSWER = NONCE + _PROOF
"""Bytes of a worker's answer to the nonce of a server: its own nonce, and its proof."""
_PATIENCE_SECONDS = 10.0
"""For the greeting; afterwards a side may be silent as long as it likes."""

Head = dict[str, Any]


class WrongSecret(ConnectionError):
    """The other side belongs to another job."""


def connect(address: str, secret: str) -> socket.socket:
    """A greeted connection to `host:port`. Raises OSError."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=_PATIENCE_SECONDS)
    try:
        nonce = secrets.token_bytes(NONCE)
        theirs = take(connection, NONCE)
        connection.sendall(nonce + _proof(secret, b"worker", theirs))
        if not hmac.compare_digest(take(connection, _PROOF), _proof(secret, b"server", nonce)):
            raise WrongSecret(f"{address} is not a parameter server of this job")
    except BaseException:
        connection.close()
        raise
    settle(connection)
    return connection


def counter_proof(secret: str, nonce: bytes, answer: bytes) -> bytes:
    """What a server says to a worker that has answered its nonce so. Raises ConnectionError."""
    if len(answer) < ANSWER:
        raise ConnectionError("it hung up before it had answered")
    if not hmac.compare_digest(answer[NONCE:], _proof(secret, b"worker", nonce)):
        raise WrongSecret("refused a connection that does not know this job's secret")
    return _proof(secret, b"server", answer[:NONCE])


def send(connection: socket.socket, head: Head, payload: Sequence[memoryview | bytes] = ()) -> None:
    """The pieces of `payload` one after the other, uncopied."""
    body = json.dumps(head).encode()
    size = sum(len(piece) for piece in payload)
    connection.sendall(_LENGTHS.pack(len(body), size) + body, socket.MSG_MORE if size else 0)
    left = size
    for piece in payload:
        left -= len(piece)
        connection.sendall(piece, socket.MSG_MORE if left else 0)


def receive(connection: socket.socket) -> tuple[Head, int]:
    """The next head, and the bytes of payload that the caller takes next. Raises OSError at the end."""
    length, size = _LENGTHS.unpack(take(connection, _LENGTHS.size))
    if length > MOST_HEAD:
        raise ConnectionError(f"a head of {length} bytes is over the limit of {MOST_HEAD}")
    head: Head = json.loads(bytes(take(connection, length)))
    return head, size


def take(connection: socket.socket, size: int) -> bytearray:
    room = bytearray(size)
    fill(connection, memoryview(room))
    return room


def fill(connection: socket.socket, room: memoryview) -> None:
    """Receive exactly as much as there is room for. Raises OSError."""
    begin, size = 0, len(room)
    while begin < size:
        count = connection.recv_into(room[begin:])
        if count == 0:
            raise ConnectionError("the other side has hung up")
        begin += count


def settle(connection: socket.socket) -> None:
    """For what follows the greeting."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A machine that vanished says nothing: without these a read would wait for ever.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 5)):
        connection.setsockopt(socket.IPPROTO_TCP, option, seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000)


def _proof(secret: str, who: bytes, nonce: bytes | bytearray) -> bytes:
    return hmac.digest(secret.encode(), who + nonce, "sha256")
