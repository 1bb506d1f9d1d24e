"""HTTP/1.1 as our servers speak it: one request per connection, and a sentence for a malformed one.

    read_head -> Request -> read_body -> Response.to_bytes -> half_close_and_discard_rest, if the status is
    400 or more

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
"""Most bytes of one read of what is discarded."""


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
        """Status line, headers and body. Raises KeyError for a status that has no phrase here."""
        headers = (
            ("Content-Type", self.type),
            *self.headers,
            ("Content-Length", str(len(self.body))),
            ("Connection", "close"),
        )
        lines = (f"HTTP/1.1 {self.status} {_PHRASES[self.status]}", *map(": ".join, headers))
        return "".join(f"{line}\r\n" for line in (*lines, "")).encode() + self.body


class HttpError(RopeteamError):
    """Refusal of a request. `response`: the one to send, with the sentence and a line break as its body."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.response = Response(status, f"{sentence}\n".encode())


async def read_head(reader: asyncio.StreamReader, reader_limit: int) -> Request:
    """Read request line and headers. `reader_limit`: the `limit` that the reader was created with, for the
    text of the error. Raises HttpError, and ConnectionError if the peer resets the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise HttpError(431, f"request line and headers have more than {reader_limit} bytes") from None
    except asyncio.IncompleteReadError:
        raise HttpError(400, "the request ended before its headers did") from None
    return _parse_head(head)


async def read_body(reader: asyncio.StreamReader, request: Request, max_bytes: int) -> bytes:
    """Read the body. Raises HttpError, before it reads anything of a body that is too large or announced
    wrongly, and ConnectionError."""
    size = _body_size(request, max_bytes)
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        raise HttpError(
            400, f"Content-Length is {size}, but only {len(error.partial)} were received"
        ) from None


async def half_close_and_discard_rest(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_bytes: int
) -> None:
    """Half-close the connection after the response, and discard the rest of the request, until the peer
    closes it too, or about `max_bytes` have come. If the connection were closed while data come, TCP would
    reset it, and the peer could lose the response (RFC 9112, section 9.6). Raises ConnectionError."""
    writer.write_eof()
    left = max_bytes
    while left > 0 and (part := await reader.read(_PART)):
        left -= len(part)


def _parse_head(head: bytes) -> Request:
    """Request with this head, which ends with an empty line. Raises HttpError."""
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise HttpError(400, "this is not an HTTP/1.1 request")
    headers = {}
    for line in lines[1:-2]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise HttpError(400, "a header line has no name, or spaces around it")
        headers[name.lower()] = value.strip()
    return Request(parts[0], parts[1].partition("?")[0], headers)


def _body_size(request: Request, max_bytes: int) -> int:
    """Size of the body by Content-Length. Raises HttpError."""
    if "transfer-encoding" in request.headers or "content-length" not in request.headers:
        raise HttpError(411, "Content-Length is required; chunks are not accepted")
    text = request.headers["content-length"]
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise HttpError(400, "Content-Length is not a number")
    if int(text) > max_bytes:
        raise HttpError(413, f"the body has more than {max_bytes} bytes")
    return int(text)
