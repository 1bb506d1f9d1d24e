"""Signatures of requests to a coordinator's HTTP port, and of its responses.

    X-Ropeteam-Signature: <nonce> <challenge> <SHA-256 of the body> <MAC>    a request
    X-Ropeteam-Signature: <next challenge> <MAC>                             its response

MACs are HMAC-SHA256 in hex, with one key for each direction, derived from the job's token. The MAC of a
request covers method, path, job, term and the fields before the MAC, so it is verified before the body is
read. The MAC of a response covers the request's whole signature, status, next challenge and body: a response
is valid for this request only.

The two share no clock, so a coordinator issues the one challenge that it accepts. A request that changes
something uses it up: a replayed request is refused, and so is a delayed one, once a later request was
accepted or CHALLENGE_SECONDS have passed. Each genuine response carries the next challenge, so each request
of a conversation costs one round trip. A caller without the current challenge (the coordinator has restarted,
the operator is another one, or another one has called meanwhile) is refused, receives the current one, and
repeats its request once. Nothing can have been recorded yet of a coordinator's first process: until it has
accepted a request it accepts one without a challenge. There is one challenge for all callers. A request that
only reads uses none up: as long as the challenge is valid, a replay of it is answered too.
Limits: nothing is encrypted.

Pure: random bytes and time are arguments.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field

HEADER = "X-Ropeteam-Signature"
"""Header that an API server's proxy passes on."""
CHALLENGE_SECONDS = 60.0
NONCE_SIZE = 16
_NO_CHALLENGE = "0" * 2 * NONCE_SIZE
_REQUEST = re.compile("[0-9a-f]{32} [0-9a-f]{32} [0-9a-f]{64} [0-9a-f]{64}")
_ANSWER = re.compile("[0-9a-f]{32} [0-9a-f]{64}")


@dataclass(frozen=True)
class Keys:
    """MAC keys for one coordinator, at both ends."""

    token: bytes = field(repr=False)
    job_uid: str
    term: int

    def request_mac(self, target: str, prefix: str) -> str:
        """MAC of a request. `target`: method and path. `prefix`: the signature's fields before the MAC."""
        return self._mac(b"request", f"{target}\n{self.job_uid}\n{self.term}\n{prefix}".encode())

    def response_mac(self, request: str, status: int, challenge: str, body: bytes) -> str:
        """MAC of a response. `request`: signature of the request."""
        return self._mac(b"answer", f"{request}\n{status}\n{challenge}\n".encode() + body)

    def _mac(self, use: bytes, text: bytes) -> str:
        key = hmac.new(self.token, b"signed " + use, hashlib.sha256).digest()
        return hmac.new(key, text, hashlib.sha256).hexdigest()


class Client:
    """Client end: an operator, or a command of the CLI."""

    def __init__(self, keys: Keys) -> None:
        self._keys, self._challenge = keys, _NO_CHALLENGE

    def sign(self, target: str, body: bytes, nonce: bytes) -> str:
        """Signature of a request. `nonce`: NONCE_SIZE random bytes."""
        prefix = f"{nonce.hex()} {self._challenge} {_digest(body)}"
        return f"{prefix} {self._keys.request_mac(target, prefix)}"

    def is_genuine(self, signature: str, status: int, given: str, body: bytes) -> bool:
        """Whether this is the coordinator's response to the request with this signature. `given`: the header
        of the response. A genuine response, also a refusal, sets the challenge of the next request."""
        if not _ANSWER.fullmatch(given):
            return False
        challenge, mac = given.split(" ")
        if not hmac.compare_digest(mac, self._keys.response_mac(signature, status, challenge, body)):
            return False
        self._challenge = challenge
        return True


class Server:
    """Coordinator's end. `now` and `began` are seconds of one clock. `randbytes(n)`: n random bytes. `began`:
    now, if no process of this term has accepted requests before; None: one may have.
    """

    def __init__(self, keys: Keys, randbytes: Callable[[int], bytes], began: float | None = None) -> None:
        self._keys, self._randbytes = keys, randbytes
        self._challenge, self._issued_at = ("", float("-inf")) if began is None else (_NO_CHALLENGE, began)

    def admit(self, target: str, signature: str, now: float) -> bool:
        """Accept a request whose signature is valid, or return False. Unless it only reads (GET) this uses up
        the challenge. The body is not verified yet: see covers()."""
        if not _REQUEST.fullmatch(signature):
            return False
        prefix, _, mac = signature.rpartition(" ")
        given, current = prefix.split(" ")[1], self._current_challenge(now)
        if not hmac.compare_digest(mac, self._keys.request_mac(target, prefix)) or given != current:
            return False
        if not target.startswith("GET "):
            self._challenge = ""
        return True

    def sign(self, signature: str, status: int, body: bytes, now: float) -> str:
        """Header of the response to the request with this signature; "" if that has not the form of one.
        Carries the challenge of the next request, also in a refusal. Call it after admit()."""
        if not _REQUEST.fullmatch(signature):
            return ""
        challenge = self._current_challenge(now)
        return f"{challenge} {self._keys.response_mac(signature, status, challenge, body)}"

    def _current_challenge(self, now: float) -> str:
        """Challenge that is accepted now. Issues a new one if the last is used up or has expired."""
        if not self._challenge or now >= self._issued_at + CHALLENGE_SECONDS:
            self._challenge, self._issued_at = self._randbytes(NONCE_SIZE).hex(), now
        return self._challenge


def covers(signature: str, body: bytes) -> bool:
    """Whether this is the body that was signed. `signature`: of a request that Server.admit() has
    accepted."""
    return signature.split(" ")[2] == _digest(body)


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
