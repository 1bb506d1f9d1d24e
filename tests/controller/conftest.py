"""A scripted API server, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from tests.controller.scripted import Scripted, access, serving

from ropeteam.controller.client.access import Access
from ropeteam.controller.client.apiclient import ApiClient


@pytest_asyncio.fixture
async def api() -> AsyncIterator[Scripted]:
    api = Scripted()
    async with serving(api) as api.address:
        yield api


@pytest_asyncio.fixture
async def client(api: Scripted) -> AsyncIterator[ApiClient]:
    loads = iter(range(1000))

    async def load() -> Access:
        return access(api.address, f"token-{next(loads)}")

    async with ApiClient(load) as client:
        yield client
