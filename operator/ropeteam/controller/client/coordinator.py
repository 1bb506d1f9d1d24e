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
    """Authentication of requests to one coordinator, and of its answers."""

    def headers(self, target: str, body: bytes, chance: Random) -> dict[str, str]:
        """The headers that authenticate a request. `target`: method and path. `chance`: for a nonce."""
        ...

    def is_authentic(self, headers: dict[str, str], status: int, signature: str, body: bytes) -> bool:
        """Whether this is the coordinator's answer to the request with these headers. `signature`: the header
        of the answer, "" without one."""
        ...


class SignedAuth:
    """Signatures of requests and answers (contract/signing.py). It has a state: an authentic answer carries
    the challenge for the next request."""

    def __init__(self, keys: signing.Keys) -> None:
        self._caller = signing.Client(keys)

    def headers(self, target: str, body: bytes, chance: Random) -> dict[str, str]:
        return {signing.HEADER: self._caller.sign(target, body, chance.randbytes(signing.NONCE_SIZE))}

    def is_authentic(self, headers: dict[str, str], status: int, signature: str, body: bytes) -> bool:
        return self._caller.is_genuine(headers[signing.HEADER], status, signature, body)


class BearerAuth:
    """For coordinators of earlier releases, which sign nothing: any answer counts as authentic."""

    def __init__(self, bearer: str) -> None:
        self._headers = {wire.PROXY_HEADER: bearer}

    def headers(self, target: str, body: bytes, chance: Random) -> dict[str, str]:  # noqa: ARG002
        return self._headers

    def is_authentic(self, headers: dict[str, str], status: int, signature: str, body: bytes) -> bool:  # noqa: ARG002
        return True


def auth_for(keys: signing.Keys, contract: int) -> RequestAuth:
    """The authentication for one coordinator. `contract`: from the config of the coordinator's pod, which
    nobody can change. The answering process has no influence on it: it would choose the bearer."""
    return SignedAuth(keys) if contract >= SIGNED else BearerAuth(wire.http_bearer(keys.token))


def _new_session() -> aiohttp.ClientSession:
    """A session without reused connections, decompression and cookies. The work queue limits the requests."""
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
        connect: Callable[[], aiohttp.ClientSession] = _new_session,
        chance: Random = _CHANCE,
    ) -> None:
        self._port, self._may_write, self._connect, self._chance = port, may_write, connect, chance

    async def __aenter__(self) -> Self:
        self._session = self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send_desired(self, address: str, auth: RequestAuth, desired: Desired) -> JobReport:
        """Send the desired state; returns the report, which is of the same term and within bounds. Raises
        CoordinatorUnreachable, with the address and the reason, for whatever goes wrong; Fenced: nothing was
        sent, this operator may not write any more. Takes 3 s at most, or twice as long with a new challenge.
        """
        try:
            report = codec.decode(JobReport, await self._put(address, auth, desired))
            if report.term != desired.term:  # a coordinator of ours would have answered 409
                raise CoordinatorUnreachable(
                    f"the coordinator's report is of term {report.term}, not of {desired.term}: another "
                    "coordinator answered"
                )
            return bounds.bounded(report, len(desired.slots))
        except TimeoutError:
            why = f"the coordinator sent no answer within {_TIMEOUT.total:.0f} s"
        except codec.DecodeError as error:
            why = f"the coordinator's report cannot be decoded: {error}"
        except bounds.OutOfBounds as error:
            why = f"the coordinator's report is out of bounds: {error}"
        except (CoordinatorUnreachable, aiohttp.ClientError, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
        raise CoordinatorUnreachable(f"{address}: {_printable(why)}")

    async def _put(self, address: str, auth: RequestAuth, desired: Desired) -> bytes:
        """Send the PUT, again after an expired challenge. Returns the body of an authenticated answer of
        status 200, JSON of a size that may be parsed. Raises CoordinatorUnreachable, Fenced, errors of
        aiohttp: ClientError, TimeoutError, for invalid headers ValueError."""
        slots = len(desired.slots)
        body, max_bytes = codec.encode(desired), _BASE_BYTES + _SLOT_BYTES * slots
        status, content = await self._send(address, auth, body, max_bytes)
        if status == 401 and isinstance(auth, SignedAuth):  # its answer carried a new challenge
            status, content = await self._send(address, auth, body, max_bytes)
        if status != 200:
            raise CoordinatorUnreachable(_quoted_answer(status, content))
        values, max_values = _value_count(content), _BASE_VALUES + _SLOT_VALUES * slots
        if values > max_values:
            raise CoordinatorUnreachable(
                f"the coordinator answered, but with a report of {values} values; at most {max_values} are "
                f"accepted for {slots} slots"
            )
        return content

    async def _send(self, address: str, auth: RequestAuth, body: bytes, max_bytes: int) -> tuple[int, bytes]:
        """Send one request. Returns status and body of an authenticated answer; the body of another status
        than 200 is its beginning. `max_bytes`: limit of a report. Raises as `_put`."""
        if not self._may_write():
            raise Fenced(f"{_DESIRED} to {address} was not sent: this operator is no longer the leader")
        proof, url = auth.headers(_DESIRED, body, self._chance), f"http://{address}:{self._port}/desired"
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **proof}
        async with self._session.put(url, data=body, headers=headers, allow_redirects=False) as answer:
            encoding = answer.headers.get("Content-Encoding", "")
            if encoding:
                raise CoordinatorUnreachable(
                    f"the coordinator's answer is compressed ({encoding}), which was not requested"
                )
            status, signature = answer.status, answer.headers.get(signing.HEADER, "")
            content = await _read_up_to(max_bytes if status == 200 else _REFUSAL_BYTES, answer.content)
        if status == 200 and len(content) > max_bytes:
            raise CoordinatorUnreachable(
                f"the coordinator's answer has more than {max_bytes} bytes, the limit of a report"
            )
        if not auth.is_authentic(proof, status, signature, content):
            raise CoordinatorUnreachable(
                f"the answer is not signed with this job's token: {_quoted_answer(status, content)}"
            )
        return status, content


def _value_count(content: bytes) -> int:
    """Upper limit of the values in JSON text, without parsing it: those in strings are counted, too."""
    return sum(map(content.count, (b"[", b"{", b",")))


def _quoted_answer(status: int, content: bytes) -> str:
    """An answer that is no report, for an error message."""
    return f"HTTP {status}: {content[:_QUOTED_CHARACTERS].decode(errors='replace')}"


async def _read_up_to(max_bytes: int, stream: aiohttp.StreamReader) -> bytes:
    """Read the whole body, or its beginning: the first bytes until there are more than `max_bytes`."""
    content = bytearray()
    async for part in stream.iter_any():
        content += part
        if len(content) > max_bytes:
            break
    return bytes(content)


def _printable(text: str) -> str:
    """The beginning of a text that anybody may have written, without control characters."""
    return "".join(each if each.isprintable() else "?" for each in text[:_QUOTED_CHARACTERS])
