"""Play scenarios to both servers, several at a time, and collect what differs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.differential import servers
from tests.differential.compare import Difference, differences
from tests.differential.scenario import Scenario

_AT_A_TIME = 8


async def play(scenarios: Sequence[Scenario], folder: Path) -> list[Difference]:
    """In the order of `scenarios`. `folder`: for the servers' files."""
    async with servers.real(folder) as real, servers.local(folder) as local:
        slots = asyncio.Semaphore(_AT_A_TIME)

        async def one(number: int, scenario: Scenario) -> list[Difference]:
            async with slots:
                name = f"n{number}"
                ours, theirs = await asyncio.gather(
                    local.play(scenario.calls, name), real.play(scenario.calls, name)
                )
            return differences(scenario.name, ours, theirs)

        found = await asyncio.gather(*(one(n, each) for n, each in enumerate(scenarios)))
    return [difference for each in found for difference in each]
