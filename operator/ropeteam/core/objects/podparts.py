"""Parts of a pod's manifest, changed in place. Never raises: a part of an unexpected type is replaced by an
empty one.
"""

from __future__ import annotations

from typing import Any


def dict_at(parent: dict[str, Any], key: str) -> dict[str, Any]:
    """The object parent[key] itself, not a copy. An empty one is set first, if there is none."""
    if not isinstance(parent.get(key), dict):
        parent[key] = {}
    found: dict[str, Any] = parent[key]
    return found


def list_at(parent: dict[str, Any], key: str) -> list[Any]:
    """The list parent[key] itself, not a copy. An empty one is set first, if there is none."""
    if not isinstance(parent.get(key), list):
        parent[key] = []
    found: list[Any] = parent[key]
    return found


def dicts_at(parent: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The list parent[key] itself, from which entries that are no objects were removed."""
    parent[key] = [each for each in list_at(parent, key) if isinstance(each, dict)]
    found: list[dict[str, Any]] = parent[key]
    return found


def add_mount(container: dict[str, Any], volume: str, path: str, **more: Any) -> None:
    """Mount the pod's `volume` at `path`, in place. `more`: further fields of a volumeMount."""
    list_at(container, "volumeMounts").append({"name": volume, "mountPath": path, **more})


def is_mounted(container: dict[str, Any], path: str) -> bool:
    """Whether the container mounts something at exactly this path."""
    return any(each.get("mountPath") == path for each in dicts_at(container, "volumeMounts"))


def add_empty_dir(
    container: dict[str, Any], pod_spec: dict[str, Any], volume: str, path: str, empty_dir: dict[str, Any]
) -> None:
    """Add an emptyDir named `volume` to the pod, mounted at `path`, in place. No effect, if the template
    mounts something there. `empty_dir`: its fields, as sizeLimit."""
    if not is_mounted(container, path):
        add_mount(container, volume, path)
        list_at(pod_spec, "volumes").append({"name": volume, "emptyDir": empty_dir})
