"""Parameters of starting ranks in this pod: what all of its worlds have in common, and from it the command
line and the environment of one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ropeteam_trainer.agent.machine.environment import launcher_environment, rank_environment, rendezvous
from ropeteam_trainer.agent.processes.spawn import Shims
from ropeteam_trainer.contract import config
from ropeteam_trainer.contract.config import PodIdentity, WorkerConfig
from ropeteam_trainer.contract.world import Plan
from ropeteam_trainer.launchers import Launch, Run


@dataclass(frozen=True)
class LaunchSettings:
    config: WorkerConfig
    identity: PodIdentity
    launch: Launch
    python: str
    """Interpreter of ranks that the shim runs."""
    base: Mapping[str, str]
    """Environment of the container, to which variables of ranks are added."""
    shims: Shims
    folder: Path
    """Scratch folder of the agent: pages and sockets of ranks."""
    memory: Path | None = None
    """A folder that outlives ranks. Emptied when a plan begins a new server generation."""

    @property
    def slot(self) -> int:
        return self.identity.slot

    def argv(self, local_rank: int, plan: Plan) -> list[str]:
        """Command line of a rank that is exec'ed. `plan` matters only to a command that runs once per pod."""
        launch = self.launch
        if launch.per_pod:
            return list(launch.pod_argv(rendezvous(self.config, plan, self.slot)))
        argv = launch.rank_argv(local_rank)
        if launch.run is Run.COMMAND:
            return list(argv)
        return [self.python, *launch.flags, self.shims.rank, launch.run.value, *argv]

    def environment(
        self, plan: Plan, rank: int, page: Path, socket: Path, folder: Path | None = None
    ) -> dict[str, str]:
        """Environment of a rank, exec'ed or forked, with the paths of its page, socket and folder.

        A command that runs once per pod, and has several ranks, gets neither as its own: its processes report
        to the socket as children (childhooks.py).
        """
        if self.launch.per_pod:
            environment = launcher_environment(self.base, self.config, plan, self.identity)
        else:
            environment = rank_environment(self.base, self.config, plan, self.identity, rank)
        environment["PYTHONPATH"] = self.shims.python_path(self.base)
        environment[config.AGENT_SOCKET] = str(socket)
        if folder:
            environment[config.MULTIPROCESSING] = str(folder)
        member = plan.member(self.slot)
        if not self.launch.per_pod or (member and member.processes == 1):
            environment[config.RANK_PAGE] = str(page)
            environment[config.RANK_SOCKET] = str(socket)
        return environment
