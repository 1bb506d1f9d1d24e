"""Names of jobs, for a shell that completes a command. What fails here completes nothing, in silence."""

from __future__ import annotations

import asyncio

import aiohttp
import click

from ropeteam.api.job import KIND
from ropeteam.cli.connect import connected, kubeconfig_of
from ropeteam.controller.client.apiclient import ApiError, Object, ObjectRef

_PATIENCE = 2.0
"""Seconds: somebody waits at a prompt."""


def jobs(context: click.Context, begun: str) -> list[str]:
    """Those whose names begin so, of the namespace and cluster that the line names before."""
    options = context.params

    async def look() -> list[Object]:
        kubeconfig = kubeconfig_of(options["kubeconfig"], options["home"])
        async with asyncio.timeout(_PATIENCE), connected(kubeconfig) as client:
            return await client.items(ObjectRef(KIND, options["namespace"]))

    try:
        names = [str(job["metadata"]["name"]) for job in asyncio.run(look())]
    except (ApiError, aiohttp.ClientError, OSError, click.ClickException):
        return []
    return [name for name in names if name.startswith(begun)]
