"""Roles of ranks, and discovery of the servers' addresses.

Ranks 0..workers-1 train; the servers have the ranks after them. Under the operator the addresses are in the
plan; without it the ranks exchange them through torchrun's store.
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
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.rank.agentlink import AgentLink, HeartbeatWriter, NoAgent

BEAT_SECONDS = 1.0
"""Interval of heartbeats of a rank that serves, or waits for a server."""


@dataclass(frozen=True)
class Place:
    """A rank's role in a job with parameter servers."""

    rank: int
    workers: int
    servers: int

    @property
    def server(self) -> int | None:
        """Index among the servers; None: a worker. 0 is the chief."""
        return self.rank - self.workers if self.rank >= self.workers else None

    @property
    def saves(self) -> bool:
        """Whether this rank saves checkpoints: with servers, only the chief does."""
        return not self.servers or self.server == 0


def place(environ: Mapping[str, str], servers: int) -> Place:
    """Role from torchrun's variables. Raises StrategyError if no worker is left."""
    rank, world = int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
    if world <= servers:
        raise StrategyError(
            f"spec.strategy.sync.parameterServer: {servers} servers leave no worker among {world} ranks; "
            f"start {servers} ranks in addition to the workers"
        )
    return Place(rank, world - servers, servers)


class Discovery:
    """Discovery of a job's servers: `addresses()`, chief first, the current ones; `secret`. `alive()` is a
    context for waiting for a server's answer, or for the chief's saves.
    """

    def __init__(
        self, here: Place, plan: RankPlan, link: AgentLink | NoAgent, heart: HeartbeatWriter
    ) -> None:
        self._plan, self._link = plan, link
        self.alive = _Alive(heart)
        self.listener: socket.socket | None = None
        self.secret = f"{plan.secret}/{plan.line}"  # ranks of another server generation are refused
        self.world_id = WorldId.parse(plan.world_id)
        self._addresses: tuple[str, ...] = ()
        if here.server is not None:
            self.listener = self._listen(here.server)
        if not plan.servers:
            self._exchange_by_store(here)

    def addresses(self) -> tuple[str, ...]:
        return self._link.servers or self._plan.servers or self._addresses

    def _listen(self, server: int) -> socket.socket:
        if not self._plan.servers:
            return socket.create_server(("", 0), backlog=BACKLOG)
        host, _, port = self._plan.servers[server].rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, int(port)), family=family, backlog=BACKLOG)

    def _exchange_by_store(self, here: Place) -> None:
        host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
        hosts = here.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        self._store = TCPStore(host, port, is_master=hosts, wait_for_workers=False)  # kept until exit
        prefix = f"ropeteam/servers/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        if here.server == 0:
            self._store.set(f"{prefix}/secret", secrets.token_hex(16))
        if self.listener is not None:
            with socket.create_connection((host, port)) as to_store:
                own_host = to_store.getsockname()[0]
            self._store.set(f"{prefix}/{here.server}", f"{own_host}:{self.listener.getsockname()[1]}")
        self.secret = self._store.get(f"{prefix}/secret").decode()
        self._addresses = tuple(self._store.get(f"{prefix}/{i}").decode() for i in range(here.servers))


def memory(environ: Mapping[str, str]) -> Path | None:
    """Folder of a server's state. None: in the process, and lost with it."""
    folder = environ.get(config.MEMORY)
    return Path(folder) if folder else None


class _Alive:
    """Phase "serve" and heartbeats while any of several threads waits for a server, or saves: the rank counts
    neither as slow nor as hung, as long as the process lives. So only a server that itself hangs is blamed,
    wherever it hangs.
    """

    def __init__(self, heart: HeartbeatWriter) -> None:
        self._heart, self._lock, self._count = heart, threading.Lock(), 0
        self._phase: Any = None
        self._active = threading.Event()
        threading.Thread(target=self._send_heartbeats, daemon=True, name="ropeteam-pulse").start()

    def _send_heartbeats(self) -> None:
        while self._active.wait():
            with self._lock:
                if self._count:
                    self._heart.write()
            time.sleep(BEAT_SECONDS)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._phase = self._heart.during("serve")
                self._phase.__enter__()
                self._active.set()
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                if self._count == 0:
                    self._active.clear()
                    self._phase.__exit__(None, None, None)
