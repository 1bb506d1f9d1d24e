"""Authenticated frames on the connection between an agent and its coordinator.

    4-byte big-endian length | 32-byte HMAC-SHA256 | body (JSON, at most 1 MiB)

The MAC covers the coordinator's nonce, the direction, the frame's number and the body, keyed by the job's
token and the agent's nonce: a frame cannot be forged, altered, reflected, replayed or moved to another
connection. A frame that fails is answered by closing the connection with a reason in the log.

The coordinator speaks first, in clear: `HELLO` + nonce. The agent answers with `ANSWER` + a nonce of its own;
without that, what a coordinator once said could be played to an agent again. To a coordinator that looks for
it (`LOOKS`) the agent's first frame is an empty one: it shows the token before a report, which can be long,
is whole. Limits: some releases know no answer. Their agents take our greeting for theirs, whose nonces were
all random; their coordinators are known by the want of `ASKS`. Such a pair has a connection that only the
coordinator can be sure of, so whoever can record and redirect the traffic of a job could repeat old orders of
the same term.

Pure: bytes in, bytes out; sockets and chance are the caller's.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator

MAX_BODY = 1 << 20
HELLO, ANSWER = b"ROPE\x01", b"ROPE\x02"
"""Neither can be the length of a frame."""
NONCE_SIZE = 16
ASKS = b"ASKS"
"""How the nonce of a coordinator begins that takes an answer. By chance: once in 4 billion connections to an
older one, which closes such a connection; the next one works."""
LOOKS = ASKS + b"PF"
"""The same of one that looks for an empty frame first. By chance, as above: once in 65,536 connections."""
TO_COORDINATOR, TO_AGENT = b"C", b"A"
PROXY_HEADER = "X-Ropeteam-Bearer"
"""Holds `http_bearer` where an API server's proxy does not pass `Authorization: Bearer` on."""
_MAC_SIZE = 32
_BLOCK = 64
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))
"""RFC 2104."""
_NUMBER = struct.Struct(">Q")


class WireError(ConnectionError):
    """The peer is not to be trusted or not one of ours. The text says why; close the connection."""


def http_bearer(token: bytes) -> str:
    """What `/desired` and `/status` asked for before contract SIGNED, derived so that it reveals no token."""
    return hmac.new(token, b"http", hashlib.sha256).hexdigest()


def job_token(operator_key: bytes, job_uid: str) -> bytes:
    return hmac.new(operator_key, b"job:" + job_uid.encode(), hashlib.sha256).digest()


def greeting(chance: bytes) -> bytes:
    """A coordinator's first bytes. `chance`: NONCE_SIZE of them; the first few are not used."""
    return HELLO + LOOKS + chance[len(LOOKS) :]


def asks(nonce: bytes) -> bool:
    """Does this coordinator take an answer? False: it is of an older release."""
    return nonce.startswith(ASKS)


def looks(nonce: bytes) -> bool:
    """Does this coordinator look for an empty frame before the first report?"""
    return nonce.startswith(LOOKS)


def answered(token: bytes, received: bytes) -> tuple[bytes, bytes] | None:
    """What an agent's first bytes mean: the key of its connection, and the bytes that follow.

    None: too few of them yet. An agent of an older release begins with a frame; its key is the token.
    """
    if not (received.startswith(ANSWER) or ANSWER.startswith(received)):
        return token, received
    end = len(ANSWER) + NONCE_SIZE
    return (session_key(token, received[len(ANSWER) : end]), received[end:]) if len(received) >= end else None


def session_key(token: bytes, agent_nonce: bytes) -> bytes:
    """Instead of the token on a connection to which the agent has given a nonce too."""
    return hmac.new(token, b"session:" + agent_nonce, hashlib.sha256).digest()


class Sealer:
    """Frames for one direction of one connection. `nonce`: the coordinator's."""

    def __init__(self, key: bytes, nonce: bytes, direction: bytes) -> None:
        self._mac, self._number = _Mac(key, nonce + direction), 0

    def seal(self, body: bytes) -> bytes:
        """Raises WireError for a body over MAX_BODY."""
        if len(body) > MAX_BODY:
            raise WireError(f"message of {len(body)} bytes is over the limit of {MAX_BODY}")
        mac = self._mac.of(self._number, body)
        self._number += 1
        return struct.pack(">I", len(body)) + mac + body


class Opener:
    """The other end: feed it what the socket gave, take the bodies that are whole and genuine."""

    def __init__(self, key: bytes, nonce: bytes, direction: bytes) -> None:
        self._mac, self._number = _Mac(key, nonce + direction), 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Bodies in order. Raises WireError at the first bad frame; the connection is then useless."""
        self._buffer += data
        while len(self._buffer) >= 4:
            (size,) = struct.unpack_from(">I", self._buffer)
            if size > MAX_BODY:
                raise WireError(f"a frame announces too many bytes, the limit is {MAX_BODY}")
            end = 4 + _MAC_SIZE + size
            if len(self._buffer) < end:
                return
            mac, body = bytes(self._buffer[4 : 4 + _MAC_SIZE]), bytes(self._buffer[4 + _MAC_SIZE : end])
            del self._buffer[:end]
            if not hmac.compare_digest(mac, self._mac.of(self._number, body)):
                raise WireError("wrong MAC: another job's token, or an altered or replayed frame")
            self._number += 1
            yield body


class _Mac:
    """HMAC-SHA256 of frames. What their MACs have in common is hashed once: a coordinator opens thousands of
    frames per second, most of them empty."""

    def __init__(self, key: bytes, context: bytes) -> None:
        block = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
        self._inner = hashlib.sha256(block.translate(_INNER) + context)
        self._outer = hashlib.sha256(block.translate(_OUTER))

    def of(self, number: int, body: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(_NUMBER.pack(number) + body)
        outer.update(inner.digest())
        return outer.digest()
