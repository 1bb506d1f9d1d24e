"""Names of jobs, for a shell that completes a command line."""

from __future__ import annotations

import asyncio

import aiohttp
import click

from ropeteam.api.job import KIND
from ropeteam.cli.connect import connected, kubeconfig_file
from ropeteam.controller.client.apiclient import ApiError, Object, ObjectRef

_TIMEOUT_SECONDS = 2.0
"""Short: a person waits at a prompt."""


def job_names(context: click.Context, prefix: str) -> list[str]:
    """Names that begin with `prefix`, in the cluster and namespace of the options typed so far.

    Empty if the cluster cannot be read in time: an error would be printed into the user's prompt.
    """
    options = context.params

    async def list_jobs() -> list[Object]:
        kubeconfig = kubeconfig_file(options["kubeconfig"], options["home"])
        async with asyncio.timeout(_TIMEOUT_SECONDS), connected(kubeconfig) as client:
            return await client.items(ObjectRef(KIND, options["namespace"]))

    try:
        names = [str(job["metadata"]["name"]) for job in asyncio.run(list_jobs())]
    except (ApiError, aiohttp.ClientError, OSError, click.ClickException):  # TimeoutError is an OSError
        return []
    return [name for name in names if name.startswith(prefix)]
