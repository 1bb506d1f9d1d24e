"""`python -m ropeteam_trainer.coordinator`: the one container of a coordinator pod.

Reads ROPETEAM_CONFIG (CoordinatorConfig), the token file, ROPETEAM_POD_IP (where to listen) and
ROPETEAM_STATE_DIR (an emptyDir: holds the count of boots of this pod's container). SIGTERM ends it
with 0; agents continue without it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract import config as contract
from ropeteam_trainer.contract.config import CoordinatorConfig
from ropeteam_trainer.contract.preauth import BACKLOG
from ropeteam_trainer.coordinator.agentconnection import AgentConnection
from ropeteam_trainer.coordinator.http import MOST_HEAD, Http
from ropeteam_trainer.coordinator.log import Log
from ropeteam_trainer.coordinator.server import Coordinator, listen
from ropeteam_trainer.coordinator.storagehealth import StorageHealth
from ropeteam_trainer.system.background import install_exception_handler
from ropeteam_trainer.system.folders import Folder
from ropeteam_trainer.system.lines import replace_standard_streams

STATE_DIR = "/ropeteam-state"
_BOOT = re.compile("boot-[0-9]{1,9}")

GC_THRESHOLDS = (100_000, 20, 20)
"""Thresholds of the garbage collector. Reports of thousands of agents are many objects and no cycle: the
search for cycles took a third of the time in which a world is formed."""


class Ports(NamedTuple):
    """Address and ports to listen on. Port 0: any free one; the log line `listening` has the actual one."""

    host: str
    agents: int
    http: int


def main() -> int:
    """Run the coordinator until SIGTERM. Returns its exit code: 0, or 1 if its environment, state folder or a
    port is unusable, with a line `cannot-start`. Raises RuntimeError after an internal error."""
    replace_standard_streams("the coordinator")
    parser = argparse.ArgumentParser(prog="ropeteam_trainer.coordinator", description=__doc__)
    parser.add_argument("--agent-port", type=int, default=contract.COORDINATOR_AGENT_PORT)
    parser.add_argument("--http-port", type=int, default=contract.COORDINATOR_HTTP_PORT)
    flags = parser.parse_args()
    log = Log(lambda line: print(line, flush=True))
    try:
        settings = codec.decode(CoordinatorConfig, os.environ[contract.CONFIG])
        token = contract.read_token(os.environ)
        folder = Path(os.environ.get(contract.AGENT_STATE_DIR, STATE_DIR))
        boot = count_boot(folder)
        host = os.environ.get(contract.POD_IP, "0.0.0.0")
        ports = Ports(host, flags.agent_port, flags.http_port)
        storage_health = StorageHealth(folder)
        storage_health.start()
        gc.set_threshold(*GC_THRESHOLDS)
        asyncio.run(_run(lambda: Coordinator(settings, boot, token, log), ports, storage_health))
    except (KeyError, ValueError, OSError) as error:
        log.write("cannot-start", error=f"{type(error).__name__}: {error}")
        return 1
    return 0


def count_boot(folder: Path) -> int:
    """Number of this boot: 0 for the first one of this pod, then one more each time, after a power cut too.
    Counted by the names of empty files, so that no damaged content makes it another number: it must grow, and
    stay small (strategies/exact/members.py). Raises OSError: the folder is not writable, and the coordinator
    must not start.
    """
    with Folder.at(folder, make=True) as state_folder:
        counted = [int(name[5:]) for name in state_folder.names() if _BOOT.fullmatch(name)]
        boot = max(counted, default=-1) + 1
        state_folder.create(f"boot-{boot}")
        state_folder.sync()  # before older names go
        for each in counted:
            state_folder.remove(f"boot-{each}")
    return boot


async def _run(make: Callable[[], Coordinator], ports: Ports, storage_health: StorageHealth) -> None:
    """Serve the coordinator that `make` returns: it can only be made within the running event loop."""
    await serve(make(), ports, storage_health.problem)


async def serve(coordinator: Coordinator, ports: Ports, storage_problem: Callable[[], str] = str) -> None:
    """Serve agents and HTTP until SIGTERM or SIGINT. `storage_problem`: as for Http. Raises OSError if a port
    is taken, RuntimeError after an internal error (background.install_exception_handler): the container is
    restarted, and the next boot adopts the world."""
    config, log = coordinator.state.config, coordinator.log
    ended = asyncio.Event()
    faults: list[BaseException] = []

    def fail(error: BaseException) -> None:
        faults.append(error)
        ended.set()

    install_exception_handler(lambda text: log.write("fault", error=text), fail)
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, ended.set)
    agents, agent_port = await listen(lambda: AgentConnection(coordinator), ports.host, ports.agents)
    handler = Http(coordinator, storage_problem).serve
    http = await asyncio.start_server(handler, ports.host, ports.http, limit=MOST_HEAD, backlog=BACKLOG)
    http_port = http.sockets[0].getsockname()[1]
    log.write(
        "listening",
        job=config.job,
        term=config.term,
        boot=coordinator.state.boot,
        host=ports.host,
        agents=agent_port,
        http=http_port,
    )
    await ended.wait()
    agents.close()
    http.close()
    coordinator.stop()
    log.write("stopped")
    if faults:
        raise RuntimeError("an internal error of the coordinator; its container restarts") from faults[0]


if __name__ == "__main__":
    sys.exit(main())
