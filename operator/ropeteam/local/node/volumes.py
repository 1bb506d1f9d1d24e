"""Volumes as folders: `<home>/pods/<uid>/volumes/<name>`; claims outlive pods: `<home>/claims`."""

from __future__ import annotations

from pathlib import Path

from ropeteam.local import resources as r
from ropeteam.local.node.podspec import ContainerNotReady, Lookup, contents
from ropeteam.local.resources import Object


def missing_claim(pod: Object, lookup: Lookup) -> str | None:
    """The scheduler's message for a pod with a claim that does not exist; None: all exist."""
    for volume in pod["spec"].get("volumes", ()):
        name = volume.get("persistentVolumeClaim", {}).get("claimName")
        if name and lookup(r.CLAIMS, name) is None:
            return f'0/1 nodes are available: persistentvolumeclaim "{name}" not found.'
    return None


def make(pod: Object, home: Path, lookup: Lookup) -> dict[str, Path]:
    """Create the folders, by volume name. Idempotent. Raises ContainerNotReady for a missing Secret or
    ConfigMap."""
    return {volume["name"]: _make_one(pod, volume, home, lookup) for volume in pod["spec"].get("volumes", ())}


def mounts(container: Object, folders: dict[str, Path]) -> dict[str, Path]:
    """mountPath to folder. /dev/shm is shared by all pods of this machine, as it is."""
    found = {}
    for mount in container.get("volumeMounts", ()):
        path = mount["mountPath"].rstrip("/")
        if path and path != "/dev/shm":
            folder: Path = folders[mount["name"]] / mount.get("subPath", "")
            if mount.get("subPath"):
                folder.mkdir(parents=True, exist_ok=True)
            found[path] = folder
    return found


def _make_one(pod: Object, volume: Object, home: Path, lookup: Lookup) -> Path:
    meta = pod["metadata"]
    folder: Path = home / "pods" / meta["uid"] / "volumes" / volume["name"]
    if "persistentVolumeClaim" in volume:
        folder = home / "claims" / meta["namespace"] / volume["persistentVolumeClaim"]["claimName"]
    elif "hostPath" in volume:
        folder = Path(volume["hostPath"]["path"])
        if volume["hostPath"].get("type") != "DirectoryOrCreate":
            return folder
    folder.mkdir(parents=True, exist_ok=True)
    if "secret" in volume:
        _fill(folder, volume["secret"] | {"name": volume["secret"]["secretName"]}, r.SECRETS, lookup)
    elif "configMap" in volume:
        _fill(folder, volume["configMap"], r.CONFIG_MAPS, lookup)
    elif not volume.keys() & {"emptyDir", "persistentVolumeClaim", "hostPath"}:
        kind = ", ".join(volume.keys() - {"name"}) or "no source"
        raise ContainerNotReady(
            "ContainerCreating", f'volume "{volume["name"]}": the local cluster does not support {kind}'
        )
    return folder


def _fill(folder: Path, source: Object, resource: r.Resource, lookup: Lookup) -> None:
    owner = lookup(resource, source["name"])
    if owner is None and not source.get("optional"):
        what = f'{resource.kind.lower()} "{source["name"]}" not found'
        text = f'MountVolume.SetUp failed for volume "{folder.name}" : {what}'
        raise ContainerNotReady("ContainerCreating", text)
    data = contents(owner) if owner else {}
    for item in source.get("items") or ({"key": name, "path": name} for name in data):
        target = folder / item["path"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.touch(mode=0o600)
        target.write_bytes(data.get(item["key"], b""))
        target.chmod(item.get("mode", source.get("defaultMode", 0o600)))
