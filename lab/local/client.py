"""A small client for the API server, HTTP as it is on the wire, and patience."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from lab.waiting import wait_until_async
from ropeteam.local.cluster import LocalCluster

Object = dict[str, Any]
CORE, JOBS = "/api/v1/namespaces/default", "/apis/ropeteam.dev/v1alpha1/namespaces/default/trainingjobs"


class Client:
    """Calls that answer (HTTP status, body)."""

    def __init__(self, cluster: LocalCluster, session: aiohttp.ClientSession) -> None:
        self.cluster, self.session = cluster, session

    async def call(self, method: str, path: str, body: Any = None, **query: str) -> tuple[int, Any]:
        content = query.pop("content", "application/json")
        headers = {"Content-Type": content, "Authorization": f"Bearer {self.cluster.token}"}
        data = None if body is None else orjson.dumps(body)
        async with self.session.request(
            method, self.cluster.url + path, data=data, headers=headers, params=query
        ) as answer:
            raw = await answer.read()
            return answer.status, orjson.loads(raw) if "json" in answer.content_type else raw.decode()

    async def get(self, path: str, **query: str) -> Any:
        status, body = await self.call("GET", path, **query)
        assert status == 200, body
        return body

    async def create(self, path: str, body: Any, **query: str) -> Object:
        status, body = await self.call("POST", path, body, **query)
        assert status == 201, body
        return body

    async def run(self, name: str, *command: str, **spec: Any) -> Object:
        return await self.create(f"{CORE}/pods", pod(name, *command, **spec))

    async def wait_for(self, path: str, holds: Callable[[Object], Any], **query: str) -> Object:
        """Poll an object until it `holds`."""
        seen: Object = {}

        async def look() -> bool:
            nonlocal seen
            seen = await self.get(path, **query)
            return bool(holds(seen))

        await wait_until_async(lambda: f"{path}: {seen}", look)
        return seen

    async def phase(self, name: str, phase: str) -> Object:
        return await self.wait_for(f"{CORE}/pods/{name}", lambda seen: seen["status"]["phase"] == phase)

    async def logged(self, name: str, text: str) -> Object:
        """Wait until the running pod has written `text`; the pod as it is then."""
        path = f"{CORE}/pods/{name}"

        async def look() -> bool:
            status, written = await self.call("GET", f"{path}/log")
            return status == 200 and text in written

        await wait_until_async(lambda: f"{text!r} is in {path}/log", look)
        return await self.phase(name, "Running")

    async def gone(self, path: str) -> None:
        async def look() -> bool:
            return (await self.call("GET", path))[0] == 404

        await wait_until_async(f"{path} is gone", look)

    async def watch(self, path: str, **query: str) -> AsyncIterator[Object]:
        headers = {"Authorization": f"Bearer {self.cluster.token}"}
        url = self.cluster.url + path
        async with self.session.get(url, headers=headers, params={"watch": "true", **query}) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                yield orjson.loads(line)


def pod(name: str, *command: str, **spec: Any) -> Object:
    """A pod with one container `main`. `container=` adds to that, the rest to the pod's spec."""
    main = {"name": "main", "image": "none", "command": list(command), **spec.pop("container", {})}
    return {"metadata": {"name": name}, "spec": {"restartPolicy": "Never", "containers": [main], **spec}}


def alive(pid: int) -> bool:
    """A zombie is dead: nobody may be there to reap it."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
