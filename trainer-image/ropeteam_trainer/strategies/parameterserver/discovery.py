"""Which of the two a rank is, what it does there, and where the servers are.

Ranks 0..workers-1 train; the servers come after them. Under the operator the addresses come with the plan;
without it the ranks find each other through torchrun's store.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ropeteam_trainer.contract import config
from ropeteam_trainer.contract.config import RankPlan
from ropeteam_trainer.contract.preauth import BACKLOG
from ropeteam_trainer.contract.strategy import StrategyError
from ropeteam_trainer.contract.world import Epoch
from ropeteam_trainer.rank.agentlink import AgentLink, Heartbeat

BEAT_SECONDS = 1.0
"""How often a rank that serves, or waits for a server, shows that it lives."""


@dataclass(frozen=True)
class Place:
    """Where a rank stands in a job with parameter servers."""

    rank: int
    workers: int
    servers: int

    @property
    def server(self) -> int | None:
        """Which server it is; None: a worker. 0 is the chief."""
        return self.rank - self.workers if self.rank >= self.workers else None

    @property
    def saves(self) -> bool:
        """With servers, the chief saves for all."""
        return not self.servers or self.server == 0


def place(environ: Mapping[str, str], servers: int) -> Place:
    """From torchrun's variables. Raises StrategyError if no worker is left."""
    rank, world = int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
    if world <= servers:
        raise StrategyError(
            f"strategy.sync.parameterServer: {servers} servers leave no worker among {world} ranks; start "
            f"{servers} ranks more than you want workers"
        )
    return Place(rank, world - servers, servers)


class Discovery:
    """How the ranks of a job find its servers: `addresses()`, chief first, as of now; `secret`. `alive()`
    wraps the time in which one of them is to answer, or the chief saves.
    """

    def __init__(self, here: Place, plan: RankPlan, link: AgentLink | None, heart: Heartbeat) -> None:
        self._plan, self._link = plan, link
        self.alive = _Alive(heart)
        self.listener: socket.socket | None = None
        self.secret = f"{plan.secret}/{plan.line}"  # ranks of another line are as strangers
        self.epoch = Epoch.parse(plan.epoch)
        self._found: tuple[str, ...] = ()
        if here.server is not None:
            self.listener = self._listen(here.server)
        if not plan.servers:
            self._meet_at_store(here)

    def addresses(self) -> tuple[str, ...]:
        told = self._link.servers if self._link is not None else ()
        return told or self._plan.servers or self._found

    def _listen(self, server: int) -> socket.socket:
        if not self._plan.servers:
            return socket.create_server(("", 0), backlog=BACKLOG)
        host, _, port = self._plan.servers[server].rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, int(port)), family=family, backlog=BACKLOG)

    def _meet_at_store(self, here: Place) -> None:
        host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
        hosts = here.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        self._store = TCPStore(host, port, is_master=hosts, wait_for_workers=False)  # lives as long as we do
        prefix = f"ropeteam/servers/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        if here.server == 0:
            self._store.set(f"{prefix}/secret", secrets.token_hex(16))
        if self.listener is not None:
            with socket.create_connection((host, port)) as to_store:
                mine = to_store.getsockname()[0]
            self._store.set(f"{prefix}/{here.server}", f"{mine}:{self.listener.getsockname()[1]}")
        self.secret = self._store.get(f"{prefix}/secret").decode()
        self._found = tuple(self._store.get(f"{prefix}/{i}").decode() for i in range(here.servers))


def memory(environ: Mapping[str, str]) -> Path | None:
    """Where a server keeps its state. None: in its process, and lost with it."""
    folder = environ.get(config.MEMORY)
    return Path(folder) if folder else None


class _Alive:
    """A phase of the job while any of several threads waits for a server, or saves: not a step that takes
    long, but not hung either, as long as the process lives. So nobody is blamed for a server that hangs but
    that one, wherever it does.
    """

    def __init__(self, heart: Heartbeat) -> None:
        self._heart, self._lock, self._count = heart, threading.Lock(), 0
        self._entered: Any = None
        self._waits = threading.Event()
        threading.Thread(target=self._pulse, daemon=True, name="ropeteam-pulse").start()

    def _pulse(self) -> None:
        while self._waits.wait():
            with self._lock:
                if self._count:
                    self._heart.beat()
            time.sleep(BEAT_SECONDS)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._entered = self._heart.during("serve")
                self._entered.__enter__()
                self._waits.set()
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                if self._count == 0:
                    self._waits.clear()
                    self._entered.__exit__(None, None, None)
