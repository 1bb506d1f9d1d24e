"""The TCPStores that the coordinator requests of this agent, one per epoch.

The listening socket is the agent's, bound to the pod's address alone, so the port is reported at once;
the store itself is a fork of the zygote and dies with the agent. While the zygote still imports torch, ranks
do too; faster ones wait in the socket's queue. A store that exits is not replaced on its port, where a second
one would miss the keys that ranks set in the first: StoreDown ends the epoch (machine/step.py).
ROPETEAM_STORE=none, for ranks that never use torch (tests): the socket listens, and no process answers.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from ropeteam_trainer.agent.log import log
from ropeteam_trainer.agent.machine.state import Event, StoreDown, StoreUp
from ropeteam_trainer.agent.processes.proc import kill
from ropeteam_trainer.agent.processes.reaper import Reaper
from ropeteam_trainer.agent.processes.zygoteclient import ZygoteClient
from ropeteam_trainer.contract.messages import StoreOffer
from ropeteam_trainer.contract.world import Epoch
from ropeteam_trainer.system.background import background


@dataclass
class _Store:
    listener: socket.socket
    pid: int | None = None


class StoreHost:
    """All stores of this agent. `zygote` None: stores without torch."""

    def __init__(
        self, address: str, reaper: Reaper, zygote: ZygoteClient | None, post: Callable[[Event], None]
    ) -> None:
        self._address, self._reaper, self._zygote, self._post = address, reaper, zygote, post
        self._stores: dict[Epoch, _Store] = {}

    def host(self, epoch: Epoch) -> None:
        """Start a store; StoreUp follows, and StoreDown if it fails to start or exits, then or later."""
        try:
            listener = socket.create_server((self._address, 0), backlog=2048)
        except OSError as error:
            log(f"no store for world {epoch}: cannot listen on {self._address}: {error}")
            self._post(StoreDown(epoch))
            return
        store = self._stores[epoch] = _Store(listener)
        if self._zygote:
            background(self._open(self._zygote, epoch, store))
        self._post(StoreUp(StoreOffer(epoch, *listener.getsockname()[:2])))

    def close(self, epoch: Epoch) -> None:
        if store := self._stores.pop(epoch, None):
            if store.pid:
                kill(store.pid)
            store.listener.close()

    def close_all(self) -> None:
        for epoch in tuple(self._stores):
            self.close(epoch)

    def pids(self) -> set[int]:
        return {store.pid for store in self._stores.values() if store.pid}

    async def _open(self, zygote: ZygoteClient, epoch: Epoch, store: _Store) -> None:
        try:
            # A copy of the listener: the descriptor of a closed one could be another file when it is sent.
            with store.listener.dup() as listener, self._reaper.expecting():
                pid = await zygote.fork("store", {}, (listener.fileno(),))
                store.pid = pid
                self._reaper.watch(pid, lambda _: self._report_loss(epoch, store, "it ended"))
        except OSError as error:
            self._report_loss(epoch, store, str(error))
        else:
            if self._stores.get(epoch) is not store:
                kill(pid)  # closed while it started

    def _report_loss(self, epoch: Epoch, store: _Store, why: str) -> None:
        if self._stores.get(epoch) is store:
            log(f"no store for world {epoch}: {why}")
            self.close(epoch)
            self._post(StoreDown(epoch))
