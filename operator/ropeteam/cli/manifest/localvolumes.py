"""Folders of a job's volumes on this machine, and the effect on its paths. For the local cluster; pure.

A claim is a folder, and a fresh local cluster has no claims: `run` creates those that the job names and the
manifest leaves to a real cluster. Limit: there is no mount namespace, so a path inside a script stays as it
is (local/node/podspec.py); where that causes an error, a hint is printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from ropeteam.api.claims import claims
from ropeteam.api.rule import at, trainer_container
from ropeteam.cli.manifest.read import Manifest
from ropeteam.controller.client.apiclient import Object

_CLAIM = "PersistentVolumeClaim"
_CLAIM_SPEC: Object = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
"""Required by the API server; a folder is not limited to it."""
_NOT_FOUND = re.compile(r"(?:FileNotFoundError|No such file)[^\n]*?['\"](/[^'\"\n]+)['\"]")
"""Path in the error of a script."""


def with_missing_claims(manifest: Manifest) -> Manifest:
    """Copy of the manifest with a claim for each name in the job that its own documents do not have."""
    existing = {each["metadata"]["name"] for each in _claims_in(manifest)}
    meta = {"namespace": manifest.namespace}
    missing = (name for name in claims(manifest.job["spec"]) if name not in existing)
    created = (
        {"apiVersion": "v1", "kind": _CLAIM, "metadata": {"name": name, **meta}, "spec": _CLAIM_SPEC}
        for name in missing
    )
    return replace(manifest, others=(*manifest.others, *created))


def claim_lines(manifest: Manifest, home: Path) -> Iterator[str]:
    """Lines for a person: the folder of each claim. manifest: as it was written, without missing claims."""
    existing = {each["metadata"]["name"] for each in _claims_in(manifest)}
    for name, field in claims(manifest.job["spec"]).items():
        created = "" if name in existing else f" (created here; on a real cluster {field} needs a {_CLAIM})"
        yield f"claim {name}: folder {_claim_folder(home, manifest.namespace, name)}{created}"


def path_hints(job: Object, errors: Iterable[str], home: Path) -> Iterator[str]:
    """Hints about files that were not found, one for each path below a mountPath of the job.

    errors: output of ranks that failed.
    """
    folders = dict(_folders_of_mounts(job, home))
    mounts = sorted(folders, key=len, reverse=True)  # the innermost mount has the file
    for path in dict.fromkeys(path for text in errors for path in _NOT_FOUND.findall(text)):
        mount = next((each for each in mounts if path == each or path.startswith(f"{each}/")), None)
        if mount is not None:
            yield (
                f"hint: {mount} exists in pods; on this machine it is {folders[mount]}. Paths are translated "
                f"in the command, its arguments, env and workingDir, but not inside a script: pass {path} as "
                f"an argument or in a variable of spec.env"
            )


def _folders_of_mounts(job: Object, home: Path) -> Iterator[tuple[str, str]]:
    """Each mountPath of the trainer container, and the folder on this machine, as text for a person. The last
    of equal ones is the one that counts; checkpoints are always at /checkpoints."""
    spec, namespace = job["spec"], job["metadata"]["namespace"]
    volumes = {each["name"]: each for each in at(spec, "template.spec.volumes") or ()}
    rows = [
        (each["mountPath"].rstrip("/"), volumes.get(each["name"], {}))
        for each in trainer_container(spec).get("volumeMounts") or ()
    ]
    if spec.get("checkpoint"):
        rows.append(("/checkpoints", spec["checkpoint"]["volume"]))
    for path, volume in rows:
        claim = at(volume, "persistentVolumeClaim.claimName")
        yield path, str(_claim_folder(home, namespace, claim)) if claim else "a folder of each pod"


def _claims_in(manifest: Manifest) -> Iterator[Object]:
    """Claims among the manifest's documents, in the job's namespace."""
    for each in manifest.others:
        if each["kind"] == _CLAIM and each["metadata"]["namespace"] == manifest.namespace:
            yield each


def _claim_folder(home: Path, namespace: str, claim: str) -> Path:
    return home / "claims" / namespace / claim
