"""What kopf is shown of TrainingJobs: which there are, and that one has changed. It parses all that it is
sent, without bounds, and one object that it cannot parse would stop it for all.

Limits: aiohttp's response class is the only seam that kopf leaves open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Self, cast

import aiohttp
import orjson
from aiohttp.connector import Connection

from ropeteam.api.job import PLURAL
from ropeteam.controller import bounded
from ropeteam.controller.informer import LARGEST_OBJECT
from ropeteam.controller.reading import READ


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
        """A list, in parts of `settings.watching.chunk_size` objects."""
        page = bounded.loads(bounded.shallow(await self._stream.read(), 4))
        return orjson.dumps(page | {"items": [_outline(each) for each in page["items"]]})

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        """A watch."""
        with suppress(bounded.TooLarge):  # the watch ends, and kopf opens another
            async for line in bounded.lines(self._stream, LARGEST_OBJECT):
                event = bounded.loads(bounded.shallow(line, 3))
                yield orjson.dumps(event | {"object": _outline(event["object"])}) + b"\n"


def _outline(thing: dict[str, Any]) -> dict[str, Any]:
    meta = thing.get("metadata") or {}
    return thing | {"spec": {}, "status": {}, "metadata": {key: meta[key] for key in READ if key in meta}}
