"""Assignment of ranks to workers and servers, and discovery of the servers' addresses.

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

HEARTBEAT_SECONDS = 1.0
"""Interval of heartbeats of a rank that serves, or waits for a server."""


@dataclass(frozen=True)
class RankAssignment:
    """Whether a rank is a worker or a parameter server. Without servers, all ranks are workers."""

    rank: int
    workers: int
    servers: int

    @property
    def server_index(self) -> int | None:
        """Index among the servers; 0 is the chief. None: this rank is a worker."""
        return self.rank - self.workers if self.rank >= self.workers else None

    @property
    def saves_checkpoints(self) -> bool:
        """Whether this rank saves checkpoints: with servers, only the chief does."""
        return not self.servers or self.server_index == 0


def assignment_of(environ: Mapping[str, str], servers: int) -> RankAssignment:
    """Assignment of this rank by torchrun's RANK and WORLD_SIZE, which count servers too. Raises
    StrategyError if no rank is left to be a worker."""
    rank, world = int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
    if world <= servers:
        raise StrategyError(
            f"spec.strategy.sync.parameterServer: {servers} servers leave no worker among {world} ranks; "
            f"start at least {servers + 1} ranks (torchrun --nproc-per-node), or lower servers"
        )
    return RankAssignment(rank, world - servers, servers)


class Discovery:
    """Addresses and secret of a job's servers, and on a server its listener.

    serve_phase: context for the time in which a rank waits for a server's answer, or the chief saves.
    """

    def __init__(
        self, here: RankAssignment, plan: RankPlan, link: AgentLink | NoAgent, heart: HeartbeatWriter
    ) -> None:
        """Opens the listener of a server. Without the operator, blocks until all servers have done so. Raises
        OSError if the port is in use."""
        self._plan, self._link = plan, link
        self.serve_phase = _ServePhase(heart)
        self.listener: socket.socket | None = None
        """Listening socket of this server. None: this rank is a worker."""
        self.secret = f"{plan.secret}/{plan.line}"  # ranks of another server generation are refused
        self.world_id = WorldId.parse(plan.world_id)
        self._addresses: tuple[str, ...] = ()
        if here.server_index is not None:
            self.listener = self._listen(here.server_index)
        if not plan.servers:
            self._exchange_by_store(here)

    def addresses(self) -> tuple[str, ...]:
        """Current `host:port` of all servers, chief first: from the agent's newest message, else the plan,
        else the store."""
        return self._link.servers or self._plan.servers or self._addresses

    def _listen(self, server: int) -> socket.socket:
        """Listen at the server's address in the plan; without one, at a free port of all interfaces."""
        if not self._plan.servers:
            return socket.create_server(("", 0), backlog=BACKLOG)
        host, _, port = self._plan.servers[server].rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, int(port)), family=family, backlog=BACKLOG)

    def _exchange_by_store(self, here: RankAssignment) -> None:
        """Publish this server's address in torchrun's store, and wait for the secret and all addresses. Each
        restart of torchrun's workers has keys of its own, as the store outlives it.

        Rank 0 hosts the store, unless torchrun's agent does.
        """
        host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
        hosts = here.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        self._store = TCPStore(host, port, is_master=hosts, wait_for_workers=False)  # kept until exit
        prefix = f"ropeteam/servers/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        if here.server_index == 0:
            self._store.set(f"{prefix}/secret", secrets.token_hex(16))
        if self.listener is not None:
            with socket.create_connection((host, port)) as to_store:
                own_host = to_store.getsockname()[0]
            self._store.set(f"{prefix}/{here.server_index}", f"{own_host}:{self.listener.getsockname()[1]}")
        self.secret = self._store.get(f"{prefix}/secret").decode()
        self._addresses = tuple(self._store.get(f"{prefix}/{i}").decode() for i in range(here.servers))


def state_folder(environ: Mapping[str, str]) -> Path | None:
    """Folder for a server's state, which outlives the process. None: state is in private memory, and lost
    with the process."""
    folder = environ.get(config.MEMORY)
    return Path(folder) if folder else None


class _ServePhase:
    """Context for several threads: while any of them is in it, the rank's phase is "serve", and a thread of
    this class writes heartbeats. So the rank counts neither as slow nor as hung while it waits for a server,
    and a server that hangs is found by its own heartbeats.
    """

    def __init__(self, heart: HeartbeatWriter) -> None:
        self._heart, self._lock, self._count = heart, threading.Lock(), 0
        self._phase: Any = None
        """Context of the heartbeat writer that the first thread entered and the last one exits."""
        self._active = threading.Event()
        threading.Thread(target=self._send_heartbeats, daemon=True, name="ropeteam-pulse").start()

    def _send_heartbeats(self) -> None:
        """Body of a thread: write heartbeats while any thread is in the context."""
        while self._active.wait():
            with self._lock:
                if self._count:
                    self._heart.write()
            time.sleep(HEARTBEAT_SECONDS)

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
