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


async def create_namespace(client: ApiClient, name: str) -> None:
    """Create a namespace if it does not exist. A local cluster starts with `default` and `kube-system`."""
    with suppress(OwnedObjectExists, Conflict):
        await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


async def apply_manifest(client: ApiClient, manifest: Manifest, workdir: Path | None) -> None:
    """Create or patch all documents, the job last. Raises InvalidInput when the server refuses one; those
    before it stay.

    workdir: on the local cluster, the folder in which commands run; it is added to the annotations of
    `manifest.job`, in place, if they have none. None: elsewhere.
    """
    if workdir is not None:
        manifest.job["metadata"].setdefault("annotations", {}).setdefault(names.WORKDIR, str(workdir))
    for document in (*manifest.others, manifest.job):
        try:
            await _create_or_patch(client, document)
        except ApiError as error:
            meta = document["metadata"]
            raise InvalidInput(
                f"{document['kind']} {meta['name']} was refused by the API server: {error}"
            ) from None


async def _create_or_patch(client: ApiClient, document: Object) -> None:
    """Create an object; if its name is taken, patch that object, also one of another owner. Raises
    ApiError."""
    try:
        await client.create(document)
    except (OwnedObjectExists, Conflict):
        await client.merge(ObjectRef.of(document), document)
