"""`ropeteam submit`: a job and the folder that its command starts in, created in any cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ropeteam.cli.errors import CommandError, InvalidInput
from ropeteam.cli.manifest import bundle
from ropeteam.cli.manifest.apply import apply
from ropeteam.cli.manifest.read import Manifest
from ropeteam.controller.client.apiclient import ApiClient, ApiError, NotFound, Object, ObjectRef


async def submit(client: ApiClient, read: Manifest, folder: Path, print_line: Callable[[str], None]) -> None:
    """Create the folder's ConfigMap first, so that no pod waits for it; it is deleted with the job. Raises
    InvalidInput: the job exists, or the server refuses something; then nothing is left behind."""
    code = bundle.bundle(folder)
    stored = bundle.config_map(read.job, code)
    job = bundle.with_code(read.job, code, stored["metadata"]["name"])
    await _check_absent(client, job)
    try:
        created = await client.create(stored)
    except ApiError as error:
        raise InvalidInput(f"ConfigMap {stored['metadata']['name']} was refused: {error}") from None
    try:
        await apply(client, Manifest(job, read.others), None)
    except CommandError:
        await client.delete(ObjectRef.of(stored), uid=created["metadata"]["uid"])
        raise
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": read.name}
    owner["uid"] = (await client.get(ObjectRef.of(job)))["metadata"]["uid"]
    await client.merge(ObjectRef.of(stored), {"metadata": {"ownerReferences": [owner]}})
    for line in bundle.summary_lines(code, stored["metadata"]["name"], read.namespace):
        print_line(line)
    where = "" if read.namespace == "default" else f" -n {read.namespace}"
    print_line(f"trainingjob/{read.name} created; its output: ropeteam logs {read.name} -f{where}")


async def _check_absent(client: ApiClient, job: Object) -> None:
    """Refuse a job that exists: its pods run the code that it was submitted with."""
    try:
        await client.get(ObjectRef.of(job))
    except NotFound:
        return
    meta = job["metadata"]
    raise InvalidInput(
        f"TrainingJob {meta['name']} already exists in namespace {meta['namespace']}. Give this one another "
        f"metadata.name, or delete the existing one: kubectl delete tj -n {meta['namespace']} {meta['name']}"
    )
