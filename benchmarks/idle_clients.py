"""500 idle clients at each port of a local cluster, for benchmarks/idle_connections.py.

    python -m benchmarks.idle_clients ours|torch ADDRESS PID NETWORK FILE      until SIGTERM

A client connects and sends nothing. PID: of `ropeteam up`; NETWORK: of its cluster, as in `127.20`. "ours"
are the ports of docs/security.md with a limit on unauthenticated connections, of every pod and of the
operator; "torch" all others on which its pods listen: the store, and gloo between ranks. Clients connect
within a tenth of a second after a port began to listen. A client whose connection is closed connects again
after half a second to one and a half, so a port that closes all of them sees 500 new ones a second, not as
many as a loop can make. ADDRESS: their source address; pods of a local cluster have 127.0.0.1. FILE: counters
until now, {"ports": {"127.20.1.1:29401": Port, ...}, "share": of a core}.
Limits: addresses of pods only, for a Service of a local cluster is a proxy in Python, which no other cluster
has. Listening sockets come from the kernel (sock_diag): /proc/net/tcp has a line for each connection.
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
REST_SECONDS, LOOK_SECONDS, REPORT_SECONDS = 1.0, 0.05, 0.5
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
    """A port with clients, and how many connections it had."""

    role: str
    """"29401" and the like, "operator", "store" or "gloo"."""
    listens: bool = True
    open: int = 0
    most: int = 0
    """Open at the same time."""
    opened: int = 0
    """In all, accepted by the kernel at least."""


Address = tuple[str, int]
"""Host and port."""


def listeners() -> Iterator[tuple[Address, int]]:
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
    """The processes that listening sockets belong to."""

    def __init__(self, pid: int, network: str) -> None:
        self._root, self._network, self._known = psutil.Process(pid), network, dict[int, str]()

    def role(self, address: Address, inode: int) -> str:
        """ "": neither of a pod of this cluster nor of its operator."""
        host, port = address
        network, third, _ = host.rsplit(".", 2)
        if network == self._network and 0 < int(third) < ADDRESSES.start:
            return str(port) if port in SERVED else "store"
        if host == LOOPBACK and inode not in self._known:
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


class Clients:
    """All clients, in one loop."""

    def __init__(self, kind: str, address: str, owners: Owners) -> None:
        self._torch, self._address, self._owners = kind == "torch", address, owners
        self.ports: dict[Address, Port] = {}
        self._inodes: dict[Address, int] = {}
        """Of ports that listen."""
        self._due: list[tuple[float, Address]] = []
        """A heap."""
        self._alive: dict[int, tuple[socket.socket, Address]] = {}
        self._open: set[int] = set()
        self._poll = select.epoll()

    def look(self) -> None:
        """Send clients to new ports, and none to ports that are gone."""
        now = dict(listeners())
        for address in self._inodes.keys() - now.keys():
            del self._inodes[address]
            self.ports[address].listens = False
        for address, inode in now.items():
            if self._inodes.get(address) == inode:
                continue
            role = self._owners.role(address, inode)
            if role and (role in ("store", "gloo")) == self._torch:
                self._inodes[address] = inode
                self.ports.setdefault(address, Port(role)).listens = True
                for _ in range(EACH):
                    heapq.heappush(self._due, (0.0, address))

    def turn(self) -> None:
        """Handle events of connections, and connect the clients whose rest is over."""
        for number, event in self._poll.poll(LOOK_SECONDS / 5, 512):
            if event & _CLOSED:
                self._disconnect(number)
            elif number not in self._open:
                self._open.add(number)
                port = self.ports[self._alive[number][1]]
                port.opened, port.open = port.opened + 1, port.open + 1
                port.most = max(port.most, port.open)
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            address = heapq.heappop(self._due)[1]
            if address in self._inodes:
                self._connect(address)

    def _connect(self, address: Address) -> None:
        connection = socket.socket()
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_IP, _BIND_NO_PORT, 1)  # else 28,000 for all ports together
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)  # leaves no TIME_WAIT behind
        connection.bind((self._address, 0))
        connection.connect_ex(address)
        self._alive[connection.fileno()] = connection, address
        self._poll.register(connection, select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)

    def _disconnect(self, number: int) -> None:
        connection, address = self._alive.pop(number)
        connection.close()
        if number in self._open:
            self._open.discard(number)
            self.ports[address].open -= 1
        rest = REST_SECONDS * random.uniform(0.5, 1.5)
        heapq.heappush(self._due, (time.monotonic() + rest, address))


def report(file: Path, clients: Clients, began: float) -> None:
    ports = {f"{host}:{port}": asdict(each) for (host, port), each in clients.ports.items()}
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
    clients = Clients(kind, address, Owners(pid, network))
    began, look_at, report_at = time.monotonic(), 0.0, 0.0
    while True:
        now = time.monotonic()
        if now >= look_at:
            clients.look()
            look_at = now + LOOK_SECONDS
        if now >= report_at:
            report(file, clients, began)
            report_at = now + REPORT_SECONDS
        clients.turn()


if __name__ == "__main__":
    main()
