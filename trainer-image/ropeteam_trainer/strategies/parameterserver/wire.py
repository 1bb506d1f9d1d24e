"""Messages between workers and parameter servers: a header (requests.py), then raw tensors.

    4-byte length of the header | 8-byte length of the payload | header | payload

The handshake is that of replicas under sync Exact, too. A connection begins with mutual proof of the job's
secret, by HMAC-SHA256 over the peer's nonce: no other process reads weights or adds gradients. The messages
are neither encrypted nor signed, as in gloo and NCCL.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from collections.abc import Sequence

from ropeteam_trainer.contract.errors import ProtocolError

MAX_HEADER_BYTES = 1 << 20
"""Limit of a header, whose length comes from a peer."""
_LENGTHS = struct.Struct(">IQ")
NONCE_BYTES, _PROOF_BYTES = 16, 32
ANSWER_BYTES = NONCE_BYTES + _PROOF_BYTES
"""Bytes of a worker's answer to the nonce of a server: its own nonce, and its proof."""
_FIRST_ALLOCATION = 1 << 20
"""Bytes allocated for a payload before any of it has arrived."""
_CONNECT_SECONDS = 10.0
"""Timeout of the connection and of each step of the handshake, for a worker. After it there is none: a server
may let a worker wait for minutes."""


class WrongSecret(ProtocolError, ConnectionError):
    """The peer has not proved that it knows the job's secret: it belongs to another job, or to another server
    generation of this one."""


def connect(address: str, secret: str, peer: str = "parameter server") -> socket.socket:
    """Connect a worker to the server at `host:port`, and authenticate both ways: the server's nonce, then
    this side's nonce and proof, then the server's proof. Raises WrongSecret, and OSError."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS)
    try:
        nonce = secrets.token_bytes(NONCE_BYTES)
        server_nonce = receive_exactly(connection, NONCE_BYTES)
        connection.sendall(nonce + _proof(secret, b"worker", server_nonce))
        if not hmac.compare_digest(
            receive_exactly(connection, _PROOF_BYTES), _proof(secret, b"server", nonce)
        ):
            raise WrongSecret(
                f"the {peer} at {address} does not have this job's secret: another job's process has taken "
                "this address, or it belongs to another start of this job"
            )
    except BaseException:
        connection.close()
        raise
    set_socket_options(connection)
    return connection


def verify_worker_and_prove(secret: str, nonce: bytes, answer: bytes) -> bytes:
    """Verify a worker's answer to the server's `nonce` (ANSWER_BYTES long), and return the server's own
    proof. Raises WrongSecret if the worker has not proved that it knows the secret, ConnectionError for a
    shorter answer. Nothing is sent."""
    if len(answer) < ANSWER_BYTES:
        raise ConnectionError("the worker closed the connection during the handshake")
    if not hmac.compare_digest(answer[NONCE_BYTES:], _proof(secret, b"worker", nonce)):
        raise WrongSecret("its peer does not have this job's secret")
    return _proof(secret, b"server", answer[:NONCE_BYTES])


def send(connection: socket.socket, header: bytes, payload: Sequence[memoryview | bytes] = ()) -> None:
    """Send a message; the buffers of `payload` one after the other, without copies. Raises OSError.

    MSG_MORE lets the kernel fill packets across buffers; without it TCP_NODELAY would send each by itself.
    """
    size = sum(len(buffer) for buffer in payload)
    connection.sendall(_LENGTHS.pack(len(header), size) + header, socket.MSG_MORE if size else 0)
    left = size
    for buffer in payload:
        left -= len(buffer)
        connection.sendall(buffer, socket.MSG_MORE if left else 0)


def receive_header(connection: socket.socket) -> tuple[bytes, int]:
    """Receive the next header. Returns it, and the size of the payload, which the caller must receive next.
    Raises OSError, also where the peer has closed the connection."""
    length, size = _LENGTHS.unpack(receive_exactly(connection, _LENGTHS.size))
    if length > MAX_HEADER_BYTES:
        raise ConnectionError(
            f"the peer sent a header of {length} bytes, over the limit of {MAX_HEADER_BYTES}"
        )
    return bytes(receive_exactly(connection, length)), size


def receive_exactly(connection: socket.socket, size: int) -> bytearray:
    """Receive exactly `size` bytes. Memory is allocated as they arrive, at most twice of that, since a peer
    may send a wrong size. Raises OSError."""
    buffer = bytearray()
    while (begin := len(buffer)) < size:
        buffer.extend(bytes(min(size - begin, max(begin, _FIRST_ALLOCATION))))
        receive_into(connection, memoryview(buffer)[begin:])
    return buffer


def receive_into(connection: socket.socket, buffer: memoryview) -> None:
    """Receive exactly len(buffer) bytes into the buffer. Raises OSError."""
    begin, size = 0, len(buffer)
    while begin < size:
        count = connection.recv_into(buffer[begin:])
        if count == 0:
            raise ConnectionError("the peer has closed the connection")
        begin += count


def set_socket_options(connection: socket.socket) -> None:
    """Set the options for the time after the handshake: no timeout, no delay of small messages, and detection
    of a peer whose machine is gone within ten seconds."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A machine that vanished sends nothing: without these a read would block for ever.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 5)):
        connection.setsockopt(socket.IPPROTO_TCP, option, seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000)


def _proof(secret: str, who: bytes, nonce: bytes | bytearray) -> bytes:
    """Proof of one side that it has the secret. `who`: b"worker" or b"server", so that no side can return the
    proof of the other. `nonce`: the other side's."""
    return hmac.digest(secret.encode(), who + nonce, "sha256")
