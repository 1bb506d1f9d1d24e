"""Authenticated frames on the connection between an agent and its coordinator.

    4-byte big-endian length | 32-byte HMAC-SHA256 | body (JSON, at most 1 MiB)

The MAC covers the connection's nonce, the direction, the frame's number and the body, keyed by the job's
token: a frame cannot be forged, altered, reflected, replayed or moved to another connection. The coordinator
speaks first: 16 bytes of nonce in clear (`HELLO` + nonce). A frame that fails is answered by closing the
connection with a reason in the log. Pure: bytes in, bytes out; sockets are the caller's.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator

MAX_BODY = 1 << 20
HELLO = b"ROPE\x01"
NONCE_SIZE = 16
TO_COORDINATOR, TO_AGENT = b"C", b"A"
PROXY_HEADER = "X-Ropeteam-Bearer"
"""Holds `http_bearer`; accepted beside `Authorization: Bearer`, which an API server's proxy does not pass
on."""
_MAC_SIZE = 32


class WireError(ConnectionError):
    """The peer is not to be trusted or not one of ours. The text says why; close the connection."""


def http_bearer(token: bytes) -> str:
    """The bearer of `/desired` and `/status`, derived so that seeing it in a proxy's log reveals no token."""
    return hmac.new(token, b"http", hashlib.sha256).hexdigest()


def job_token(operator_key: bytes, job_uid: str) -> bytes:
    return hmac.new(operator_key, b"job:" + job_uid.encode(), hashlib.sha256).digest()


class Sealer:
    """Frames for one direction of one connection."""

    def __init__(self, token: bytes, nonce: bytes, direction: bytes) -> None:
        self._token, self._context, self._number = token, nonce + direction, 0

    def seal(self, body: bytes) -> bytes:
        """Raises WireError for a body over MAX_BODY."""
        if len(body) > MAX_BODY:
            raise WireError(f"message of {len(body)} bytes is over the limit of {MAX_BODY}")
        mac = _mac(self._token, self._context, self._number, body)
        self._number += 1
        return struct.pack(">I", len(body)) + mac + body


class Opener:
    """The other end: feed it what the socket gave, take the bodies that are whole and genuine."""

    def __init__(self, token: bytes, nonce: bytes, direction: bytes) -> None:
        self._token, self._context, self._number = token, nonce + direction, 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Bodies in order. Raises WireError at the first bad frame; the connection is then useless."""
        self._buffer += data
        while len(self._buffer) >= 4:
            (size,) = struct.unpack_from(">I", self._buffer)
            if size > MAX_BODY:
                raise WireError(f"frame announces {size} bytes, the limit is {MAX_BODY}")
            end = 4 + _MAC_SIZE + size
            if len(self._buffer) < end:
                return
            mac, body = bytes(self._buffer[4 : 4 + _MAC_SIZE]), bytes(self._buffer[4 + _MAC_SIZE : end])
            del self._buffer[:end]
            if not hmac.compare_digest(mac, _mac(self._token, self._context, self._number, body)):
                raise WireError("wrong MAC: another job's token, or an altered or replayed frame")
            self._number += 1
            yield body


def _mac(token: bytes, context: bytes, number: int, body: bytes) -> bytes:
    return hmac.new(token, context + struct.pack(">Q", number) + body, hashlib.sha256).digest()
