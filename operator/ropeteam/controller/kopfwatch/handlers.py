"""The handlers of kopf: log in, and report a TrainingJob that has changed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import aiohttp
import kopf

from ropeteam.api.job import GROUP, PLURAL, VERSION
from ropeteam.controller.cache.informer import Key
from ropeteam.controller.client.access import Access
from ropeteam.controller.kopfwatch import outline

_LOGIN_SECONDS = 1.0
"""Pause before each login but the first."""


class Change(NamedTuple):
    """One event of kopf's watch."""

    key: Key
    uid: str
    version: int
    """resourceVersion; of a deleted job that of its deletion."""
    deleted: bool


def registry(
    load: Callable[[], Awaitable[Access]], changed: Callable[[Change], None], sessions: AsyncExitStack
) -> kopf.OperatorRegistry:
    """The handlers, for one run of kopf. `load` reads server and credentials. `changed` is called with each
    event, in kopf's thread. `sessions` closes the HTTP sessions of all logins."""
    handlers = kopf.OperatorRegistry()
    logins = itertools.count()

    @kopf.on.login(registry=handlers)
    async def log_in(**_: Any) -> kopf.AiohttpSession:
        """A new session each time: kopf gives up when a login returns refused credentials again."""
        if next(logins):
            await asyncio.sleep(_LOGIN_SECONDS)
        access = await load()
        connector = aiohttp.TCPConnector(limit=0, ssl=access.tls or True)
        session = aiohttp.ClientSession(
            connector=connector, headers=await access.headers(), response_class=outline.ReducedResponse
        )
        sessions.push_async_callback(session.close)
        return kopf.AiohttpSession(server=access.server, aiohttp_session=session)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)
    async def job_changed(type: str | None, meta: kopf.Meta, **_: Any) -> None:
        """Report an event. The parameters are kopf's; `type` is ADDED, MODIFIED, DELETED, None in a list."""
        key = Key(meta.namespace or "", meta.name or "")
        changed(Change(key, meta["uid"], int(meta["resourceVersion"]), type == "DELETED"))

    return handlers
