"""Foreign clients connect: a scanner, an old client, a proxy that spoils what it passes on.

An unauthenticated peer sends a request in which something is wrong, to either port of the coordinator, and
goes. Promise: it receives the reason, or is cut off where it does not even speak HTTP; nothing else happens.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from tests.shipped.loop import Process
from tests.sim.promise import Broken

from ropeteam_trainer.contract import config

if TYPE_CHECKING:
    from tests.shipped.nodes import Pod
    from tests.shipped.site import Site

_SOON = 2.0
"""A client that was cut off later had not sent all that it promised."""
_PATHS = ("/desired", "/report", "/metrics", "/healthz", "/", "/../desired?x=1", "*")
_VALUES = ("", "0", "-1", "x", "1e3", "+5", "\u0663", "7, 7", "9" * 30, "Bearer x", "chunked")
_NAMES = ("Content-Length", "content-length", "Authorization", "Transfer-Encoding", "Host", "Expect", " ")


def request(random: Random) -> bytes:
    """Mostly HTTP, never what a coordinator should act on."""
    fields = [random.choice(("PUT", "PUT", "POST", "GET", "")), random.choice(_PATHS)]
    fields.append(random.choice(("HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2")))
    names = random.choices(_NAMES, k=random.randint(0, 3))
    headers = [f"{name}:{random.choice((' ', ''))}{random.choice(_VALUES)}" for name in names]
    head, body = (
        "\r\n".join((" ".join(fields), *headers, "", "")),
        random.randbytes(random.choice((0, 5, 5000))),
    )
    whole = head.encode() + body
    return whole[: random.randint(0, len(whole))] if random.random() < 0.3 else whole


def knock(site: Site, pod: Pod, random: Random) -> None:
    peer = Process(site.loop, "stranger", pod.node.name, site.next_ip())
    port = random.choice((config.COORDINATOR_HTTP_PORT, config.COORDINATOR_AGENT_PORT))
    peer.spawn(lambda: _visit(site, pod, port, request(random)))


async def _visit(site: Site, pod: Pod, port: int, sent: bytes) -> None:
    process, began = pod.process, site.loop.now
    try:
        async with asyncio.timeout(20.0):
            reader, writer = await asyncio.open_connection(pod.ip, port)
            try:
                writer.write(sent)
                answer = await reader.read(4096)
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return
    if port != config.COORDINATOR_HTTP_PORT:
        return
    reported = answer.startswith(b"HTTP/1.1 200") and b"/desired" not in sent and b"/report" not in sent
    refused = answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 503"))
    lives = process is not None and process.alive and site.loop.now < began + _SOON
    disconnected = not answer and not (lives and b"\r\n\r\n" in sent)
    if not (reported or refused or disconnected):  # nobody awaits this task
        site.loop.faults.append(Broken(f"a stranger is refused: {sent[:80]!r}: {answer[:80]!r}"))
