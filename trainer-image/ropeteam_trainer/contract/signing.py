"""Requests to a coordinator's second port, and its answers, signed both ways.

    X-Ropeteam-Signature: <nonce> <challenge> <SHA-256 of the body> <MAC>    a request
    X-Ropeteam-Signature: <next challenge> <MAC>                             its answer

MACs are HMAC-SHA256 in hex, each way by a key of its own that comes of the job's token. A request's covers
method, path, job, term and the words before it, so it is judged before its body is read. An answer's covers
the request's whole signature, status, next challenge and body: it answers this request and no other.

The two share no clock, so a coordinator names the one challenge that it takes. A request that changes
something uses it up: a recording is refused, and so is what was held back, once a later request was taken or
CHALLENGE_SECONDS have passed. Each genuine answer brings the next challenge, so a conversation costs one
round trip a time; who comes without one (a coordinator that has restarted, another operator, or another one
spoke meanwhile) is refused with the one that holds, and asks again once. Nothing was recorded yet of a
coordinator's first process: until it has taken a request it takes one without a challenge. One challenge is
held, whoever asks. A request that only reads uses none up: as long as it holds, a recording of it is answered
too.
Limits: nothing is hidden from who sees the traffic.

Pure: chance and time are the caller's.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field

HEADER = "X-Ropeteam-Signature"
"""An API server's proxy passes it on."""
CHALLENGE_SECONDS = 60.0
NONCE_SIZE = 16
_NONE = "0" * 2 * NONCE_SIZE
_REQUEST = re.compile("[0-9a-f]{32} [0-9a-f]{32} [0-9a-f]{64} [0-9a-f]{64}")
_ANSWER = re.compile("[0-9a-f]{32} [0-9a-f]{64}")


@dataclass(frozen=True)
class Keys:
    """Of one coordinator, at both ends."""

    token: bytes = field(repr=False)
    job_uid: str
    term: int

    def of_request(self, what: str, words: str) -> str:
        """`what`: method and path. `words`: those before the MAC."""
        return self._mac(b"request", f"{what}\n{self.job_uid}\n{self.term}\n{words}".encode())

    def of_answer(self, request: str, status: int, challenge: str, body: bytes) -> str:
        """`request`: its signature."""
        return self._mac(b"answer", f"{request}\n{status}\n{challenge}\n".encode() + body)

    def _mac(self, use: bytes, text: bytes) -> str:
        key = hmac.new(self.token, b"signed " + use, hashlib.sha256).digest()
        return hmac.new(key, text, hashlib.sha256).hexdigest()


class Caller:
    """The end that asks: an operator, or a person's command."""

    def __init__(self, keys: Keys) -> None:
        self._keys, self._challenge = keys, _NONE

    def sign(self, what: str, body: bytes, nonce: bytes) -> str:
        """`nonce`: NONCE_SIZE bytes of chance."""
        words = f"{nonce.hex()} {self._challenge} {_digest(body)}"
        return f"{words} {self._keys.of_request(what, words)}"

    def believes(self, signature: str, status: int, given: str, body: bytes) -> bool:
        """Is this the coordinator's answer to the request that we signed so? `given`: the answer's header."""
        if not _ANSWER.fullmatch(given):
            return False
        challenge, mac = given.split(" ")
        if not hmac.compare_digest(mac, self._keys.of_answer(signature, status, challenge, body)):
            return False
        self._challenge = challenge
        return True


class Gate:
    """The coordinator's end. `chance`: so many bytes of it. `began`: now, if no process of this term has
    taken requests before; None: one may have.
    """

    def __init__(self, keys: Keys, chance: Callable[[int], bytes], began: float | None = None) -> None:
        self._keys, self._chance = keys, chance
        self._challenge, self._made_at = ("", float("-inf")) if began is None else (_NONE, began)

    def admits(self, what: str, signature: str, now: float) -> bool:
        """May this be done? Once, unless it only reads. Ask `covers` of its body."""
        if not _REQUEST.fullmatch(signature):
            return False
        words, _, mac = signature.rpartition(" ")
        named, holds = words.split(" ")[1], self._holds(now)
        if not hmac.compare_digest(mac, self._keys.of_request(what, words)) or named != holds:
            return False
        if not what.startswith("GET "):
            self._challenge = ""
        return True

    def sign(self, signature: str, status: int, body: bytes, now: float) -> str:
        """The header of the answer to the request that was signed so; "" if it was not signed at all."""
        if not _REQUEST.fullmatch(signature):
            return ""
        challenge = self._holds(now)
        return f"{challenge} {self._keys.of_answer(signature, status, challenge, body)}"

    def _holds(self, now: float) -> str:
        """The challenge that is taken now."""
        if not self._challenge or now >= self._made_at + CHALLENGE_SECONDS:
            self._challenge, self._made_at = self._chance(NONCE_SIZE).hex(), now
        return self._challenge


def covers(signature: str, body: bytes) -> bool:
    """Is this the body of the request that was admitted with this signature?"""
    return signature.split(" ")[2] == _digest(body)


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
