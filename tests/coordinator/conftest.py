"""A coordinator in this process, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from lab.coordinator.link import TOKEN
from lab.coordinator.reports import config

from ropeteam_trainer.coordinator.agentconnection import AgentConnection
from ropeteam_trainer.coordinator.http import MOST_HEAD, Http
from ropeteam_trainer.coordinator.log import Log
from ropeteam_trainer.coordinator.server import Coordinator, listen


@dataclass
class ServedCoordinator:
    coordinator: Coordinator
    agents: int
    """Port."""
    http: int
    lines: list[str] = field(default_factory=list)
    """The log."""

    def logged(self, text: str) -> bool:
        return any(text in line for line in self.lines)


@pytest.fixture
async def served() -> AsyncIterator[ServedCoordinator]:
    lines: list[str] = []
    coordinator = Coordinator(config(), 0, TOKEN, Log(lines.append))
    agents, agent_port = await listen(lambda: AgentConnection(coordinator), "127.0.0.1", 0)
    http = await asyncio.start_server(Http(coordinator).serve, "127.0.0.1", 0, limit=MOST_HEAD)
    yield ServedCoordinator(coordinator, agent_port, http.sockets[0].getsockname()[1], lines)
    agents.close()
    http.close()
    coordinator.stop()
    await asyncio.sleep(0)
