"""The lab's addresses, and its one bridge; a second one for nodes that are cut off together.

    10.77.0.1        this machine: the control plane
    10.77.0.(10+N)   node N
    10.88.N.0/24     pods of node N, routed by their node: behind a bridge no Service would work within a node
    10.96.0.0/16     Services
Nothing is ever sent outside of these.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection

BRIDGE, ISLAND = "ropeteam-lab", "ropeteam-isle"
CONTROL_PLANE = "10.77.0.1"
PODS, SERVICES, FIRST_SERVICE = "10.88.0.0/16", "10.96.0.0/16", "10.96.0.1"


def node_address(number: int) -> str:
    return f"10.77.0.{10 + number}"


def pod_range(number: int) -> str:
    return f"10.88.{number}.0/24"


def link(number: int) -> str:
    """The bridge's end of node N's cable."""
    return f"rope-lab-{number}"


def create() -> None:
    ip("link", "add", BRIDGE, "type", "bridge")
    ip("addr", "add", f"{CONTROL_PLANE}/24", "dev", BRIDGE)
    ip("link", "set", BRIDGE, "up")


def delete() -> None:
    for bridge in (BRIDGE, ISLAND):
        subprocess.run(["ip", "link", "delete", bridge], capture_output=True)


def connect(number: int, init: int, numbers: int) -> None:
    """A cable from the bridge to the network of process `init`, and the routes at both ends.

    `numbers`: routes to the pods of nodes 1..numbers.
    """
    subprocess.run(["ip", "link", "delete", link(number)], capture_output=True)
    ip("link", "add", link(number), "type", "veth", "peer", "name", "eth0", "netns", str(init))
    ip("link", "set", link(number), "master", BRIDGE, "up")
    inside = ("nsenter", f"--target={init}", "--net", "ip")
    for argv in (
        ("addr", "add", f"{node_address(number)}/24", "dev", "eth0"),
        ("link", "set", "eth0", "up"),
        ("link", "set", "lo", "up"),
        ("route", "add", "default", "via", CONTROL_PLANE),
        *(
            ("route", "add", pod_range(other), "via", node_address(other))
            for other in range(1, numbers + 1)
            if other != number
        ),
    ):
        run(*inside, *argv)
    # Not on the node's IP forwarding of this machine: only the routes of the lab are added.
    ip("route", "replace", pod_range(number), "via", node_address(number))


def disconnect(number: int) -> None:
    """The cable is pulled out of the bridge: packets vanish, and no end gets an error."""
    ip("link", "set", link(number), "nomaster")


def isolate(numbers: Collection[int]) -> None:
    """The nodes still reach one another, and nothing else: neither the control plane nor other nodes."""
    subprocess.run(["ip", "link", "delete", ISLAND], capture_output=True)
    ip("link", "add", ISLAND, "type", "bridge")
    ip("link", "set", ISLAND, "up")
    for number in numbers:
        ip("link", "set", link(number), "master", ISLAND)


def heal(number: int) -> None:
    ip("link", "set", link(number), "master", BRIDGE)


def ip(*argv: str) -> None:
    run("ip", *argv)


def run(*argv: str) -> None:
    done = subprocess.run(argv, text=True, capture_output=True)
    if done.returncode:
        raise OSError(f"{' '.join(argv)}: {done.stderr.strip()}")
