"""The socket of a rank: clients that request a secret, and when this process has no descriptor left."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from pathlib import Path
from typing import Any

from ropeteam_trainer.agent.processes import ranksocket
from ropeteam_trainer.agent.processes.ranksocket import RankSocket
from ropeteam_trainer.contract import config
from ropeteam_trainer.contract.local import FromRank, ToRank
from ropeteam_trainer.rank import agentlink


def received_servers(link: agentlink.AgentLink) -> None:
    with link._changed:
        assert link._changed.wait_for(lambda: link.servers, 60)


async def test_only_a_connection_that_requests_the_secret_of_servers_receives_it(tmp_path: Path):
    received: list[FromRank] = []
    answer = RankSocket(tmp_path / "s", received.append, "c0ffee")
    environ = {config.RANK_SOCKET: str(tmp_path / "s")}
    assert await asyncio.to_thread(agentlink.fetch_secret_of_servers, environ) == "c0ffee"
    assert received == []
    link = await asyncio.to_thread(agentlink.connect, environ, 0, agentlink.HeartbeatWriter(None))
    assert isinstance(link, agentlink.AgentLink)
    answer.send(ToRank(servers=("10.0.0.1:29404",)))
    await asyncio.to_thread(received_servers, link)
    assert "c0ffee" not in str(vars(link))
    await asyncio.to_thread(link.close)
    answer.close()


def test_a_rank_that_ends_while_no_descriptor_is_left_ends_nothing_else(monkeypatch, tmp_path: Path):
    """Read its last messages once more, and nothing listens after that."""
    monkeypatch.setattr(ranksocket, "_ACCEPT_AGAIN_SECONDS", 0.01)
    faults: list[dict[str, Any]] = []

    async def life() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        answer = RankSocket(tmp_path / "s", lambda _: None)
        with socket.socket(socket.AF_UNIX) as rank:
            rank.connect(str(tmp_path / "s"))
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            free = os.dup(0)
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
            try:
                answer.drain()
                answer.drain()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        answer.close()
        await asyncio.sleep(0.05)

    asyncio.run(life())
    assert faults == []
