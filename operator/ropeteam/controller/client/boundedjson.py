"""JSON in which tenants had a part, read within bounds: one object costs neither the process nor others.

An API server takes objects of 1.5 MiB and of 10,000 levels; orjson reads 1,024 levels and writes 254. It
writes the parts of an object in the order of their names: what we do not want of one is left out before it is
parsed, which would take a tenth of a second for a megabyte.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson

_DEEPEST_PARSED = 1000
_BRACES_AND_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]]', re.DOTALL)


class TooLarge(Exception):
    """More bytes than the caller takes."""


def loads(text: bytes) -> Any:
    """What is nested too deep to be parsed reads as null. Raises orjson.JSONDecodeError."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return orjson.loads(shallow(text, _DEEPEST_PARSED))


def thing(text: bytes, most: int, ends: bytes = b"}") -> Any:
    """An object as an API server has written it, but for its managedFields; in place of a spec of more than
    `most` bytes stands their number. `ends`: the braces that close it, and what it is in. Raises
    orjson.JSONDecodeError.
    """
    try:
        return loads(_without_bulk(text, most, ends))
    except orjson.JSONDecodeError:  # others have written it, in another order, or it is no JSON
        return loads(text)


def _without_bulk(text: bytes, most: int, ends: bytes) -> bytes:
    """In a string the quotes that are looked for would be escaped, metadata has no part called spec, and a
    status that is not the object's own has more braces behind it than `ends`.
    """
    begin = text.find(b'},"spec":{') + 1
    if not begin:
        return text
    meta, rest = text[:begin], text[begin:]
    fields, name = meta.find(b',"managedFields":['), meta.rfind(b'],"name":"')
    if -1 < fields < name:
        meta = meta[:fields] + meta[name + 1 :]
    end = rest.rfind(b'},"status":{') + 1
    if not end or not _is_json(b"{" + rest[end + 1 : -len(ends)] + b"}"):
        end = len(rest) - len(ends)
    size = end - len(b',"spec":')
    if size - 5 * rest.count(b"\\u", 0, end) <= most:  # `<` may be written as six bytes
        return meta + rest
    return meta + b',"spec":%d' % size + rest[end:]


def _is_json(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def shallow(text: bytes, levels: int) -> bytes:
    """The same JSON with null in place of what is nested deeper than `levels`."""
    kept, level, begin = list[bytes](), 0, 0
    for found in _BRACES_AND_STRINGS.finditer(text):
        token = found[0]
        if token in (b"{", b"["):
            level += 1
            if level == levels + 1:
                kept += text[begin : found.start()], b"null"
        elif token in (b"}", b"]"):
            if level == levels + 1:
                begin = found.end()
            level -= 1
    return b"".join((*kept, text[begin:]))


def is_deeper(value: object, levels: int) -> bool:
    """Whether parsed JSON is nested deeper than that. An object or list of plain values is one level."""
    layer = _parts([value])
    for _ in range(levels):
        layer = [part for each in layer for part in _parts(each)]
    return bool(layer)


def _parts(value: object) -> list[object]:
    found = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [part for part in found if isinstance(part, dict | list)]


async def read(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """The whole body. Raises TooLarge, with the connection closed, aiohttp.ClientError."""
    content = bytearray()
    async for chunk in answer.content.iter_any():
        content += chunk
        if len(content) > most:
            answer.close()
            raise TooLarge(f"more than {most} bytes")
    return bytes(content)


async def lines(stream: aiohttp.StreamReader, most: int) -> AsyncIterator[bytes]:
    """The lines of a watch, without their ends and empty ones. Raises TooLarge, aiohttp.ClientError."""
    begun = bytearray()
    async for chunk in stream.iter_any():
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line, begun = bytes(begun + end), bytearray()
            if line:
                yield line
        begun += rest
        if len(begun) > most:
            raise TooLarge(f"a line of more than {most} bytes")
