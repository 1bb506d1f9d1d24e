"""Authenticated frames on the connection between an agent and its coordinator.

    4-byte big-endian length | 32-byte HMAC-SHA256 | body (JSON, at most 1 MiB)

The MAC covers the coordinator's nonce, the direction, the frame's number and the body, keyed by the job's
token and the agent's nonce: a frame cannot be forged, altered, reflected, replayed or moved to another
connection. After a frame that fails the connection is closed, with a reason in the log.

The coordinator sends first, in clear: `HELLO` + nonce. The agent answers with `ANSWER` + a nonce of its own;
without it, recorded frames of a coordinator could be replayed to an agent. To a coordinator that expects it
(`EXPECTS_EMPTY_FRAME`) the agent's first frame is an empty one: it proves the token before a report, which
can be long, is complete. Limits: some releases know no answer. Their agents accept our greeting as theirs,
whose nonces were all random; a coordinator of theirs has no `ACCEPTS_ANSWER`. The connection of such a pair
authenticates the agent only, so an attacker that can record and redirect the traffic of a job could replay
old orders of the same term.

Pure: bytes in, bytes out; the caller has the sockets and the random bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator

from ropeteam_trainer.contract.errors import ProtocolError

MAX_BODY = 1 << 20
HELLO, ANSWER = b"ROPE\x01", b"ROPE\x02"
"""Neither can be the length of a frame."""
NONCE_SIZE = 16
ACCEPTS_ANSWER = b"ASKS"
"""Prefix of the nonce of a coordinator that accepts an answer. The nonce of an older coordinator begins so by
chance once in 4 billion connections: it then closes that connection, and the next one works."""
EXPECTS_EMPTY_FRAME = ACCEPTS_ANSWER + b"PF"
"""Prefix of the nonce of a coordinator that expects an empty frame first. By chance, as above: once in 65,536
connections."""
TO_COORDINATOR, TO_AGENT = b"C", b"A"
PROXY_HEADER = "X-Ropeteam-Bearer"
"""Header with `http_bearer`, where an API server's proxy does not pass `Authorization: Bearer` on."""
_MAC_SIZE = 32
_BLOCK = 64
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))
"""RFC 2104."""
_NUMBER = struct.Struct(">Q")


class WireError(ProtocolError, ConnectionError):
    """Peer that is not to be trusted or not one of ours. The text names the reason; close the connection."""


def http_bearer(token: bytes) -> str:
    """Bearer token of `/desired` and `/status` before contract SIGNED, derived so that it reveals no
    token."""
    return hmac.new(token, b"http", hashlib.sha256).hexdigest()


def job_token(operator_key: bytes, job_uid: str) -> bytes:
    """Token of a job, derived from the operator's key: every operator with that key computes the same one."""
    return hmac.new(operator_key, b"job:" + job_uid.encode(), hashlib.sha256).digest()


def greeting(randbytes: bytes) -> bytes:
    """First bytes that a coordinator sends. `randbytes`: NONCE_SIZE of them; the first few are not used."""
    return HELLO + EXPECTS_EMPTY_FRAME + randbytes[len(EXPECTS_EMPTY_FRAME) :]


def accepts_answer(nonce: bytes) -> bool:
    """Whether this coordinator accepts an answer. False: it is of an older release."""
    return nonce.startswith(ACCEPTS_ANSWER)


def expects_empty_frame(nonce: bytes) -> bool:
    """Whether this coordinator expects an empty frame before the first report."""
    return nonce.startswith(EXPECTS_EMPTY_FRAME)


def parse_answer(token: bytes, received: bytes) -> tuple[bytes, bytes] | None:
    """Key of an agent's connection, from all bytes received so far, and those of them that belong to frames.
    None: more bytes are needed.

    An agent of an older release sends no answer, but begins with a frame: its key is the token.
    """
    if not (received.startswith(ANSWER) or ANSWER.startswith(received)):
        return token, received
    end = len(ANSWER) + NONCE_SIZE
    return (session_key(token, received[len(ANSWER) : end]), received[end:]) if len(received) >= end else None


def session_key(token: bytes, agent_nonce: bytes) -> bytes:
    """Key in place of the token, on a connection for which the agent has sent a nonce too."""
    return hmac.new(token, b"session:" + agent_nonce, hashlib.sha256).digest()


class Sealer:
    """Sender of frames for one direction of one connection. `nonce`: the coordinator's."""

    def __init__(self, key: bytes, nonce: bytes, direction: bytes) -> None:
        self._mac, self._number = _Mac(key, nonce + direction), 0

    def seal(self, body: bytes) -> bytes:
        """Frame with this body. Raises WireError for a body over MAX_BODY."""
        if len(body) > MAX_BODY:
            raise WireError(f"message of {len(body)} bytes is over the limit of {MAX_BODY}; it was not sent")
        mac = self._mac.digest(self._number, body)
        self._number += 1
        return struct.pack(">I", len(body)) + mac + body


class Opener:
    """Receiver of frames for one direction of one connection. `nonce`: the coordinator's."""

    def __init__(self, key: bytes, nonce: bytes, direction: bytes) -> None:
        self._mac, self._number = _Mac(key, nonce + direction), 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add bytes from the socket, in any pieces, and yield the bodies of the frames that are complete, in
        order. Raises WireError at the first bad frame, after the bodies before it: close the connection then.
        Nothing happens before the iteration."""
        self._buffer += data
        while len(self._buffer) >= 4:
            (size,) = struct.unpack_from(">I", self._buffer)
            if size > MAX_BODY:
                # without the size: the log keeps one line of each text
                raise WireError(f"a frame announces too many bytes, the limit is {MAX_BODY}")
            end = 4 + _MAC_SIZE + size
            if len(self._buffer) < end:
                return
            mac, body = bytes(self._buffer[4 : 4 + _MAC_SIZE]), bytes(self._buffer[4 + _MAC_SIZE : end])
            del self._buffer[:end]
            if not hmac.compare_digest(mac, self._mac.digest(self._number, body)):
                raise WireError("wrong MAC: another job's token, or an altered or replayed frame")
            self._number += 1
            yield body


class _Mac:
    """HMAC-SHA256 of frames. The common prefix of their MACs is hashed once: a coordinator opens thousands of
    frames per second, most of them empty."""

    def __init__(self, key: bytes, context: bytes) -> None:
        block = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
        self._inner = hashlib.sha256(block.translate(_INNER) + context)
        self._outer = hashlib.sha256(block.translate(_OUTER))

    def digest(self, number: int, body: bytes) -> bytes:
        """MAC of the frame with this number, from 0, and this body."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(_NUMBER.pack(number) + body)
        outer.update(inner.digest())
        return outer.digest()
