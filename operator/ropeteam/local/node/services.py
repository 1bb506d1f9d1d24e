"""Services: for each cluster address and port a TCP proxy to the pods that the selector matches.

The port listens only while there is a ready pod behind it, so that a connection is refused otherwise. A
connection lasts as long as both of its ends; a connection to a pod that is gone is aborted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from itertools import count

from ropeteam.api.rule import at
from ropeteam.local import resources as r
from ropeteam.local.api.selectors import matches
from ropeteam.local.api.store import Event, Key, Store, key_of
from ropeteam.local.resources import Object, StatusError

_log = logging.getLogger(__name__)
ADDRESSES = range(224, 256)
"""Third number of the addresses of Services; pods have smaller ones."""
AGAIN_SECONDS = 1.0
"""Interval at which an address that could not be bound is tried again."""
_ITERATIONS_TO_ACCEPT = 5
"""Iterations of the loop from the accept in asyncio to the call of our `accept`."""
Backend = tuple[str, int, str]
"""Address and port of a pod, and its UID."""


class Services:
    """Proxies connections to Services, following the Services and pods of the store. `network`: the first two
    numbers of the cluster's addresses."""

    def __init__(self, store: Store, network: str) -> None:
        self.store, self._network = store, network
        self._servers: dict[tuple[Key, str, int], asyncio.Server] = {}
        self._connections: defaultdict[str, set[asyncio.StreamWriter]] = defaultdict(set)
        self._turn = count()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._proxies: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Listen for Services from the next write on. Needs a running event loop."""
        self.store.listeners.append(self._handle_event)
        self._task = asyncio.create_task(self._keep_listening())

    async def stop(self) -> None:
        """Close all listeners, then all connections: no new one comes in between."""
        self.store.listeners.remove(self._handle_event)
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await _close_servers(self._servers.values())
        while self._proxies:
            for task in self._proxies:
                task.cancel()
            await asyncio.gather(*self._proxies, return_exceptions=True)

    def allocate_address(self) -> str:
        """A free address for a Service. Raises StatusError 500 when all 8,128 are used."""
        used = {service["spec"].get("clusterIP") for service in self.store.list(r.SERVICES)}
        found = (f"{self._network}.{third}.{fourth}" for third in ADDRESSES for fourth in range(1, 255))
        address = next((address for address in found if address not in used), None)
        if address is None:
            raise StatusError(500, "InternalError", "failed to allocate a serviceIP: range is full")
        return address

    def backends(self, service: Object, port: Object) -> list[Backend]:
        """Ready pods behind a port of a Service."""
        selector = service["spec"].get("selector")
        pods = self.store.list(r.PODS, service["metadata"]["namespace"]) if selector else ()
        return [
            (pod["status"]["podIP"], number, pod["metadata"]["uid"])
            for pod in pods
            if matches(selector, pod) and _is_ready(pod) and (number := _target_port(pod, port))
        ]

    def _handle_event(self, event: Event) -> None:
        """Abort connections to a pod that has ended, and wake `_keep_listening`."""
        if event.resource == r.PODS:
            if event.type == "DELETED" or at(event.object, "status.phase") in ("Succeeded", "Failed"):
                for writer in self._connections.pop(event.object["metadata"]["uid"], ()):
                    writer.transport.abort()
            self._changed.set()
        elif event.resource == r.SERVICES:
            self._changed.set()

    async def _keep_listening(self) -> None:
        """After each change, close listeners of ports without a ready pod and open those that are missing,
        until cancelled. An address that cannot be bound is tried again each AGAIN_SECONDS, and logged
        once."""
        unbound: set[tuple[Key, str, int]] = set()
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), AGAIN_SECONDS if unbound else None)
            self._changed.clear()
            wanted = {
                (key_of(service), service["spec"]["clusterIP"], port["port"]): (service, port)
                for service in self.store.list(r.SERVICES)
                for port in service["spec"].get("ports", ())
                if service["spec"].get("clusterIP") != "None" and self.backends(service, port)
            }
            await _close_servers([self._servers.pop(gone) for gone in self._servers.keys() - wanted.keys()])
            unbound &= wanted.keys()
            for new in wanted.keys() - self._servers.keys():
                try:
                    self._servers[new] = await self._listen(*new)
                    unbound.discard(new)
                except OSError as error:  # privileged or taken: connections are refused, as without a pod
                    if new not in unbound:
                        _log.warning(
                            "service %s cannot listen on %s port %s, tried again each second: %s",
                            new[0][1], new[1], new[2], error,
                        )  # fmt: skip
                    unbound.add(new)

    async def _listen(self, key: Key, address: str, number: int) -> asyncio.Server:
        """Listen on a port of a Service; each connection gets a proxy task. Raises OSError."""

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._proxy(key, number, reader, writer))
            self._proxies.add(task)
            task.add_done_callback(partial(self._close_connection, writer))

        return await asyncio.start_server(accept, address, number)

    def _close_connection(self, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        """Callback at the end of a proxy task, also of one that was cancelled before it began: close its
        client's connection."""
        self._proxies.discard(task)
        if task.cancelled():
            writer.transport.abort()
        else:
            writer.close()

    async def _proxy(
        self, key: Key, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Connect a client of port `number` of the Service `key` to its next ready pod, in turn, and copy
        both directions until the pod ends the connection. Without such a pod the connection is aborted."""
        service = self.store.find(r.SERVICES, key) or {"spec": {}, "metadata": {"namespace": key[0]}}
        port = next((p for p in service["spec"].get("ports", ()) if p["port"] == number), None)
        choices = self.backends(service, port) if port else []
        try:
            host, target, uid = choices[next(self._turn) % max(1, len(choices))]
            pod_reader, pod_writer = await asyncio.open_connection(host, target)
        except (IndexError, OSError):
            writer.transport.abort()
            return
        self._connections[uid].add(writer)
        upstream = asyncio.create_task(_copy_stream(reader, pod_writer))
        try:
            await _copy_stream(pod_reader, writer)
        finally:
            upstream.cancel()
            self._connections[uid].discard(writer)
            pod_writer.transport.abort()


async def _close_servers(servers: Collection[asyncio.Server]) -> None:
    """Close listeners. A connection that asyncio has accepted, but not yet passed to us, leaks if its
    listener is closed (Python 3.11). So stop accepting first, then give the loop time to pass on accepted
    ones, then close."""
    for server in servers:
        for listener in server.sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
    for _ in range(_ITERATIONS_TO_ACCEPT if servers else 0):
        await asyncio.sleep(0)
    for server in servers:
        server.close()


async def _copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction of a connection until it ends, then end it at the other side, too. Errors end it
    silently."""
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def _is_ready(pod: Object) -> bool:
    """Whether a pod may get connections: it is ready and not being deleted."""
    return "deletionTimestamp" not in pod["metadata"] and any(
        c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ())
    )


def _target_port(pod: Object, port: Object) -> int | None:
    """The port of a pod behind a port of a Service; a name is looked up in the pod. None: no container has a
    port of that name."""
    target = port["targetPort"]
    if isinstance(target, int):
        return target
    rows = [row for container in pod["spec"]["containers"] for row in container.get("ports", ())]
    return next((row["containerPort"] for row in rows if row.get("name") == target), None)
