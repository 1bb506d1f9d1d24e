"""What kopf is shown of TrainingJobs: that one has changed. It parses all that it is sent, without bounds,
and one object that it cannot parse would stop it for all.

It is shown no list: our informer has one, and rings for each job in it. A list of one object tells as well
from where to watch. Limits: aiohttp's response class is the only seam that kopf leaves open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Self, cast

import aiohttp
import orjson
from aiohttp.connector import Connection

from ropeteam.api.job import PLURAL
from ropeteam.controller.cache.informer import LARGEST_OBJECT
from ropeteam.controller.cache.parsing import READ
from ropeteam.controller.client import boundedjson

_SHOWN = ("apiVersion", "kind", "code", "reason", "message")


class Response(aiohttp.ClientResponse):
    """As sent, but lists and watches of TrainingJobs in outline."""

    async def start(self, connection: Connection) -> Self:
        await super().start(connection)
        if self.status == 200 and self.url.path.endswith(f"/{PLURAL}"):
            self.content = cast(aiohttp.StreamReader, _Outlined(self.content))
        return self


class _Outlined:
    """A body of JSON; what aiohttp itself asks of it goes to the stream."""

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def read(self) -> bytes:
        """A list, of which only the version is told. Where it goes on is not."""
        page = boundedjson.loads(await self._stream.read())
        version = page["metadata"]["resourceVersion"]
        return orjson.dumps(page | {"items": [], "metadata": {"resourceVersion": version}})

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        """A watch."""
        with suppress(boundedjson.TooLarge):  # the watch ends, and kopf opens another
            async for line in boundedjson.lines(self._stream, LARGEST_OBJECT):
                event = boundedjson.thing(line, most=0, ends=b"}}")
                yield orjson.dumps({"type": event["type"], "object": _outline(event["object"])}) + b"\n"


def _outline(thing: dict[str, Any]) -> dict[str, Any]:
    """Of a job what it is and which; of a Status, which tells why a watch ends, the words and the code."""
    meta = _plain(thing.get("metadata") or {}, READ)
    return _plain(thing, _SHOWN) | {"spec": {}, "status": {}, "metadata": meta}


def _plain(thing: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: thing[key] for key in keys if isinstance(thing.get(key), str | int)}
