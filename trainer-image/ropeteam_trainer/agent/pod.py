"""The agent's resources in its own pod: ranks, stores, the zygote and the disk, behind one interface.

The agent (main.py) uses the interface, `Pod`. `Processes` implements it: children, sockets and a thread for
the disk. The result of a call arrives as an event.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Callable, Iterable
from typing import Protocol

from ropeteam_trainer.agent.lane import Lane
from ropeteam_trainer.agent.log import log
from ropeteam_trainer.agent.machine.events import Event, HeartbeatsRead, ProblemFound
from ropeteam_trainer.agent.processes.ranks import LaunchSettings, Ranks
from ropeteam_trainer.agent.processes.reaper import Reaper
from ropeteam_trainer.agent.processes.stores import StoreHost
from ropeteam_trainer.agent.processes.zygoteclient import ZygoteClient
from ropeteam_trainer.contract import config
from ropeteam_trainer.contract.local import ToRank
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import FailReason, Plan, WorldId
from ropeteam_trainer.launchers import Run

DYING_SECONDS = 0.01
"""Interval of the check whether a rank is dying, which takes 15 microseconds per rank."""


class RankProcesses(Protocol):
    """See ranks.py."""

    async def start(self, plan: Plan, fork: bool) -> None: ...

    def kill(self, world_id: WorldId, numbers: Iterable[int]) -> None: ...

    def terminate(self, world_id: WorldId, numbers: Iterable[int]) -> None: ...

    def show_stacks(self, world_id: WorldId, numbers: Iterable[int]) -> None: ...

    def send(self, world_id: WorldId, number: int, message: ToRank) -> None: ...

    def read_heartbeats(self) -> HeartbeatsRead | None: ...


class Stores(Protocol):
    """See stores.py."""

    def host(self, world_id: WorldId) -> None: ...

    def close(self, world_id: WorldId) -> None: ...


class Pod(Protocol):
    @property
    def ranks(self) -> RankProcesses: ...

    @property
    def stores(self) -> Stores: ...

    @property
    def disk(self) -> concurrent.futures.Executor:
        """Runs blocking calls."""

    def begin(self, may_fork: bool) -> None:
        """Start; called once, when the loop runs."""

    async def watch(self) -> None:
        """Poll, for ever, for changes that cause no event by themselves."""

    async def warm_up(self) -> None:
        """Prepare the zygote to fork ranks, if that is possible at all."""

    def end(self) -> None:
        """Stop every store, and the zygote."""


class Processes:
    """The pod as it is run. `problem`: the one that preflight.py found, if any."""

    def __init__(self, how: LaunchSettings, problem: Problem | None, post: Callable[[Event], None]) -> None:
        self._how, self._problem, self._post = how, problem, post
        is_served = os.environ.get(config.STORE) != "none" and not how.launch.per_pod
        self._uses_torch = is_served and problem is None
        self._reaper = reaper = Reaper()
        flags = how.launch.flags if how.launch.run is not Run.COMMAND else ()
        command = (how.python, *flags, how.shims.zygote)
        environment = os.environ | dict(how.launch.env)
        self._zygote = ZygoteClient(reaper, command, environment, self._report_broken_zygote)
        self.stores = StoreHost(how.identity.pod_ip, reaper, self._zygote if self._uses_torch else None, post)
        self.ranks = Ranks(how, reaper, self._zygote, self._service_pids, post)
        self.disk = Lane("disk")

    def begin(self, may_fork: bool) -> None:
        self._reaper.install()
        if self._problem:
            log(f"{self._problem.reason.value}: {self._problem.message}")
            self._post(ProblemFound(self._problem))
        if self._uses_torch and (self._how.slot == 0 or may_fork):
            self._zygote.start()

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(DYING_SECONDS)
            self.ranks.poll_dying()

    async def warm_up(self) -> None:
        try:
            if self._uses_torch and not self._zygote.is_warm:
                await self._zygote.warm_up()
                log("ranks can be forked from now on")
        except OSError as error:
            log(f"ranks cannot be forked: {error}")

    def end(self) -> None:
        self.stores.close_all()
        self._zygote.stop()

    def _service_pids(self) -> set[int]:
        return self.stores.pids() | ({self._zygote.pid} if self._zygote.pid else set())

    def _report_broken_zygote(self) -> None:
        text = f"{self._how.python} cannot import torch.distributed: see the traceback in the pod's log"
        self._post(ProblemFound(Problem(FailReason.INTERPRETER_WITHOUT_TORCH, text)))
