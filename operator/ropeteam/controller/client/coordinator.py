"""The one request to a job's coordinator: send the desired state, receive a report.

    PUT http://<clusterIP>:29402/desired    Desired -> JobReport

Short timeouts, no retry: the next reconcile sends it again, and training does not wait for the operator. Only
an expired challenge leads to a retry at once (contract/signing.py).
Request and answer are signed with the job's token. An answer of anybody else is rejected, but everybody who
may create pods in a namespace can read the token there, and a coordinator of an earlier release signs
nothing. So an answer is read up to a size and a time limit, is not decompressed, and no redirect is followed;
the result is a report within bounds (core/seen/bounds.py) or CoordinatorUnreachable, with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random, SystemRandom
from typing import Protocol, Self

import aiohttp

from ropeteam.controller.client.apiclient import Fenced
from ropeteam.core.seen import bounds
from ropeteam_trainer.contract import SIGNED, codec, signing, wire
from ropeteam_trainer.contract.config import COORDINATOR_HTTP_PORT
from ropeteam_trainer.contract.desired import Desired, JobReport
from ropeteam_trainer.contract.errors import RopeteamError

_TIMEOUT = aiohttp.ClientTimeout(total=3, connect=1)
_BASE_BYTES, _SLOT_BYTES = 1 << 20, 4 << 10
"""Limits of the size of a report. The base: ten incidents with 20 lines of output each, if every character of
them is an escape, take 300 KiB. A slot: 900 bytes if its node's name is of the longest, and a replacement is
requested with a message of 360 characters; some contain a whole PATH."""
_BASE_VALUES, _SLOT_VALUES = 100_000, 128
"""Limits of the brackets and commas in it: 3 bytes, like `[],`, take a hundred when parsed. A slot of ours
has twenty, and up to a hundred in its messages."""
_REFUSAL_BYTES, _QUOTED_CHARACTERS = 16 << 10, 300
"""Of an answer that is no report: bytes that are read, and characters that the error message quotes."""
_DESIRED = "PUT /desired"
_CHANCE = SystemRandom()


class CoordinatorUnreachable(RopeteamError):
    """No report was received. The text is the short reason."""


class RequestAuth(Protocol):
    """Authentication of requests to a coordinator, and of its answers."""

    def headers(self, what: str, body: bytes, chance: Random) -> dict[str, str]:
        """The headers that authenticate a request."""
        ...

    def is_authentic(self, headers: dict[str, str], status: int, signature: str, body: bytes) -> bool:
        """Whether this is the coordinator's answer to the request with these headers."""
        ...


class SignedAuth:
    def __init__(self, keys: signing.Keys) -> None:
        self._caller = signing.Client(keys)

    def headers(self, what: str, body: bytes, chance: Random) -> dict[str, str]:
        return {signing.HEADER: self._caller.sign(what, body, chance.randbytes(signing.NONCE_SIZE))}

    def is_authentic(self, headers: dict[str, str], status: int, signature: str, body: bytes) -> bool:
        return self._caller.is_genuine(headers[signing.HEADER], status, signature, body)


class BearerAuth:
    """For coordinators of earlier releases, which sign nothing."""

    def __init__(self, bearer: str) -> None:
        self._headers = {wire.PROXY_HEADER: bearer}

    def headers(self, what: str, body: bytes, chance: Random) -> dict[str, str]:  # noqa: ARG002
        return self._headers

    def is_authentic(self, headers: dict[str, str], status: int, signature: str, body: bytes) -> bool:  # noqa: ARG002
        return True


def auth_for(keys: signing.Keys, contract: int) -> RequestAuth:
    """The authentication for one coordinator. `contract`: from the config of the coordinator's pod, which
    nobody can change. The answering process has no influence on it: it would choose the bearer."""
    return SignedAuth(keys) if contract >= SIGNED else BearerAuth(wire.http_bearer(keys.token))


def _connect() -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # a Service may lead to another pod by now
    return aiohttp.ClientSession(
        connector=connector, timeout=_TIMEOUT, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
    )


class Coordinators:
    """The coordinators of all jobs. Use as `async with`. `may_write`, `connect`: as for ApiClient; `chance`:
    for nonces."""

    def __init__(
        self,
        port: int = COORDINATOR_HTTP_PORT,
        may_write: Callable[[], bool] = lambda: True,
        connect: Callable[[], aiohttp.ClientSession] = _connect,
        chance: Random = _CHANCE,
    ) -> None:
        self._port, self._may_write, self._connect, self._chance = port, may_write, connect, chance

    async def __aenter__(self) -> Self:
        self._session = self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send_desired(self, address: str, auth: RequestAuth, desired: Desired) -> JobReport:
        """Send the desired state; returns the report. Raises CoordinatorUnreachable, Fenced."""
        try:
            report = codec.decode(JobReport, await self._put(address, auth, desired))
            if report.term != desired.term:  # a genuine one would have answered 409
                raise CoordinatorUnreachable(f"its report is of term {report.term}, not of {desired.term}")
            return bounds.bounded(report, len(desired.slots))
        except TimeoutError:
            why = f"no answer within {_TIMEOUT.total:.0f} s"
        except codec.DecodeError as error:
            why = f"its report cannot be decoded: {error}"
        except bounds.OutOfBounds as error:
            why = f"its report is out of bounds: {error}"
        except (CoordinatorUnreachable, aiohttp.ClientError, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
        raise CoordinatorUnreachable(f"{address}: {_printable(why)}")

    async def _put(self, address: str, auth: RequestAuth, desired: Desired) -> bytes:
        """Send the PUT. Raises CoordinatorUnreachable, errors of aiohttp: ClientError, for odd headers
        ValueError."""
        body, most = codec.encode(desired), _BASE_BYTES + _SLOT_BYTES * len(desired.slots)
        status, content = await self._send(address, auth, body, most)
        if status == 401 and isinstance(auth, SignedAuth):  # its answer carried a new challenge
            status, content = await self._send(address, auth, body, most)
        if status != 200:
            raise CoordinatorUnreachable(_quoted(status, content))
        values = sum(map(content.count, (b"[", b"{", b",")))
        if values > _BASE_VALUES + _SLOT_VALUES * len(desired.slots):
            raise CoordinatorUnreachable(f"its report has {values} values, more than a job of this size has")
        return content

    async def _send(self, address: str, auth: RequestAuth, body: bytes, most: int) -> tuple[int, bytes]:
        """Send one request. Returns status and body of an authenticated answer."""
        if not self._may_write():
            raise Fenced(f"{address}: this operator is no longer the leader")
        proof, url = auth.headers(_DESIRED, body, self._chance), f"http://{address}:{self._port}/desired"
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **proof}
        async with self._session.put(url, data=body, headers=headers, allow_redirects=False) as answer:
            encoding = answer.headers.get("Content-Encoding", "")
            if encoding:
                raise CoordinatorUnreachable(
                    f"its answer is compressed ({encoding}), which was not requested"
                )
            status, signature = answer.status, answer.headers.get(signing.HEADER, "")
            content = await _read(answer.content, most if status == 200 else _REFUSAL_BYTES)
        if status == 200 and len(content) > most:
            raise CoordinatorUnreachable(f"its answer has more than {most} bytes")
        if not auth.is_authentic(proof, status, signature, content):
            raise CoordinatorUnreachable(
                f"its answer is not signed with this job's token: {_quoted(status, content)}"
            )
        return status, content


def _quoted(status: int, content: bytes) -> str:
    return f"HTTP {status}: {content[:_QUOTED_CHARACTERS].decode(errors='replace')}"


async def _read(stream: aiohttp.StreamReader, most: int) -> bytes:
    """The whole body, or its beginning, of a little over `most` bytes."""
    content = bytearray()
    async for part in stream.iter_any():
        content += part
        if len(content) > most:
            break
    return bytes(content)


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text[:_QUOTED_CHARACTERS])
