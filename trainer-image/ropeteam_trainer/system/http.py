"""HTTP/1.1 as our servers speak it: one request per connection, and a sentence for a malformed one.

    read_head -> Request -> read_body -> Response.to_bytes -> discard, if the status is 400 or more

Chunks are not accepted. No time limits here: a caller awaits each of these with its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ropeteam_trainer.contract.errors import RopeteamError

_PHRASES = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
_PART = 16 << 10


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    """Without the query."""
    headers: dict[str, str]
    """Header values by name in lower case."""


@dataclass(frozen=True)
class Response:
    status: int
    body: bytes
    type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()

    def to_bytes(self) -> bytes:
        headers = (
            ("Content-Type", self.type),
            *self.headers,
            ("Content-Length", str(len(self.body))),
            ("Connection", "close"),
        )
        lines = (f"HTTP/1.1 {self.status} {_PHRASES[self.status]}", *map(": ".join, headers))
        return "".join(f"{line}\r\n" for line in (*lines, "")).encode() + self.body


class HttpError(RopeteamError):
    """Refusal of a request, with the status and sentence of its response."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.response = Response(status, f"{sentence}\n".encode())


async def read_head(reader: asyncio.StreamReader, most: int) -> Request:
    """Read request line and headers. `most`: the limit of the reader. Raises HttpError."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise HttpError(431, f"request line and headers have more than {most} bytes") from None
    except asyncio.IncompleteReadError:
        raise HttpError(400, "the request ended before its headers did") from None
    return _parse_head(head)


async def read_body(reader: asyncio.StreamReader, request: Request, most: int) -> bytes:
    """Read the body, of at most `most` bytes. Raises HttpError."""
    size = _body_size(request, most)
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        raise HttpError(
            400, f"Content-Length is {size}, but only {len(error.partial)} were received"
        ) from None


async def discard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int) -> None:
    """After the response, discard what is left of the request: to close before it has come would be a reset,
    and lose the response (RFC 9112, section 9.6)."""
    writer.write_eof()
    while most > 0 and (part := await reader.read(_PART)):
        most -= len(part)


def _parse_head(head: bytes) -> Request:
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise HttpError(400, "this is not an HTTP/1.1 request")
    headers = {}
    for line in lines[1:-2]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise HttpError(400, "a header line has no name")
        headers[name.lower()] = value.strip()
    return Request(parts[0], parts[1].partition("?")[0], headers)


def _body_size(request: Request, most: int) -> int:
    if "transfer-encoding" in request.headers or "content-length" not in request.headers:
        raise HttpError(411, "Content-Length is required; chunks are not accepted")
    text = request.headers["content-length"]
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise HttpError(400, "Content-Length is not a number")
    if int(text) > most:
        raise HttpError(413, f"the body has more than {most} bytes")
    return int(text)
