"""`python -m ropeteam_trainer.coordinator`: the one container of a coordinator pod.

Reads ROPETEAM_CONFIG (CoordinatorConfig), the token file, ROPETEAM_POD_IP (where to listen) and
ROPETEAM_STATE_DIR (an emptyDir: how often this pod's container has booted is counted there). SIGTERM ends it
with 0; agents go on without it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract import config as contract
from ropeteam_trainer.contract.config import CoordinatorConfig
from ropeteam_trainer.coordinator.http import MOST_HEAD, Http
from ropeteam_trainer.coordinator.log import Log
from ropeteam_trainer.coordinator.server import AgentLine, Coordinator, listen

STATE_DIR = "/ropeteam-state"


class Ports(NamedTuple):
    """Where to listen. Port 0: any; the log line `listening` tells which."""

    host: str
    agents: int
    http: int


def main() -> int:
    parser = argparse.ArgumentParser(prog="ropeteam_trainer.coordinator", description=__doc__)
    parser.add_argument("--agent-port", type=int, default=contract.COORDINATOR_AGENT_PORT)
    parser.add_argument("--http-port", type=int, default=contract.COORDINATOR_HTTP_PORT)
    flags = parser.parse_args()
    log = Log(lambda line: print(line, flush=True))
    try:
        settings = codec.decode(CoordinatorConfig, os.environ[contract.CONFIG])
        token = contract.read_token(os.environ)
        boot = count_boot(Path(os.environ.get(contract.AGENT_STATE_DIR, STATE_DIR)), int(time.time()))
        host = os.environ.get(contract.POD_IP, "0.0.0.0")
        asyncio.run(serve(settings, boot, token, log, Ports(host, flags.agent_port, flags.http_port)))
    except (KeyError, ValueError, OSError) as error:
        log.say("cannot-start", error=f"{type(error).__name__}: {error}")
        return 1
    return 0


def count_boot(folder: Path, unix: int) -> int:
    """0 for the first boot of this pod, then one more each time. A damaged count goes on from the clock: it
    must grow."""
    file = folder / "boot"
    try:
        boot = int(file.read_text(encoding="ascii")) + 1
    except FileNotFoundError:
        boot = 0
    except ValueError:
        boot = unix
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / "boot.new"
    with open(new, "w", encoding="ascii") as out:
        out.write(str(boot))
        out.flush()
        os.fsync(out.fileno())
    new.replace(file)
    return boot


async def serve(config: CoordinatorConfig, boot: int, token: bytes, log: Log, ports: Ports) -> None:
    """Until SIGTERM or SIGINT."""
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    coordinator = Coordinator(config, boot, token, log)
    agents, agent_port = await listen(lambda: AgentLine(coordinator), ports.host, ports.agents)
    http = await asyncio.start_server(Http(coordinator).serve, ports.host, ports.http, limit=MOST_HEAD)
    http_port = http.sockets[0].getsockname()[1]
    log.say(
        "listening",
        job=config.job,
        term=config.term,
        boot=boot,
        host=ports.host,
        agents=agent_port,
        http=http_port,
    )
    await over.wait()
    agents.close()
    http.close()
    coordinator.stop()
    log.say("stopped")


if __name__ == "__main__":
    sys.exit(main())
