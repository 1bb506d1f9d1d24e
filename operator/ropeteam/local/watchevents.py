"""Events of a watch, as the API server sends them: one line of JSON each."""

from __future__ import annotations

from collections.abc import Callable

import orjson
from aiohttp import web

from ropeteam.local.api import selectors
from ropeteam.local.api.store import Event
from ropeteam.local.resources import Object, Resource


class EventSender:
    """Writes watch events to a client: `await send(type, object)`. `shape`: converts an object to the
    representation that the client requested."""

    def __init__(self, response: web.StreamResponse, shape: Callable[[Object], Object]) -> None:
        self.response, self._shape, self._first = response, shape, True

    async def __call__(self, kind: str, value: Object) -> None:
        shaped = self._shape(value)
        if shaped["kind"] == "Table" and not self._first:
            shaped["columnDefinitions"] = None  # they are sent once
        self._first = False
        await self.response.write(orjson.dumps({"type": kind, "object": shaped}) + b"\n")


def event_type(event: Event, test: selectors.Test) -> str:
    """Type of a write for a watch of the objects that pass `test`: ADDED also for one that passes it since
    this write, DELETED also for one that no longer does. Empty: it passes neither before nor after, and is
    not sent."""
    now = event.type != "DELETED" and test(event.object)
    before = event.before is not None and test(event.before)
    if now:
        return "MODIFIED" if before else "ADDED"
    return "DELETED" if before else ""


def last_matching_object(event: Event) -> Object:
    """The object of a DELETED event, as it was when it last passed the test, with the resourceVersion of the
    write."""
    before = event.before or event.object
    return {**before, "metadata": {**before["metadata"], "resourceVersion": str(event.revision)}}


def bookmark_line(resource: Resource, revision: int, initial: bool = False) -> bytes:
    """A BOOKMARK event as a line of JSON. `initial`: it ends the initial events (sendInitialEvents)."""
    meta: Object = {"resourceVersion": str(revision)}
    if initial:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    value = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
    return orjson.dumps({"type": "BOOKMARK", "object": value}) + b"\n"
