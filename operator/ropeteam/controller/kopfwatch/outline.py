"""The reduced TrainingJobs that kopf receives: only that one has changed. kopf parses everything it receives,
without bounds, and one object that it cannot parse would stop it for all.

Its lists are empty: our informer has the list, and enqueues each job in it; kopf needs only the
resourceVersion to watch from. Limits: aiohttp's response class is the only extension point that kopf offers.
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

_STATUS_FIELDS = ("apiVersion", "kind", "code", "reason", "message")


class Response(aiohttp.ClientResponse):
    """A response with lists and watches of TrainingJobs reduced; all others unchanged."""

    async def start(self, connection: Connection) -> Self:
        await super().start(connection)
        if self.status == 200 and self.url.path.endswith(f"/{PLURAL}"):
            self.content = cast(aiohttp.StreamReader, _Outlined(self.content))
        return self


class _Outlined:
    """A JSON body in reduced form; attributes that aiohttp itself uses come from the stream."""

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def read(self) -> bytes:
        """The list, with its resourceVersion only: no items and no `continue`."""
        page = boundedjson.loads(await self._stream.read())
        version = page["metadata"]["resourceVersion"]
        return orjson.dumps(page | {"items": [], "metadata": {"resourceVersion": version}})

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        """The events of a watch, reduced."""
        with suppress(boundedjson.ResponseTooLarge):  # the watch ends, and kopf opens another
            async for line in boundedjson.read_lines(self._stream, LARGEST_OBJECT):
                event = boundedjson.parse_object(line, max_spec_bytes=0, closing=b"}}")
                yield orjson.dumps({"type": event["type"], "object": _outline(event["object"])}) + b"\n"


def _outline(obj: dict[str, Any]) -> dict[str, Any]:
    """Of a job its kind and identity; of a Status, which ends a watch, its code, reason and message."""
    meta = _scalar_fields(obj.get("metadata") or {}, READ)
    return _scalar_fields(obj, _STATUS_FIELDS) | {"spec": {}, "status": {}, "metadata": meta}


def _scalar_fields(obj: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: obj[key] for key in keys if isinstance(obj.get(key), str | int)}
