"""JSON that tenants may have written, parsed within bounds: one object harms neither the process nor others.

An API server takes objects of 1.5 MiB and of 10,000 levels; orjson reads 1,024 levels and writes 254. An API
server writes the fields of an object in the order of their names: unneeded ones are cut out before parsing,
which would take a tenth of a second for a megabyte.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson

from ropeteam.errors import RequestError

_DEEPEST_PARSED = 1000
"""Levels: somewhat less than orjson reads."""
_BRACES_AND_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]]', re.DOTALL)


class ResponseTooLarge(RequestError):
    """More bytes than the caller accepts."""


def loads(text: bytes) -> Any:
    """Parse JSON. Values that are nested too deep to be parsed become null. Raises orjson.JSONDecodeError."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return orjson.loads(truncate_depth(text, _DEEPEST_PARSED))


def parse_object(text: bytes, max_spec_bytes: int, closing: bytes = b"}") -> Any:
    """Parse an object that an API server has written, without its managedFields; a spec of more than
    `max_spec_bytes` is replaced by its size in bytes, an int. `closing`: the braces at the end of `text`, `}`
    of the object, `}}` if it is in an event. Raises orjson.JSONDecodeError.

    Text in another form is parsed as a whole, with all that it has: callers have to measure the spec again.
    """
    try:
        return loads(_without_bulk(text, max_spec_bytes, closing))
    except orjson.JSONDecodeError:  # another writer, another order of fields, or no JSON
        return loads(text)


def _without_bulk(text: bytes, max_spec_bytes: int, closing: bytes) -> bytes:
    """`text` without its managedFields, and with its size in place of a large spec; both are cut out of the
    bytes before any is parsed. Text in another form may come back unchanged, or as invalid JSON.

    Order of the fields: metadata (managedFields before name), spec, status. The searches are safe: in a
    string the quotes would be escaped, metadata has no field spec, and a status that is not the object's own
    has more braces behind it than `closing`.
    """
    begin = text.find(b'},"spec":{') + 1
    if not begin:
        return text
    meta, rest = text[:begin], text[begin:]
    fields, name = meta.find(b',"managedFields":['), meta.rfind(b'],"name":"')
    if -1 < fields < name:
        meta = meta[:fields] + meta[name + 1 :]
    end = rest.rfind(b'},"status":{') + 1
    if not end or not _is_json(b"{" + rest[end + 1 : -len(closing)] + b"}"):
        end = len(rest) - len(closing)  # no status, or that was one inside the spec: the spec ends the object
    size = end - len(b',"spec":')
    if size - 5 * rest.count(b"\\u", 0, end) <= max_spec_bytes:  # `<` may be written as six bytes
        return meta + rest
    return meta + b',"spec":%d' % size + rest[end:]


def _is_json(text: bytes) -> bool:
    """Whether orjson can parse the text; not what is nested deeper than it reads."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def truncate_depth(text: bytes, levels: int) -> bytes:
    """JSON text with null in place of objects and lists that are nested deeper than `levels`. One scan over
    braces, brackets and strings: `level` counts the open ones, `begin` is the end of what was left out."""
    parts, level, begin = list[bytes](), 0, 0
    for found in _BRACES_AND_STRINGS.finditer(text):
        token = found[0]
        if token in (b"{", b"["):
            level += 1
            if level == levels + 1:
                parts += text[begin : found.start()], b"null"
        elif token in (b"}", b"]"):
            if level == levels + 1:
                begin = found.end()
            level -= 1
    return b"".join((*parts, text[begin:]))


def is_deeper(value: object, levels: int) -> bool:
    """Whether parsed JSON is nested deeper than `levels`. An object or list of plain values is one level."""
    layer = _containers_in([value])
    for _ in range(levels):
        layer = [part for each in layer for part in _containers_in(each)]
    return bool(layer)


def _containers_in(value: object) -> list[object]:
    """The objects and lists directly in `value`; none in a plain value."""
    found = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [part for part in found if isinstance(part, dict | list)]


async def read_body(answer: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Read the whole body. Raises ResponseTooLarge, with the connection closed, aiohttp.ClientError."""
    content = bytearray()
    async for chunk in answer.content.iter_any():
        content += chunk
        if len(content) > max_bytes:
            answer.close()
            raise ResponseTooLarge(f"the response has more than {max_bytes} bytes, which is the limit")
    return bytes(content)


async def read_lines(stream: aiohttp.StreamReader, max_bytes: int) -> AsyncIterator[bytes]:
    """The lines of a watch, without line ends and empty lines; what follows the last line end is dropped.
    Raises ResponseTooLarge for a line whose end does not come within `max_bytes`, aiohttp.ClientError."""
    partial = bytearray()
    async for chunk in stream.iter_any():
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line, partial = bytes(partial + end), bytearray()
            if line:
                yield line
        partial += rest
        if len(partial) > max_bytes:
            raise ResponseTooLarge(
                f"an object in a watch has more than {max_bytes} bytes, the limit for one object"
            )
