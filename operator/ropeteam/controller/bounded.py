"""JSON in which tenants had a part, read within bounds: one object costs neither the process nor others.

An API server takes objects of 1.5 MiB and of 10,000 levels; orjson reads 1,024 levels and writes 254.
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
    rest = b""
    async for chunk in stream.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in filter(None, whole):
            yield line
        if len(rest) > most:
            raise TooLarge(f"a line of more than {most} bytes")
