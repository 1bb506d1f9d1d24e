"""Volumes as folders: `<home>/pods/<uid>/volumes/<name>`; claims outlive pods: `<home>/claims`."""

from __future__ import annotations

from pathlib import Path

from ropeteam.local import resources as r
from ropeteam.local.node.podspec import ContainerNotReady, Lookup, decoded_data
from ropeteam.local.resources import Object


def missing_claim(pod: Object, lookup: Lookup) -> str | None:
    """The scheduler's message for the first PersistentVolumeClaim of a pod that does not exist. None: all
    exist."""
    for volume in pod["spec"].get("volumes", ()):
        name = volume.get("persistentVolumeClaim", {}).get("claimName")
        if name and lookup(r.CLAIMS, name) is None:
            return f'0/1 nodes are available: persistentvolumeclaim "{name}" not found.'
    return None


def create_folders(pod: Object, home: Path, lookup: Lookup) -> dict[str, Path]:
    """Create the folder of each volume of a pod, with the files of Secrets and ConfigMaps. Returns volume
    name to folder. Idempotent. Raises ContainerNotReady for a missing Secret or ConfigMap, or a volume that
    is not supported."""
    return {
        volume["name"]: _create_folder(pod, volume, home, lookup) for volume in pod["spec"].get("volumes", ())
    }


def mounted_folders(container: Object, folders: dict[str, Path]) -> dict[str, Path]:
    """mountPath to folder, for the mounts of a container; creates subPaths. `folders`: from `create_folders`.
    Mounts at / and /dev/shm are left out: containers use those of this machine."""
    found = {}
    for mount in container.get("volumeMounts", ()):
        path = mount["mountPath"].rstrip("/")
        if path and path != "/dev/shm":
            folder: Path = folders[mount["name"]] / mount.get("subPath", "")
            if mount.get("subPath"):
                folder.mkdir(parents=True, exist_ok=True)
            found[path] = folder
    return found


def _create_folder(pod: Object, volume: Object, home: Path, lookup: Lookup) -> Path:
    """Create the folder of one volume, with the files of its Secret or ConfigMap, and return it. A claim's
    folder is shared by all pods that name it; one of hostPath is created only with type DirectoryOrCreate.
    Raises ContainerNotReady."""
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
        _write_keys(folder, volume["secret"] | {"name": volume["secret"]["secretName"]}, r.SECRETS, lookup)
    elif "configMap" in volume:
        _write_keys(folder, volume["configMap"], r.CONFIG_MAPS, lookup)
    elif not volume.keys() & {"emptyDir", "persistentVolumeClaim", "hostPath"}:
        kind = ", ".join(volume.keys() - {"name"}) or "no source"
        raise ContainerNotReady(
            "ContainerCreating",
            f'volume "{volume["name"]}": the local cluster does not support {kind}; use emptyDir, hostPath, '
            "persistentVolumeClaim, secret or configMap",
        )
    return folder


def _write_keys(folder: Path, source: Object, resource: r.Resource, lookup: Lookup) -> None:
    """Write the keys of a Secret or ConfigMap as files of the volume `folder`: all, or those in `items`.
    `source`: the volume source with `name`. An optional one that is missing writes empty files, or none.
    Raises ContainerNotReady."""
    owner = lookup(resource, source["name"])
    if owner is None and not source.get("optional"):
        what = f'{resource.kind.lower()} "{source["name"]}" not found'
        text = f'MountVolume.SetUp failed for volume "{folder.name}" : {what}'
        raise ContainerNotReady("ContainerCreating", text)
    data = decoded_data(owner) if owner else {}
    for item in source.get("items") or ({"key": name, "path": name} for name in data):
        target = folder / item["path"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.touch(mode=0o600)
        target.write_bytes(data.get(item["key"], b""))
        target.chmod(item.get("mode", source.get("defaultMode", 0o600)))
