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


class ReducedResponse(aiohttp.ClientResponse):
    """A response with lists and watches of TrainingJobs reduced; all others unchanged."""

    async def start(self, connection: Connection) -> Self:
        """Read the head of the response, and replace the stream of its body. aiohttp calls it."""
        await super().start(connection)
        if self.status == 200 and self.url.path.endswith(f"/{PLURAL}"):
            self.content = cast(aiohttp.StreamReader, _ReducedBody(self.content))
        return self


class _ReducedBody:
    """A JSON body in reduced form, in place of a StreamReader: a list is read by `read`, a watch by
    `iter_chunked`. Attributes that aiohttp itself uses come from the stream."""

    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def read(self) -> bytes:
        """The list, with its resourceVersion only: no items and no `continue`. Raises JSONDecodeError,
        LookupError, TypeError for another body, aiohttp.ClientError; kopf then tries again."""
        page = boundedjson.loads(await self._stream.read())
        version = page["metadata"]["resourceVersion"]
        return orjson.dumps(page | {"items": [], "metadata": {"resourceVersion": version}})

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        """The events of a watch, reduced, a line each. The watch ends early after a line that is too large.
        Raises as `read`."""
        with suppress(boundedjson.ResponseTooLarge):  # the watch ends, and kopf opens another
            async for line in boundedjson.read_lines(self._stream, LARGEST_OBJECT):
                event = boundedjson.parse_object(line, max_spec_bytes=0, closing=b"}}")
                reduced = {"type": event["type"], "object": _reduced_object(event["object"])}
                yield orjson.dumps(reduced) + b"\n"


def _reduced_object(obj: dict[str, Any]) -> dict[str, Any]:
    """`apiVersion` and `kind`; of metadata the fields in READ, so no labels, annotations, finalizers or
    owners; of a Status, which ends a watch, code, reason and message. `spec` and `status` are empty objects,
    in a Status too: our handler reads metadata only, and kopf gets no unbounded value."""
    meta = _scalar_fields(obj.get("metadata") or {}, READ)
    return _scalar_fields(obj, _STATUS_FIELDS) | {"spec": {}, "status": {}, "metadata": meta}


def _scalar_fields(obj: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """The fields with these names that are text or integers, as a new object."""
    return {key: obj[key] for key in keys if isinstance(obj.get(key), str | int)}
