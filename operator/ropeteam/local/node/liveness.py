"""The livenessProbe of a container, as a kubelet runs it. Limits: httpGet only, no headers or host."""

from __future__ import annotations

import asyncio

import aiohttp

from ropeteam.local.resources import Object


async def wait_for_failure(container: Object, address: str) -> str:
    """Probe a container until `failureThreshold` probes in a row have failed; returns the reason of the last
    failure. Limit: successThreshold is 1, as Kubernetes requires. `address`: the pod's."""
    probe = container["livenessProbe"]
    limit, period = probe.get("failureThreshold", 3), probe.get("periodSeconds", 10)
    url = f"http://{address}:{_probe_port(container)}{probe['httpGet'].get('path', '/')}"
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    failures, why = 0, ""
    clock = asyncio.get_running_loop().time
    due = clock()
    while failures < limit:
        due += period
        await asyncio.sleep(max(0.0, due - clock()))
        why = await _send_probe(url, probe.get("timeoutSeconds", 1))
        failures = failures + 1 if why else 0
    return why


def _probe_port(container: Object) -> int:
    """The port to probe: a number, or the name of one of the container's ports. Raises ValueError for an
    unknown name."""
    wanted = container["livenessProbe"]["httpGet"]["port"]
    ports = (port["containerPort"] for port in container.get("ports", ()) if port.get("name") == wanted)
    return int(next(ports, wanted))


async def _send_probe(url: str, seconds: float) -> str:
    """Send one request. Returns the reason of a failure; "": success."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds)) as session,
            session.get(url) as answer,
        ):
            return "" if 200 <= answer.status < 400 else f"HTTP probe failed with statuscode: {answer.status}"
    except TimeoutError:
        return f"no answer from {url} within {seconds} s"
    except (aiohttp.ClientError, OSError) as error:
        return str(error)
