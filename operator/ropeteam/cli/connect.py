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


def kubeconfig_file(given: Path | None, home: Path) -> Path:
    """First kubeconfig that exists: only `given`, if there is one; else of those in the order above. Raises
    InvalidInput. Limit: several files in $KUBECONFIG are not merged, as kubectl does.
    """
    if given:
        candidates = [given]
    else:
        named = [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
        candidates = [*named, home / "kubeconfig", Path.home() / ".kube" / "config"]
    for file in candidates:
        if file.exists():
            return file
    missing = ", ".join(map(str, candidates))
    problem = f"{missing}: no such file" if given else f"no cluster is configured (no such file: {missing})"
    raise InvalidInput(
        f"{problem}. Start a local cluster with `ropeteam up`, or name a file with --kubeconfig"
    )


@asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[ApiClient]:
    """Client of this cluster. Sends nothing yet; raises AccessError for a file that is not usable."""
    async with ApiClient(partial(access.load, kubeconfig)) as client:
        yield client
