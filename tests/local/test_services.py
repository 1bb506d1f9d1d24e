"""Services as TCP proxies, and the API server's own way to them."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import pytest
from lab.local.client import CORE, Client
from lab.waiting import wait_until_async, within

from ropeteam.local.cluster import LocalCluster, LocalClusterError

Object = dict[str, Any]
SERVER = """
import os, socket, sys
s = socket.create_server((os.environ["POD_IP"], 8000))
while True:
    c, _ = s.accept()
    if not os.fork():
        while d := c.recv(100):
            c.sendall(sys.argv[1].encode() + b" " + d)
        os._exit(0)
    c.close()
"""
WEB = """
import os
from http.server import BaseHTTPRequestHandler as B, HTTPServer
class H(B):
    def do_GET(self):
        text = f"{self.path} {self.headers.get('Authorization')} {self.headers.get('X-Own')}"
        self.send_response(418); self.end_headers(); self.wfile.write(text.encode())
HTTPServer((os.environ["POD_IP"], 8000), H).serve_forever()
"""


async def start(api: Client, name: str, script: str = SERVER) -> Object:
    """A ready pod that answers on port 8000 with its name first."""
    container: Object = {"name": "main", "image": "i", "command": ["python", "-c", script, name]}
    container["ports"] = [{"name": "echo", "containerPort": 8000}]
    meta = {"name": name, "labels": {"app": name}}
    await api.create(f"{CORE}/pods", {"metadata": meta, "spec": {"containers": [container]}})
    pod = await api.phase(name, "Running")
    await wait_until_async("the pod accepts connections", lambda: reaches(pod["status"]["podIP"], 8000))
    return pod


async def reaches(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


async def service(api: Client, name: str, app: str, target: int | str = 8000) -> str:
    spec = {"selector": {"app": app}, "ports": [{"name": "p", "port": 29999, "targetPort": target}]}
    made = await api.create(f"{CORE}/services", {"metadata": {"name": name}, "spec": spec})
    address: str = made["spec"]["clusterIP"]
    return address


async def first_line(host: str) -> str:
    reader, writer = await asyncio.open_connection(host, 29999)
    writer.write(b"hello")
    answer = await reader.read(100)
    writer.close()
    return answer.decode()


async def test_a_service_leads_to_its_pod_and_follows_the_selector(api: Client):
    await start(api, "one")
    await start(api, "two")
    host = await service(api, "s", "one", "echo")
    await wait_until_async("the service leads to a pod", lambda: reaches(host, 29999))
    assert await first_line(host) == "one hello"
    change = {"spec": {"selector": {"app": "two"}}}
    await api.call("PATCH", f"{CORE}/services/s", change, content="application/merge-patch+json")
    assert await first_line(host) == "two hello"
    await api.call("DELETE", f"{CORE}/services/s")

    async def refused() -> bool:
        return not await reaches(host, 29999)

    await wait_until_async("the service refuses connections", refused)


async def test_without_a_ready_pod_the_connection_is_refused(api: Client):
    await start(api, "two")
    host, other = await service(api, "s", "one"), await service(api, "t", "two")
    await wait_until_async("the other service leads to its pod", lambda: reaches(other, 29999))
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, 29999)
    await start(api, "one")
    await wait_until_async("the service leads to a pod", lambda: reaches(host, 29999))


async def test_there_are_addresses_for_many_services_and_none_is_a_pods(api: Client):
    await start(api, "one")
    pod = await api.get(f"{CORE}/pods/one")
    addresses = [await service(api, f"s-{number}", "nobody") for number in range(300)]
    assert len({*addresses, pod["status"]["podIP"]}) == 301


async def test_an_address_that_was_in_use_is_listened_on_when_it_is_free(
    api: Client, caplog: pytest.LogCaptureFixture
):
    await start(api, "one")
    host = await service(api, "s", "nobody")

    async def reported() -> bool:
        return "service s cannot listen" in caplog.text

    with socket.create_server((host, 29999)):
        change = {"spec": {"selector": {"app": "one"}}}
        await api.call("PATCH", f"{CORE}/services/s", change, content="application/merge-patch+json")
        await wait_until_async("the address in use is logged", reported)
    await wait_until_async("the service leads to a pod", lambda: reaches(host, 29999))
    assert await first_line(host) == "one hello"


async def test_connections_to_a_dead_pod_end_at_once(api: Client):
    await start(api, "one")
    host = await service(api, "s", "one")
    await wait_until_async("the service leads to a pod", lambda: reaches(host, 29999))
    reader, writer = await asyncio.open_connection(host, 29999)
    writer.write(b"x")
    assert await reader.read(100) == b"one x"
    await api.call("DELETE", f"{CORE}/pods/one", {"gracePeriodSeconds": 0})
    with suppress(ConnectionError):  # cut is as good as closed
        assert await within("the connection ends", reader.read(100)) == b""
    writer.close()


async def test_the_api_server_proxies_to_a_service_without_the_clients_token(api: Client):
    await start(api, "web", WEB)
    await service(api, "s", "web")
    status, text = await api.call("GET", f"{CORE}/services/s:p/proxy/status/x", a="b")
    assert (status, text) == (418, "/status/x?a=b None None")
    status, answer = await api.call("GET", f"{CORE}/services/none:p/proxy/")
    assert status == 404
    await service(api, "empty", "nobody")
    status, answer = await api.call("GET", f"{CORE}/services/empty:29999/proxy/")
    assert (status, answer["reason"]) == (503, "ServiceUnavailable")


async def test_two_clusters_side_by_side_have_their_own_addresses(api: Client, tmp_path):
    async with LocalCluster(tmp_path / "other") as other:
        assert other.url.split(".")[1] != api.cluster.url.split(".")[1]
        with pytest.raises(LocalClusterError, match="another cluster runs"):
            await LocalCluster(tmp_path / "other").start()
