"""Holds the TCPStore of each epoch that this agent was asked to host.

The listening socket is the agent's, bound to the pod's address alone, so the port is known at once; the store
itself is a fork of the zygote and dies with the agent. Killing it ends the epoch for ranks that wait in it.
ROPETEAM_STORE=none, for ranks that never use torch (tests): the socket listens and nobody answers.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from ropeteam_trainer.agent.log import log
from ropeteam_trainer.agent.proc import kill
from ropeteam_trainer.agent.reaper import Reaper
from ropeteam_trainer.agent.state import Event, StoreDown, StoreUp
from ropeteam_trainer.agent.zygoteclient import ZygoteClient
from ropeteam_trainer.contract.messages import StoreOffer
from ropeteam_trainer.contract.world import Epoch


@dataclass
class _Store:
    listener: socket.socket
    pid: int | None = None
    task: asyncio.Task[None] | None = None
    """Kept, because the loop holds tasks only weakly."""


class Keeper:
    """`zygote` None: stores without torch."""

    def __init__(
        self, address: str, reaper: Reaper, zygote: ZygoteClient | None, post: Callable[[Event], None]
    ) -> None:
        self._address, self._reaper, self._zygote, self._post = address, reaper, zygote, post
        self._stores: dict[Epoch, _Store] = {}

    def host(self, epoch: Epoch) -> None:
        """Answers with StoreUp, or StoreDown."""
        try:
            listener = socket.create_server((self._address, 0), backlog=2048)
        except OSError as error:
            log(f"no store for epoch {epoch}: cannot listen on {self._address}: {error}")
            self._post(StoreDown(epoch))
            return
        store = self._stores[epoch] = _Store(listener)
        store.task = asyncio.ensure_future(self._open(epoch, store))

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

    async def _open(self, epoch: Epoch, store: _Store) -> None:
        host, port = store.listener.getsockname()[:2]
        try:
            if self._zygote:
                await self._fork(self._zygote, epoch, store)
        except OSError as error:
            self._lost(epoch, store, str(error))
            return
        if self._stores.get(epoch) is store:
            self._post(StoreUp(StoreOffer(epoch, host, port)))

    async def _fork(self, zygote: ZygoteClient, epoch: Epoch, store: _Store) -> None:
        """Returns when the store answers. Raises OSError; also when it was closed meanwhile."""
        ready, told = os.pipe()
        os.set_blocking(ready, False)
        try:
            # A copy of the listener: the number of a closed one could be another file by the time it is sent.
            with store.listener.dup() as listener, self._reaper.expecting():
                pid = await zygote.fork("store", {}, (listener.fileno(), told))
                store.pid = pid
                self._reaper.watch(pid, lambda _: self._lost(epoch, store, "it ended"))
            if self._stores.get(epoch) is not store:
                kill(pid)
                raise ConnectionError("closed while it started")
            os.close(told)
            told = -1
            await _readable(ready)
            if not os.read(ready, 16):
                raise ConnectionError("it ended while it started")
        finally:
            os.close(ready)
            if told >= 0:
                os.close(told)

    def _lost(self, epoch: Epoch, store: _Store, why: str) -> None:
        if self._stores.get(epoch) is store:
            log(f"no store for epoch {epoch}: {why}")
            self.close(epoch)
            self._post(StoreDown(epoch))


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    seen = asyncio.Event()
    loop.add_reader(fd, seen.set)
    try:
        await seen.wait()
    finally:
        loop.remove_reader(fd)
