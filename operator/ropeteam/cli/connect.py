"""Cluster that a command connects to: --kubeconfig, $KUBECONFIG, the local cluster if one is up,
~/.kube/config.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from ropeteam.cli.errors import InvalidInput
from ropeteam.controller.client import access
from ropeteam.controller.client.apiclient import ApiClient


def kubeconfig_of(given: Path | None, home: Path) -> Path:
    named = [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    for file in [given] if given else [*named, home / "kubeconfig", Path.home() / ".kube" / "config"]:
        if file.exists():
            return file
    problem = f"{given}: no such file" if given else "no cluster is configured"
    raise InvalidInput(
        f"{problem}. Start a local cluster with `ropeteam up`, or name a file with --kubeconfig"
    )


@asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[ApiClient]:
    async with ApiClient(partial(access.load, kubeconfig)) as client:
        yield client
