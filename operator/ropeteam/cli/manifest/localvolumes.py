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
_SPEC: Object = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
"""Required by the API server; a folder is not limited to it."""
_NOT_FOUND = re.compile(r"(?:FileNotFoundError|No such file)[^\n]*?['\"](/[^'\"\n]+)['\"]")


def with_claims(manifest: Manifest) -> Manifest:
    """Manifest with each claim that the job names."""
    existing = {each["metadata"]["name"] for each in _own_claims(manifest)}
    meta = {"namespace": manifest.namespace}
    missing = (name for name in claims(manifest.job["spec"]) if name not in existing)
    created = (
        {"apiVersion": "v1", "kind": _CLAIM, "metadata": {"name": name, **meta}, "spec": _SPEC}
        for name in missing
    )
    return replace(manifest, others=(*manifest.others, *created))


def claim_lines(manifest: Manifest, home: Path) -> Iterator[str]:
    """Lines: the folder of each claim. manifest: as it was written."""
    existing = {each["metadata"]["name"] for each in _own_claims(manifest)}
    for name, field in claims(manifest.job["spec"]).items():
        created = "" if name in existing else f" (created here; on a real cluster {field} needs a {_CLAIM})"
        yield f"claim {name}: folder {_folder(home, manifest.namespace, name)}{created}"


def hints(job: Object, errors: Iterable[str], home: Path) -> Iterator[str]:
    """Hints about files that were not found at their path in a pod. errors: output of ranks that failed."""
    paths = dict(_mounts(job, home))
    for path in dict.fromkeys(path for text in errors for path in _NOT_FOUND.findall(text)):
        mount = next((each for each in paths if path == each or path.startswith(f"{each}/")), None)
        if mount is not None:
            yield (
                f"hint: {mount} exists in pods; on this machine it is {paths[mount]}. Paths are translated "
                f"in the command, its arguments, env and workingDir, but not inside a script: pass {path} as "
                f"an argument or in a variable of spec.env"
            )


def _mounts(job: Object, home: Path) -> Iterator[tuple[str, str]]:
    """Pairs of mountPath and its folder."""
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
        yield path, str(_folder(home, namespace, claim)) if claim else "a folder of each pod"


def _own_claims(manifest: Manifest) -> Iterator[Object]:
    for each in manifest.others:
        if each["kind"] == _CLAIM and each["metadata"]["namespace"] == manifest.namespace:
            yield each


def _folder(home: Path, namespace: str, claim: str) -> Path:
    return home / "claims" / namespace / claim
