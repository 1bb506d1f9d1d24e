"""The agent's resources in its own pod: ranks, stores, the zygote and the disk, behind one interface.

The agent (main.py) uses the interface, `Pod`. `RealPod` implements it: children, sockets and a thread for
the disk. The result of a call arrives as an event.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ropeteam_trainer.agent.executor import DaemonThreadExecutor
from ropeteam_trainer.agent.log import log
from ropeteam_trainer.agent.machine.events import Event, HeartbeatsRead, ProblemFound
from ropeteam_trainer.agent.processes.launchsettings import LaunchSettings
from ropeteam_trainer.agent.processes.ranks import Ranks
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
    """The ranks of this pod: see Ranks in processes/ranks.py."""

    async def start(self, plan: Plan, ranks: Sequence[int], fork: bool) -> None: ...

    def kill(self, world_id: WorldId, ranks: Iterable[int]) -> None: ...

    def terminate(self, world_id: WorldId, ranks: Iterable[int]) -> None: ...

    def show_stacks(self, world_id: WorldId, ranks: Iterable[int]) -> None: ...

    def send(self, world_id: WorldId, rank: int, message: ToRank) -> None: ...

    def read_heartbeats(self) -> HeartbeatsRead | None: ...


class Stores(Protocol):
    """The stores of this pod: see StoreHost in processes/stores.py."""

    def host(self, world_id: WorldId) -> None: ...

    def close(self, world_id: WorldId) -> None: ...


class Pod(Protocol):
    """The interface of this module. Tests implement it without processes."""

    @property
    def ranks(self) -> RankProcesses: ...

    @property
    def stores(self) -> Stores: ...

    @property
    def disk(self) -> concurrent.futures.Executor:
        """Runs blocking calls on the checkpoint volume, one after the other."""

    def begin(self, may_fork: bool) -> None:
        """Reap children, report the problem that was found before, and start the zygote if it will be needed
        soon: for a store (slot 0), or for ranks (`may_fork`). Called once, when the loop runs."""

    async def watch(self) -> None:
        """Poll, for ever, for changes that cause no event by themselves: dying and unkillable ranks."""

    async def warm_up(self) -> None:
        """Prepare the zygote to fork ranks, if they use torch. After a failure, which is logged, ranks are
        exec'ed."""

    def end(self) -> None:
        """Kill every store, and the zygote. Ranks are dead before."""


class RealPod:
    """The pod in production: processes, sockets and threads. `problem`: that of preflight.py, if any."""

    def __init__(
        self, settings: LaunchSettings, problem: Problem | None, post: Callable[[Event], None]
    ) -> None:
        self._settings, self._problem, self._post = settings, problem, post
        launch = settings.launch
        has_store = os.environ.get(config.STORE) != "none" and not launch.per_pod
        self._uses_torch = has_store and problem is None
        """Whether the interpreter has torch, as preflight.py found: only then is there a zygote."""
        self._reaper = reaper = Reaper()
        flags = launch.flags if launch.run is not Run.COMMAND else ()
        command = (settings.python, *flags, settings.shims.zygote)
        environment = os.environ | dict(launch.env)
        self._zygote = ZygoteClient(reaper, command, environment, self._report_broken_zygote)
        store_zygote = self._zygote if self._uses_torch else None
        self.stores = StoreHost(settings.identity.pod_ip, reaper, store_zygote, post)
        self.ranks = Ranks(settings, reaper, self._zygote, self._service_pids, post)
        self.disk = DaemonThreadExecutor("disk")

    def begin(self, may_fork: bool) -> None:
        self._reaper.install()
        if self._problem:
            log(f"{self._problem.reason.value}: {self._problem.message}")
            self._post(ProblemFound(self._problem))
        if self._uses_torch and (self._settings.slot == 0 or may_fork):
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
            log(f"ranks cannot be forked, so they are started more slowly, by exec: {error}")

    def end(self) -> None:
        self.stores.close_all()
        self._zygote.stop()

    def _service_pids(self) -> set[int]:
        """Pids of stores and zygote, as far as they run."""
        return self.stores.pids() | ({self._zygote.pid} if self._zygote.pid else set())

    def _report_broken_zygote(self) -> None:
        """Report that torch, which preflight.py found, cannot be imported."""
        text = (
            f"{self._settings.python} cannot import torch.distributed (the traceback is in the log of the "
            f"pod in slot {self._settings.slot}, in lines of [zygote]); use an image whose torch can be "
            "imported, or set spec.agentPython"
        )
        self._post(ProblemFound(Problem(FailReason.INTERPRETER_WITHOUT_TORCH, text)))
