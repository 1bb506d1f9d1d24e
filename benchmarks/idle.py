"""500 strangers at each port of a local cluster, for benchmarks/strangers.py: they connect and say nothing.

    python -m benchmarks.idle ours|torch ADDRESS PID NETWORK FILE      until SIGTERM

PID: of `ropeteam up`; NETWORK: of its cluster, as in `127.20`. "ours" are the ports of docs/security.md that
have places for strangers, of every pod and of the operator; "torch" all others in which its pods listen: the
store, and gloo between ranks. A port is beset within a tenth of a second after it began to listen. Who is
closed comes again after half a second to one and a half, so a port that closes all of them sees 500 new ones
a second, not as many as a loop can make. ADDRESS: where they come from; pods of a local cluster come from
127.0.0.1. FILE: what was done until now, {"ports": {"127.20.1.1:29401": Port, ...}, "share": of a core}.
Limits: addresses of pods only, for a Service of a local cluster is a proxy in Python, which no other cluster
has. Listeners are asked of the kernel (sock_diag): /proc/net/tcp has a line for each stranger.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from ropeteam.local.node.services import ADDRESSES
from ropeteam_trainer.contract import config

EACH = 500
REST_SECONDS, LOOK_SECONDS, TELL_SECONDS = 1.0, 0.05, 0.5
NICENESS = 10
SERVED = (
    config.COORDINATOR_AGENT_PORT, config.COORDINATOR_HTTP_PORT, config.AGENT_METRICS_PORT,
    config.PARAMETER_SERVER_PORT,
)  # fmt: skip
LOOPBACK = "127.0.0.1"
"""Where the operator of a local cluster listens, and gloo."""
_CLOSED = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_SOCK_DIAG, _DIAG_BY_FAMILY, _DUMP, _LISTENING = 4, 20, 0x301, 1 << 10
_BIND_NO_PORT, _RESET = 24, struct.pack("ii", 1, 0)


@dataclass
class Port:
    """One that was beset, and how often."""

    role: str
    """"29401" and the like, "operator", "store" or "gloo"."""
    listens: bool = True
    open: int = 0
    most: int = 0
    """Open at the same time."""
    opened: int = 0
    """In all, that were accepted by the kernel at least."""


Place = tuple[str, int]


def listeners() -> Iterator[tuple[Place, int]]:
    """Address and inode of every listening IPv4 socket of this network namespace."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        body = struct.pack("=BBBBI48x", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _LISTENING)
        kernel.send(struct.pack("=IHHII", 16 + len(body), _DIAG_BY_FAMILY, _DUMP, 1, 0) + body)
        while data := kernel.recv(1 << 16):
            while data:
                size, kind = struct.unpack_from("=IH", data)
                if kind != _DIAG_BY_FAMILY:
                    return
                port, address = struct.unpack_from(">H2x4s", data, 20)
                yield (socket.inet_ntoa(address), port), struct.unpack_from("=I", data, 84)[0]
                data = data[(size + 3) & ~3 :]


class Owners:
    """Whose a listening socket is."""

    def __init__(self, pid: int, network: str) -> None:
        self._root, self._network, self._known = psutil.Process(pid), network, dict[int, str]()

    def role(self, place: Place, inode: int) -> str:
        """ "": neither of a pod of this cluster nor of its operator."""
        address, port = place
        network, third, _ = address.rsplit(".", 2)
        if network == self._network and 0 < int(third) < ADDRESSES.start:
            return str(port) if port in SERVED else "store"
        if address == LOOPBACK and inode not in self._known:
            self._known[inode] = self._of_process(inode)
        return self._known.get(inode, "")

    def _of_process(self, inode: int) -> str:
        for process in self._root.children(recursive=True):
            with suppress(psutil.Error, OSError):
                if f"socket:[{inode}]" in _descriptors(process.pid):
                    return "operator" if "ropeteam.controller" in process.cmdline() else "gloo"
        return ""


def _descriptors(pid: int) -> set[str]:
    return {str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()}


class Crowd:
    """All strangers, in one loop."""

    def __init__(self, kind: str, address: str, owners: Owners) -> None:
        self._torch, self._address, self._owners = kind == "torch", address, owners
        self.ports: dict[Place, Port] = {}
        self._inodes: dict[Place, int] = {}
        """Of ports that listen."""
        self._due: list[tuple[float, Place]] = []
        """A heap."""
        self._alive: dict[int, tuple[socket.socket, Place]] = {}
        self._open: set[int] = set()
        self._poll = select.epoll()

    def look(self) -> None:
        """Beset ports that are new, and leave those that are gone."""
        now = dict(listeners())
        for place in self._inodes.keys() - now.keys():
            del self._inodes[place]
            self.ports[place].listens = False
        for place, inode in now.items():
            if self._inodes.get(place) == inode:
                continue
            role = self._owners.role(place, inode)
            if role and (role in ("store", "gloo")) == self._torch:
                self._inodes[place] = inode
                self.ports.setdefault(place, Port(role)).listens = True
                for _ in range(EACH):
                    heapq.heappush(self._due, (0.0, place))

    def turn(self) -> None:
        """Hear of what happened to strangers, and send those that have rested."""
        for number, event in self._poll.poll(LOOK_SECONDS / 5, 512):
            if event & _CLOSED:
                self._leave(number)
            elif number not in self._open:
                self._open.add(number)
                port = self.ports[self._alive[number][1]]
                port.opened, port.open = port.opened + 1, port.open + 1
                port.most = max(port.most, port.open)
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            place = heapq.heappop(self._due)[1]
            if place in self._inodes:
                self._come(place)

    def _come(self, place: Place) -> None:
        stranger = socket.socket()
        stranger.setblocking(False)
        stranger.setsockopt(socket.SOL_IP, _BIND_NO_PORT, 1)  # else 28,000 for all ports together
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)  # leaves no TIME_WAIT behind
        stranger.bind((self._address, 0))
        stranger.connect_ex(place)
        self._alive[stranger.fileno()] = stranger, place
        self._poll.register(stranger, select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)

    def _leave(self, number: int) -> None:
        stranger, place = self._alive.pop(number)
        stranger.close()
        if number in self._open:
            self._open.discard(number)
            self.ports[place].open -= 1
        rest = REST_SECONDS * random.uniform(0.5, 1.5)
        heapq.heappush(self._due, (time.monotonic() + rest, place))


def tell(file: Path, crowd: Crowd, began: float) -> None:
    ports = {f"{host}:{port}": asdict(each) for (host, port), each in crowd.ports.items()}
    share = time.process_time() / max(time.monotonic() - began, 1.0)
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"ports": ports, "share": share}))
    new.replace(file)


def main() -> None:
    kind, address, pid, network, file = *sys.argv[1:3], int(sys.argv[3]), sys.argv[4], Path(sys.argv[5])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    os.nice(NICENESS)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    crowd, began, look_at, tell_at = Crowd(kind, address, Owners(pid, network)), time.monotonic(), 0.0, 0.0
    while True:
        now = time.monotonic()
        if now >= look_at:
            crowd.look()
            look_at = now + LOOK_SECONDS
        if now >= tell_at:
            tell(file, crowd, began)
            tell_at = now + TELL_SECONDS
        crowd.turn()


if __name__ == "__main__":
    main()
