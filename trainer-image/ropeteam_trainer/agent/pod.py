"""What an agent is to its own pod: ranks, stores, the zygote and the disk, behind one face.

The agent (main.py) knows the face, `Pod`. `Processes` is what runs: children, sockets and a thread for the
disk. Whatever comes of a call comes back as an event.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Callable, Iterable
from typing import Protocol

from ropeteam_trainer.agent.lane import Lane
from ropeteam_trainer.agent.log import log
from ropeteam_trainer.agent.machine.state import BeatsRead, Event, ProblemFound
from ropeteam_trainer.agent.processes.ranks import How, Ranks
from ropeteam_trainer.agent.processes.reaper import Reaper
from ropeteam_trainer.agent.processes.stores import Keeper
from ropeteam_trainer.agent.processes.zygoteclient import ZygoteClient
from ropeteam_trainer.contract import config
from ropeteam_trainer.contract.local import ToRank
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.contract.world import Epoch, FailReason, Plan
from ropeteam_trainer.launchers import Run

DYING_SECONDS = 0.01
"""Between two looks at whether a rank is dying: 15 microseconds per rank."""


class RankProcesses(Protocol):
    """See ranks.py."""

    async def start(self, plan: Plan, fork: bool) -> None: ...

    def kill(self, epoch: Epoch, numbers: Iterable[int]) -> None: ...

    def terminate(self, epoch: Epoch, numbers: Iterable[int]) -> None: ...

    def show_stacks(self, epoch: Epoch, numbers: Iterable[int]) -> None: ...

    def tell(self, epoch: Epoch, number: int, message: ToRank) -> None: ...

    def read_beats(self) -> BeatsRead | None: ...


class Stores(Protocol):
    """See stores.py."""

    def host(self, epoch: Epoch) -> None: ...

    def close(self, epoch: Epoch) -> None: ...


class Pod(Protocol):
    @property
    def ranks(self) -> RankProcesses: ...

    @property
    def stores(self) -> Stores: ...

    @property
    def disk(self) -> concurrent.futures.Executor:
        """For what blocks."""

    def begin(self, may_fork: bool) -> None:
        """Once, when the loop runs."""

    async def watch(self) -> None:
        """For ever: notice what sends no event by itself."""

    async def warm_up(self) -> None:
        """Make ready to fork ranks, if that is possible at all."""

    def end(self) -> None:
        """Nothing that was started lives on."""


class Processes:
    """`problem`: what preflight.py has found."""

    def __init__(self, how: How, problem: Problem | None, post: Callable[[Event], None]) -> None:
        self._how, self._problem, self._post = how, problem, post
        is_served = os.environ.get(config.STORE) != "none" and not how.launch.per_pod
        self._torch = is_served and problem is None
        self._reaper = reaper = Reaper()
        flags = how.launch.flags if how.launch.run is not Run.COMMAND else ()
        command = (how.python, *flags, how.shims.zygote)
        environment = os.environ | dict(how.launch.env)
        self._zygote = ZygoteClient(reaper, command, environment, self._zygote_is_broken)
        self.stores = Keeper(how.identity.pod_ip, reaper, self._zygote if self._torch else None, post)
        self.ranks = Ranks(how, reaper, self._zygote, self._services, post)
        self.disk = Lane("disk")

    def begin(self, may_fork: bool) -> None:
        self._reaper.install()
        if self._problem:
            log(f"{self._problem.reason.value}: {self._problem.message}")
            self._post(ProblemFound(self._problem))
        if self._torch and (self._how.slot == 0 or may_fork):
            self._zygote.start()

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(DYING_SECONDS)
            self.ranks.poll_dying()

    async def warm_up(self) -> None:
        try:
            if self._torch and not self._zygote.is_warm:
                await self._zygote.warm_up()
                log("ranks can be forked from now on")
        except OSError as error:
            log(f"ranks cannot be forked: {error}")

    def end(self) -> None:
        self.stores.close_all()
        self._zygote.stop()

    def _services(self) -> set[int]:
        return self.stores.pids() | ({self._zygote.pid} if self._zygote.pid else set())

    def _zygote_is_broken(self) -> None:
        text = f"{self._how.python} cannot import torch.distributed: see the traceback in the pod's log"
        self._post(ProblemFound(Problem(FailReason.INTERPRETER_WITHOUT_TORCH, text)))
