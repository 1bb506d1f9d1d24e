"""The second port: PUT /desired, GET /status, GET /metrics, GET /healthz. HTTP/1.1, one request per
connection.

`/desired` and `/status` are signed with the job's token, and so are their answers (contract/signing.py). A
malformed request is answered 4xx with a sentence, and the connection ends. A body is read after its signature
was verified. Operators of earlier releases send a bearer (wire.http_bearer), in Authorization or in
X-Ropeteam-Bearer (an API server's proxy removes `Authorization`): it is accepted when no operator has signed
a request for a minute. `/metrics` are rendered once a second at most, and less often while the coordinator is
late. `/healthz` is the kubelet's liveness probe: any answer means that the event loop runs, 200 that the
state folder is healthy too. Limits: a request line and headers of 16 KiB within 5 seconds, a body of 1 MiB
with Content-Length, 10 seconds for it and for the answer; at most 64 unauthenticated connections
(contract/preauth.py).
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from dataclasses import dataclass, replace

from ropeteam_trainer.contract import OLDEST, VERSION, codec, signing, wire
from ropeteam_trainer.contract.config import CoordinatorConfig
from ropeteam_trainer.contract.desired import Desired, JobReport
from ropeteam_trainer.contract.preauth import HEAD_SECONDS, UnauthenticatedConnections
from ropeteam_trainer.coordinator.metrics import render
from ropeteam_trainer.coordinator.server import Coordinator

MOST_HEAD, MOST_BODY, MAX_UNAUTHENTICATED = 16 << 10, 1 << 20, 64
SECONDS = 10.0
BEARER_SECONDS = 60.0
"""Time without a signed request after which a bearer is accepted: no operator of this release leads."""
_PHRASES = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
_ROUTES = {"/desired": "PUT", "/status": "GET", "/metrics": "GET", "/healthz": "GET"}


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    """Header values by name in lower case."""

    @property
    def what(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def signature(self) -> str:
        return self.headers.get(signing.HEADER.lower(), "")


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    type: str = "text/plain; charset=utf-8"
    signature: str = ""

    def to_bytes(self) -> bytes:
        signed = f"{signing.HEADER}: {self.signature}\r\n" if self.signature else ""
        head = (
            f"HTTP/1.1 {self.status} {_PHRASES[self.status]}\r\nContent-Type: {self.type}\r\n"
            f"{signed}Content-Length: {len(self.body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + self.body


class Refused(Exception):
    """Refusal of a request, with the status and sentence of its answer."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.answer = Answer(status, f"{sentence}\n".encode())


class Http:
    """The handler of one coordinator's second port."""

    def __init__(self, coordinator: Coordinator, storage_problem: Callable[[], str] = str) -> None:
        """`storage_problem`: why this process should be restarted, or ""."""
        self._coordinator, self._storage_problem = coordinator, storage_problem
        self._bearer = wire.http_bearer(coordinator.token)
        config = coordinator.state.config
        keys = signing.Keys(coordinator.token, config.job_uid, config.term)
        self._signed_at = coordinator.now()
        """Time of the last request signed by an operator."""
        began = self._signed_at if coordinator.state.boot == 0 else None
        self._gate = signing.Server(keys, coordinator.chance.randbytes, began)
        self.unauthenticated = UnauthenticatedConnections(MAX_UNAUTHENTICATED)
        self._metrics = Answer(200, b"")
        self._metrics_at = float("-inf")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request. Never raises because of a peer."""
        address, leave = writer.get_extra_info("peername")[0], writer.transport.abort
        self.unauthenticated.admit(address, leave)
        try:
            answer = await self._answer(reader, lambda: self.unauthenticated.free(address, leave))
            writer.write(answer.to_bytes())
            await asyncio.wait_for(writer.drain(), SECONDS)
            if answer.status >= 400:
                writer.write_eof()
                await asyncio.wait_for(_discard(reader), SECONDS)
        except (asyncio.TimeoutError, ConnectionError):  # noqa: UP041 (two classes before Python 3.11)
            pass  # the peer disconnected, or does not read
        finally:
            self.unauthenticated.free(address, leave)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, proved: Callable[[], None]) -> Answer:
        try:
            request = await asyncio.wait_for(read_head(reader), HEAD_SECONDS)
            _check_route(request)
            if request.path == "/healthz":
                return self._health_answer()
            if request.path == "/metrics":
                return self._metrics_answer()
            answer = await self._authenticated_answer(request, reader, proved)
        except Refused as refused:
            return refused.answer
        now = self._coordinator.now()
        return replace(answer, signature=self._gate.sign(request.signature, answer.status, answer.body, now))

    async def _authenticated_answer(
        self, request: Request, reader: asyncio.StreamReader, proved: Callable[[], None]
    ) -> Answer:
        """The answer to an authenticated request, or the refusal."""
        try:
            signed = self._authenticate(request)
            proved()
            if request.path == "/status":
                return _report_answer(self._coordinator.report())
            body = await asyncio.wait_for(read_body(reader, request), SECONDS)
            if signed and not signing.covers(request.signature, body):
                raise Refused(401, "the body is not the one that was signed")
            return _report_answer(
                self._coordinator.desire(parse_desired(body, self._coordinator.state.config))
            )
        except Refused as refused:
            return refused.answer

    def _health_answer(self) -> Answer:
        if problem := self._storage_problem():
            raise Refused(503, problem)
        return Answer(200, b"ok\n")

    def _metrics_answer(self) -> Answer:
        now, state = self._coordinator.now(), self._coordinator.state
        if now >= self._metrics_at + state.lateness.metrics_age(now):
            self._metrics, self._metrics_at = (
                Answer(200, *render(self._coordinator.report(), state.config)),
                now,
            )
        return self._metrics

    def _authenticate(self, request: Request) -> bool:
        """Whether the request is signed; if not, it has the bearer. Raises Refused."""
        now = self._coordinator.now()
        if self._gate.admits(request.what, request.signature, now):
            self._signed_at = now if request.method == "PUT" else self._signed_at
            return True
        if not self._has_bearer(request):
            term = self._coordinator.state.config.term
            raise Refused(401, f"not signed for this job's term {term}, or the challenge is not the last one")
        if now < self._signed_at + BEARER_SECONDS:
            raise Refused(401, f"a bearer is accepted if nothing was signed for {BEARER_SECONDS:.0f} seconds")
        return False

    def _has_bearer(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        offers = [given.strip()] if scheme.lower() == "bearer" else []
        offers.append(request.headers.get(wire.PROXY_HEADER.lower(), ""))
        return any(hmac.compare_digest(offer.encode(), self._bearer.encode()) for offer in offers)


def _check_route(request: Request) -> None:
    method = _ROUTES.get(request.path)
    if method is None:
        raise Refused(404, f"no such path; the paths are {', '.join(_ROUTES)}")
    if request.method != method:
        raise Refused(405, f"{request.path} accepts {method}")


def _report_answer(report: JobReport) -> Answer:
    return Answer(200, codec.encode(report), "application/json")


def parse_desired(body: bytes, config: CoordinatorConfig) -> Desired:
    """The desired state in a body. Raises Refused with the reason."""
    try:
        desired = codec.decode(Desired, body)
    except codec.DecodeError as error:
        raise Refused(400, str(error)) from None
    if not OLDEST <= desired.contract <= VERSION:
        raise Refused(400, f"contract {desired.contract} is unknown; this coordinator supports {VERSION}")
    if desired.term != config.term:
        raise Refused(409, f"this is the coordinator of term {config.term}, not of {desired.term}")
    known = {str(slot) for slot in range(config.slots)}
    strange = sorted(set(desired.slots) - known)
    if strange:
        raise Refused(
            400, f"Desired.slots: unknown slots {', '.join(strange[:5])}; there are 0 to {config.slots - 1}"
        )
    return desired


async def read_head(reader: asyncio.StreamReader) -> Request:
    """Read request line and headers. Raises Refused."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise Refused(431, f"request line and headers have more than {MOST_HEAD} bytes") from None
    except asyncio.IncompleteReadError:
        raise Refused(400, "the request ended before its headers did") from None
    return _parse_head(head)


async def read_body(reader: asyncio.StreamReader, request: Request) -> bytes:
    """Read the body. Raises Refused."""
    size = _body_size(request)
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        raise Refused(400, f"Content-Length is {size}, but only {len(error.partial)} were received") from None


def _parse_head(head: bytes) -> Request:
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise Refused(400, "this is not an HTTP/1.1 request")
    headers = {}
    for line in lines[1:-2]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise Refused(400, "a header line has no name")
        headers[name.lower()] = value.strip()
    return Request(parts[0], parts[1].partition("?")[0], headers)


async def _discard(reader: asyncio.StreamReader) -> None:
    """Discard an unread body: to close before it has come would be a reset, and lose the answer. That answer
    brings a new operator the challenge (RFC 9112, section 9.6)."""
    left = MOST_BODY
    while left > 0 and (part := await reader.read(MOST_HEAD)):
        left -= len(part)


def _body_size(request: Request) -> int:
    if "transfer-encoding" in request.headers or "content-length" not in request.headers:
        raise Refused(411, "Content-Length is required; chunks are not accepted")
    text = request.headers["content-length"]
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Refused(400, "Content-Length is not a number")
    if int(text) > MOST_BODY:
        raise Refused(413, f"the body has more than {MOST_BODY} bytes")
    return int(text)
