"""Messages between workers and parameter servers: a header (requests.py), then raw tensors.

    4-byte length of the header | 8-byte length of the payload | header | payload

A connection begins with mutual proof of the job's secret, by HMAC-SHA256 over the peer's nonce: no other
process reads weights or adds gradients. The messages are neither encrypted nor signed, as in gloo and NCCL.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from collections.abc import Sequence

from ropeteam_trainer.contract.errors import ProtocolError

MOST_HEAD = 1 << 20
_LENGTHS = struct.Struct(">IQ")
NONCE, _PROOF = 16, 32
ANSWER = NONCE + _PROOF
"""Bytes of a worker's answer to the nonce of a server: its own nonce, and its proof."""
_FIRST_ALLOCATION = 1 << 20
_HANDSHAKE_SECONDS = 10.0
"""Timeout of the handshake; afterwards there is no limit on silence."""


class WrongSecret(ProtocolError, ConnectionError):
    """The peer belongs to another job."""


def connect(address: str, secret: str) -> socket.socket:
    """Connect to `host:port` and authenticate both ways. Raises OSError."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=_HANDSHAKE_SECONDS)
    try:
        nonce = secrets.token_bytes(NONCE)
        server_nonce = take(connection, NONCE)
        connection.sendall(nonce + _proof(secret, b"worker", server_nonce))
        if not hmac.compare_digest(take(connection, _PROOF), _proof(secret, b"server", nonce)):
            raise WrongSecret(f"{address} is not a parameter server of this job")
    except BaseException:
        connection.close()
        raise
    settle(connection)
    return connection


def counter_proof(secret: str, nonce: bytes, answer: bytes) -> bytes:
    """A server's proof for a worker's answer to its nonce. Raises ConnectionError."""
    if len(answer) < ANSWER:
        raise ConnectionError("it closed the connection before it had answered")
    if not hmac.compare_digest(answer[NONCE:], _proof(secret, b"worker", nonce)):
        raise WrongSecret("refused a connection that does not have this job's secret")
    return _proof(secret, b"server", answer[:NONCE])


def send(connection: socket.socket, head: bytes, payload: Sequence[memoryview | bytes] = ()) -> None:
    """Send a message; the buffers of `payload` one after the other, without copies."""
    size = sum(len(piece) for piece in payload)
    connection.sendall(_LENGTHS.pack(len(head), size) + head, socket.MSG_MORE if size else 0)
    left = size
    for piece in payload:
        left -= len(piece)
        connection.sendall(piece, socket.MSG_MORE if left else 0)


def receive(connection: socket.socket) -> tuple[bytes, int]:
    """The next header, and the size of the payload, which the caller reads. Raises OSError at the end."""
    length, size = _LENGTHS.unpack(take(connection, _LENGTHS.size))
    if length > MOST_HEAD:
        raise ConnectionError(f"a head of {length} bytes is over the limit of {MOST_HEAD}")
    return bytes(take(connection, length)), size


def take(connection: socket.socket, size: int) -> bytearray:
    """Receive exactly `size` bytes. Memory is allocated as they arrive: a size may be wrong. Raises
    OSError."""
    buffer = bytearray()
    while (begin := len(buffer)) < size:
        buffer.extend(bytes(min(size - begin, max(begin, _FIRST_ALLOCATION))))
        fill(connection, memoryview(buffer)[begin:])
    return buffer


def fill(connection: socket.socket, buffer: memoryview) -> None:
    """Receive exactly as many bytes as `buffer` holds. Raises OSError."""
    begin, size = 0, len(buffer)
    while begin < size:
        count = connection.recv_into(buffer[begin:])
        if count == 0:
            raise ConnectionError("the peer has closed the connection")
        begin += count


def settle(connection: socket.socket) -> None:
    """Set socket options for the time after the handshake."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A machine that vanished sends nothing: without these a read would block for ever.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 5)):
        connection.setsockopt(socket.IPPROTO_TCP, option, seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000)


def _proof(secret: str, who: bytes, nonce: bytes | bytearray) -> bytes:
    return hmac.digest(secret.encode(), who + nonce, "sha256")
