"""A real cluster per test, its client, and the real kubectl."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from lab.local.client import Client
from lab.waiting import within

from ropeteam.local.cluster import LocalCluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path / "home") as running:
        yield running


@pytest.fixture
async def api(cluster: LocalCluster) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession() as session:
        yield Client(cluster, session)


Kubectl = Callable[..., Coroutine[Any, Any, str]]


@pytest.fixture
def kubectl(cluster: LocalCluster) -> Kubectl:
    """Run the real kubectl; fails the test where there is none, and where it fails itself."""
    program = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if not program:
        pytest.fail("no kubectl: install one, or say where it is in KUBECTL")

    async def run(*arguments: str, fails: bool = False, text: str | None = None) -> str:
        child = await asyncio.create_subprocess_exec(
            program,
            *arguments,
            env={
                "KUBECONFIG": str(cluster.kubeconfig),
                "HOME": str(cluster.home),
                "PATH": os.environ["PATH"],
            },
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await within("kubectl exits", child.communicate((text or "").encode()))
        assert (child.returncode != 0) == fails, output.decode()
        return output.decode()

    return run
