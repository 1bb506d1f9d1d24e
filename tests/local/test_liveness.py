"""A liveness probe, as a kubelet runs it: a container that fails it is killed and restarted."""

from __future__ import annotations

import signal
import sys

import pytest
from lab.local.client import CORE, Client
from tests.local.test_pods import Object, kill, main_of

SERVE = """import http.server, sys
class Well(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer((sys.argv[1], 8099), Well).serve_forever()
"""


@pytest.mark.parametrize("path", ["hangs", "refuses"])
async def test_a_container_whose_liveness_probe_fails_is_killed_and_run_again(api: Client, path: str):
    command = [sys.executable, "-c", SERVE, "$(IP)"] if path == "hangs" else ["sleep", "1000"]
    body: Object = {"name": "main", "image": "i", "command": command}
    body["env"] = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    body["ports"] = [{"name": "web", "containerPort": 8099}]
    web = {"path": "/", "port": "web"}
    body["livenessProbe"] = {"httpGet": web, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 2}
    spec = {"containers": [body], "terminationGracePeriodSeconds": 1}
    await api.create(f"{CORE}/pods", {"metadata": {"name": "p"}, "spec": spec})
    pod = await api.wait_for(f"{CORE}/pods/p", lambda pod: main_of(pod)["state"].get("running"))
    if path == "hangs":
        await kill(pod, signal.SIGSTOP)
    pod = await api.wait_for(f"{CORE}/pods/p", lambda pod: main_of(pod)["restartCount"] == 1)
    pod = await api.wait_for(f"{CORE}/pods/p", lambda pod: main_of(pod)["state"].get("running"))
    assert main_of(pod)["lastState"]["terminated"]["exitCode"] in (137, 143)
    events = [event for event in (await api.get(f"{CORE}/events"))["items"] if event["type"] == "Warning"]
    assert "Unhealthy" in [event["reason"] for event in events]
