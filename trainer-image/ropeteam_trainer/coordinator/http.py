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
from dataclasses import replace

from ropeteam_trainer.contract import OLDEST, VERSION, codec, signing, wire
from ropeteam_trainer.contract.config import CoordinatorConfig
from ropeteam_trainer.contract.desired import Desired, JobReport
from ropeteam_trainer.contract.preauth import HEAD_SECONDS, UnauthenticatedConnections
from ropeteam_trainer.coordinator.metrics import render
from ropeteam_trainer.coordinator.server import Coordinator
from ropeteam_trainer.system.http import (
    HttpError,
    Request,
    Response,
    half_close_and_discard_rest,
    read_body,
    read_head,
)

MOST_HEAD, MOST_BODY, MAX_UNAUTHENTICATED = 16 << 10, 1 << 20, 64
SECONDS = 10.0
BEARER_SECONDS = 60.0
"""Time without a signed request after which a bearer is accepted: no operator of this release leads."""
_ROUTES = {"/desired": "PUT", "/status": "GET", "/metrics": "GET", "/healthz": "GET"}


class Http:
    """The handler of one coordinator's HTTP port: `serve`, for asyncio.start_server.

    `storage_problem`: returns why the kubelet should restart this container, or "".
    """

    def __init__(self, coordinator: Coordinator, storage_problem: Callable[[], str] = str) -> None:
        self._coordinator, self._storage_problem = coordinator, storage_problem
        self._bearer = wire.http_bearer(coordinator.token)
        config = coordinator.state.config
        keys = signing.Keys(coordinator.token, config.job_uid, config.term)
        self._signed_at = coordinator.now()
        """Time of the last signed PUT: only an operator sends one."""
        began = self._signed_at if coordinator.state.boot == 0 else None  # see signing.Server
        self._gate = signing.Server(keys, coordinator.chance.randbytes, began)
        self.unauthenticated = UnauthenticatedConnections(MAX_UNAUTHENTICATED)
        self._metrics = Response(200, b"")
        self._metrics_at = float("-inf")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request, then close the connection. Never raises because of a peer: its disconnection
        ends this quietly, and so does the limit of unauthenticated connections."""
        address, leave = writer.get_extra_info("peername")[0], writer.transport.abort
        self.unauthenticated.admit(address, leave)
        try:
            answer = await self._answer(reader, lambda: self.unauthenticated.free(address, leave))
            writer.write(answer.to_bytes())
            await asyncio.wait_for(writer.drain(), SECONDS)
            if answer.status >= 400:
                # Unread input would make the kernel send RST, and the peer might lose this response with it:
                # a refused operator needs the challenge in it.
                await asyncio.wait_for(half_close_and_discard_rest(reader, writer, MOST_BODY), SECONDS)
        except (asyncio.TimeoutError, ConnectionError):  # noqa: UP041 (two classes before Python 3.11)
            pass  # the peer disconnected, or does not read
        finally:
            self.unauthenticated.free(address, leave)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, proved: Callable[[], None]) -> Response:
        """The response to one request, signed if the request was. `proved`: called once it is authenticated.
        Raises asyncio.TimeoutError if the head or body does not come in time, ConnectionError."""
        try:
            request = await asyncio.wait_for(read_head(reader, MOST_HEAD), HEAD_SECONDS)
            _check_route(request)
            if request.path == "/healthz":
                return self._health_answer()
            if request.path == "/metrics":
                return self._metrics_answer()
            answer = await self._authenticated_answer(request, reader, proved)
        except HttpError as refused:
            return refused.response
        given = self._gate.sign(_signature(request), answer.status, answer.body, self._coordinator.now())
        return replace(answer, headers=((signing.HEADER, given),)) if given else answer

    async def _authenticated_answer(
        self, request: Request, reader: asyncio.StreamReader, proved: Callable[[], None]
    ) -> Response:
        """The response to a request for /desired or /status, or its refusal. The body is read last: only an
        authenticated peer may make this process read a megabyte."""
        try:
            signed = self._authenticate(request)
            proved()
            if request.path == "/status":
                return _report_answer(self._coordinator.job_report())
            body = await asyncio.wait_for(read_body(reader, request, MOST_BODY), SECONDS)
            if signed and not signing.covers(_signature(request), body):
                raise HttpError(
                    401,
                    "the body does not match its signature, so it was not applied: something between the "
                    "operator and this coordinator, such as a proxy, has changed it",
                )
            return _report_answer(
                self._coordinator.apply_desired(parse_desired(body, self._coordinator.state.config))
            )
        except HttpError as refused:
            return refused.response

    def _health_answer(self) -> Response:
        """The response to the liveness probe. Raises HttpError 503 while the state folder is unhealthy."""
        if problem := self._storage_problem():
            raise HttpError(503, problem)
        return Response(200, b"ok\n")

    def _metrics_answer(self) -> Response:
        """The rendered metrics, at most `metrics_max_age` old: anyone may request them, and rendering costs
        the loop milliseconds."""
        now, state = self._coordinator.now(), self._coordinator.state
        if now >= self._metrics_at + state.lateness.metrics_max_age(now):
            self._metrics, self._metrics_at = (
                Response(200, *render(self._coordinator.job_report(), state.config)),
                now,
            )
        return self._metrics

    def _authenticate(self, request: Request) -> bool:
        """Whether the request is signed (True) or has the bearer of an earlier release (False). Raises
        HttpError 401 if it has neither, or a bearer while a signing operator leads. A signed PUT uses up the
        challenge."""
        now = self._coordinator.now()
        if self._gate.admit(f"{request.method} {request.path}", _signature(request), now):
            self._signed_at = now if request.method == "PUT" else self._signed_at
            return True
        if not self._has_bearer(request):
            term = self._coordinator.state.config.term
            raise HttpError(
                401,
                f"the request is not signed with this job's token for term {term}, or answers an outdated "
                "challenge; only the operator can send it. For the job's state: kubectl get tj",
            )
        if now < self._signed_at + BEARER_SECONDS:
            raise HttpError(
                401,
                "the bearer of an earlier release is accepted only if no operator has signed a request for "
                f"{BEARER_SECONDS:.0f} s",
            )
        return False

    def _has_bearer(self, request: Request) -> bool:
        """Whether one of the two headers has the job's bearer."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        offers = [given.strip()] if scheme.lower() == "bearer" else []
        offers.append(request.headers.get(wire.PROXY_HEADER.lower(), ""))
        return any(hmac.compare_digest(offer.encode(), self._bearer.encode()) for offer in offers)


def _signature(request: Request) -> str:
    """The request's signature; "": it has none."""
    return request.headers.get(signing.HEADER.lower(), "")


def _check_route(request: Request) -> None:
    """Raise HttpError 404 for an unknown path, 405 for a known one with another method."""
    method = _ROUTES.get(request.path)
    if method is None:
        raise HttpError(404, f"no such path; the paths are {', '.join(_ROUTES)}")
    if request.method != method:
        raise HttpError(405, f"{request.path} accepts {method}")


def _report_answer(report: JobReport) -> Response:
    return Response(200, codec.encode(report), "application/json")


def parse_desired(body: bytes, config: CoordinatorConfig) -> Desired:
    """The desired state in a body. Raises HttpError 400 (malformed, of an unknown release or slot) or 409
    (for another term), with the reason."""
    try:
        desired = codec.decode(Desired, body)
    except codec.DecodeError as error:
        raise HttpError(400, str(error)) from None
    if not OLDEST <= desired.contract <= VERSION:
        raise HttpError(
            400,
            f"contract {desired.contract} is unknown; this coordinator supports {OLDEST} to {VERSION}",
        )
    if desired.term != config.term:
        raise HttpError(409, f"this is the coordinator of term {config.term}, not of {desired.term}")
    known = {str(slot) for slot in range(config.slots)}
    unknown = sorted(set(desired.slots) - known)
    if unknown:
        raise HttpError(
            400, f"Desired.slots: unknown slots {', '.join(unknown[:5])}; there are 0 to {config.slots - 1}"
        )
    return desired
