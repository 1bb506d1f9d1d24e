"""The TCPStores that the coordinator requests of this agent, one per world.

The listening socket is the agent's, bound to the pod's address alone, so the port is reported at once;
the store itself is a fork of the zygote and dies with the agent. While the zygote still imports torch, ranks
do too; faster ones wait in the socket's queue. A store that exits is not replaced on its port, where a second
one would miss the keys that ranks set in the first: StoreDown ends the world (machine/step.py).
ROPETEAM_STORE=none, for ranks that never use torch (tests): the socket listens, and no process answers.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from ropeteam_trainer.agent.log import log
from ropeteam_trainer.agent.machine.events import Event, StoreDown, StoreUp
from ropeteam_trainer.agent.processes.proc import send_signal
from ropeteam_trainer.agent.processes.reaper import Reaper
from ropeteam_trainer.agent.processes.zygoteclient import ZygoteClient
from ropeteam_trainer.contract.messages import StoreOffer
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.system.background import start_task


@dataclass
class _Store:
    listener: socket.socket
    pid: int | None = None
    """None: not forked yet, or no process at all (StoreHost without a zygote)."""


class StoreHost:
    """All stores of this agent, on its pod's `address`. `zygote` None: sockets without a process."""

    def __init__(
        self, address: str, reaper: Reaper, zygote: ZygoteClient | None, post: Callable[[Event], None]
    ) -> None:
        self._address, self._reaper, self._zygote, self._post = address, reaper, zygote, post
        self._stores: dict[WorldId, _Store] = {}

    def host(self, world_id: WorldId) -> None:
        """Start the store of a world that has none here. StoreUp follows at once, before the process exists;
        StoreDown if it fails to start or exits, then or later."""
        try:
            family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
            listener = socket.create_server((self._address, 0), family=family, backlog=2048)
        except OSError as error:
            log(f"no TCPStore for world {world_id}, trying again: cannot listen on {self._address}: {error}")
            self._post(StoreDown(world_id))
            return
        store = self._stores[world_id] = _Store(listener)
        if self._zygote:
            start_task(self._fork(self._zygote, world_id, store))
        self._post(StoreUp(StoreOffer(world_id, *listener.getsockname()[:2])))

    def close(self, world_id: WorldId) -> None:
        """Kill the store, if there is one. No event follows."""
        if store := self._stores.pop(world_id, None):
            if store.pid:
                send_signal(store.pid)
            store.listener.close()

    def close_all(self) -> None:
        for world_id in tuple(self._stores):
            self.close(world_id)

    def pids(self) -> set[int]:
        """Pids of the stores that are forked."""
        return {store.pid for store in self._stores.values() if store.pid}

    async def _fork(self, zygote: ZygoteClient, world_id: WorldId, store: _Store) -> None:
        """Fork the process of a store from the zygote, which may import torch first. It is killed at once if
        the store was closed meanwhile."""
        try:
            # A copy of the listener: the descriptor of a closed one could be another file when it is sent.
            with store.listener.dup() as listener, self._reaper.expecting():
                pid = await zygote.fork("store", {}, (listener.fileno(),))
                store.pid = pid
                self._reaper.watch(pid, lambda _: self._note_end(world_id, store))
        except OSError as error:
            self._report_loss(world_id, store, str(error))
        else:
            if self._stores.get(world_id) is not store:
                send_signal(pid)

    def _note_end(self, world_id: WorldId, store: _Store) -> None:
        """The process is reaped: its pid may soon be another's."""
        store.pid = None
        self._report_loss(world_id, store, "its process has ended")

    def _report_loss(self, world_id: WorldId, store: _Store, why: str) -> None:
        """Close the store and post StoreDown, unless it was closed before, or another has replaced it."""
        if self._stores.get(world_id) is store:
            log(f"the TCPStore of world {world_id} is lost, so its ranks will be restarted: {why}")
            self.close(world_id)
            self._post(StoreDown(world_id))
