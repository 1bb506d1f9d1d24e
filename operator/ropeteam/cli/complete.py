"""Names of jobs, for a shell that completes a command. On errors nothing is completed, in silence."""

from __future__ import annotations

import asyncio

import aiohttp
import click

from ropeteam.api.job import KIND
from ropeteam.cli.connect import connected, kubeconfig_of
from ropeteam.controller.client.apiclient import ApiError, Object, ObjectRef

_TIMEOUT_SECONDS = 2.0
"""Seconds: a person waits at a prompt."""


def jobs(context: click.Context, prefix: str) -> list[str]:
    """Names of jobs that begin so, in the namespace and cluster that the command line names before."""
    options = context.params

    async def list_jobs() -> list[Object]:
        kubeconfig = kubeconfig_of(options["kubeconfig"], options["home"])
        async with asyncio.timeout(_TIMEOUT_SECONDS), connected(kubeconfig) as client:
            return await client.items(ObjectRef(KIND, options["namespace"]))

    try:
        names = [str(job["metadata"]["name"]) for job in asyncio.run(list_jobs())]
    except (ApiError, aiohttp.ClientError, OSError, click.ClickException):
        return []
    return [name for name in names if name.startswith(prefix)]
