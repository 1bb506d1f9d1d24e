"""Create the documents of a manifest in a cluster, or patch those that exist."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ropeteam.cli.errors import InvalidInput
from ropeteam.cli.manifest.read import Manifest
from ropeteam.controller.client.apiclient import (
    ApiClient,
    ApiError,
    Conflict,
    Object,
    ObjectRef,
    OwnedObjectExists,
)
from ropeteam.core.seen import names


async def make_namespace(client: ApiClient, name: str) -> None:
    """Create a namespace on a local cluster, which starts with `default` alone."""
    with suppress(OwnedObjectExists, Conflict):
        await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


async def apply(client: ApiClient, manifest: Manifest, workdir: Path | None) -> None:
    """Create or patch all documents. Raises InvalidInput when the server refuses one. workdir: on the local
    cluster."""
    if workdir is not None:
        manifest.job["metadata"].setdefault("annotations", {}).setdefault(names.WORKDIR, str(workdir))
    for document in (*manifest.others, manifest.job):
        try:
            await _apply_one(client, document)
        except ApiError as error:
            meta = document["metadata"]
            raise InvalidInput(f"{document['kind']} {meta['name']} was refused: {error}") from None


async def _apply_one(client: ApiClient, document: Object) -> None:
    try:
        await client.create(document)
    except (OwnedObjectExists, Conflict):
        await client.merge(ObjectRef.of(document), document)
