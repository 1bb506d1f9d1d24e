"""`ropeteam submit`: a job and the folder that its command starts in, created in any cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ropeteam.cli.errors import CommandError, InvalidInput
from ropeteam.cli.manifest import bundle
from ropeteam.cli.manifest.apply import apply_manifest
from ropeteam.cli.manifest.read import Manifest
from ropeteam.controller.client.apiclient import ApiClient, ApiError, NotFound, Object, ObjectRef


async def submit(
    client: ApiClient, manifest: Manifest, folder: Path, print_line: Callable[[str], None]
) -> None:
    """Create the folder's ConfigMap, then all objects of the manifest, then make the job the ConfigMap's
    owner.

    In this order no pod waits for the ConfigMap, and it is deleted with the job. Raises InvalidInput: the
    folder or the spec does not fit, the job exists, or the server refuses an object. Then the ConfigMap is
    deleted; other objects of the manifest that were created before the refusal stay. Any other error (a lost
    connection) leaves what was created.
    """
    code = bundle.read_folder(folder)
    config_map = bundle.config_map(manifest.job, code)
    job = bundle.with_mounted_code(manifest.job, code, config_map["metadata"]["name"])
    await _check_absent(client, job)
    try:
        created = await client.create(config_map)
    except ApiError as error:
        raise InvalidInput(
            f"ConfigMap {config_map['metadata']['name']} was refused by the API server: {error}"
        ) from None
    try:
        await apply_manifest(client, Manifest(job, manifest.others), None)
    except CommandError:
        await client.delete(ObjectRef.of(config_map), uid=created["metadata"]["uid"])
        raise
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": manifest.name}
    owner["uid"] = (await client.get(ObjectRef.of(job)))["metadata"]["uid"]
    await client.merge(ObjectRef.of(config_map), {"metadata": {"ownerReferences": [owner]}})
    for line in bundle.summary_lines(code, config_map["metadata"]["name"], manifest.namespace):
        print_line(line)
    option = "" if manifest.namespace == "default" else f" -n {manifest.namespace}"
    print_line(f"trainingjob/{manifest.name} created; its output: ropeteam logs {manifest.name} -f{option}")


async def _check_absent(client: ApiClient, job: Object) -> None:
    """Raise InvalidInput if the job exists. It is not patched: its pods run the code of its own
    submission."""
    try:
        await client.get(ObjectRef.of(job))
    except NotFound:
        return
    meta = job["metadata"]
    raise InvalidInput(
        f"TrainingJob {meta['name']} already exists in namespace {meta['namespace']}. Give this one another "
        f"metadata.name, or delete the existing one: kubectl delete tj -n {meta['namespace']} {meta['name']}"
    )
