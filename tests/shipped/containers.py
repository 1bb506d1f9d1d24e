"""Processes in the containers of a job: the shipped agent and the shipped coordinator, each a process."""

from __future__ import annotations

import io
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from tests.shipped.disk import KEYS
from tests.shipped.loop import OWNER, Process
from tests.shipped.nodes import Pod
from tests.shipped.operator_process import KEY
from tests.shipped.pod import SimPod

from ropeteam_trainer.agent.main import Agent
from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import CoordinatorConfig, PodIdentity, WorkerConfig
from ropeteam_trainer.coordinator.__main__ import Ports, serve
from ropeteam_trainer.coordinator.log import Log
from ropeteam_trainer.coordinator.server import Coordinator
from ropeteam_trainer.launchers import Launch, Run

if TYPE_CHECKING:
    from tests.shipped.site import Site

LAUNCH = Launch(run=Run.SCRIPT, argv=("train.py",), python="python", text="PerRank (python)")
_UNIX = 1_767_225_600


class LogLines(io.TextIOBase):
    """Output of agents on stderr, by process."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def write(self, text: str) -> int:
        owner = OWNER.get()
        self._site.prints(owner)
        if text.strip():
            self._site.film.write(
                owner.name if owner else "?", text.strip().removeprefix("[ropeteam agent] ")
            )
        return len(text)


async def agent(site: Site, process: Process, pod: Pod) -> None:
    settings = codec.decode(WorkerConfig, pod.env[config.CONFIG])
    if settings.checkpoint:
        site.disk.run = settings.job_uid
        settings = replace(settings, checkpoint=replace(settings.checkpoint, directory=str(site.disk.root)))
    slot, incarnation = int(pod.env[config.SLOT]), int(pod.env[config.INCARNATION])
    token = KEY.token(settings.job_uid)
    identity = PodIdentity(slot, incarnation, pod.uid, pod.ip, pod.node.name, token, "in a Secret", KEYS)
    it = Agent(
        settings,
        identity,
        LAUNCH,
        lambda post: SimPod(site, process, pod, (settings, identity), post),
        clock=site.loop.time,
        chance=Random(site.random.random()),
        asleep=lambda: -process.ahead,
    )
    site.checks.agents[pod.uid] = it
    try:
        code = await it.run()
    except Exception as error:
        site.loop.faults.append(error)
        raise
    site.checks.left.add(pod.uid)
    site.checks.agent_exits(code)
    _end(process, pod, code)


async def coordinator(site: Site, process: Process, pod: Pod) -> None:
    settings = codec.decode(CoordinatorConfig, pod.env[config.CONFIG])

    def write(line: str) -> None:
        site.prints(process)
        site.film.write(process.name, line.partition(" ")[2])

    log = Log(write, site.loop.time)

    def wall() -> float:
        return _UNIX + site.loop.now + process.wall_ahead

    token, chance = KEY.token(settings.job_uid), Random(site.random.random())
    it = Coordinator(settings, pod.restarts, token, log, wall, chance, lambda: -process.ahead)
    ports = Ports(pod.ip, config.COORDINATOR_AGENT_PORT, config.COORDINATOR_HTTP_PORT)
    try:
        await serve(it, ports)
    except Exception as error:
        site.loop.faults.append(error)
        raise
    _end(process, pod, 0)


def _end(process: Process, pod: Pod, code: int) -> None:
    process.die()
    pod.node.exited(pod, code)
