"""Parts of a pod's manifest, changed in place. Total: a part of an unexpected type is replaced; the API
server's dry run reports it to the user.
"""

from __future__ import annotations

from typing import Any


def dict_at(parent: dict[str, Any], key: str) -> dict[str, Any]:
    """parent[key], replaced by an empty object if it is none."""
    if not isinstance(parent.get(key), dict):
        parent[key] = {}
    found: dict[str, Any] = parent[key]
    return found


def list_at(parent: dict[str, Any], key: str) -> list[Any]:
    """parent[key], replaced by an empty list if it is none."""
    if not isinstance(parent.get(key), list):
        parent[key] = []
    found: list[Any] = parent[key]
    return found


def dicts_at(parent: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """parent[key] as a list of objects, in place."""
    parent[key] = [each for each in list_at(parent, key) if isinstance(each, dict)]
    found: list[dict[str, Any]] = parent[key]
    return found


def mount(container: dict[str, Any], volume: str, path: str, **more: Any) -> None:
    list_at(container, "volumeMounts").append({"name": volume, "mountPath": path, **more})


def is_mounted(container: dict[str, Any], path: str) -> bool:
    return any(each.get("mountPath") == path for each in dicts_at(container, "volumeMounts"))


def folder(
    container: dict[str, Any], pod_spec: dict[str, Any], volume: str, path: str, empty_dir: dict[str, Any]
) -> None:
    """An emptyDir at `path`, unless the template mounts something there."""
    if not is_mounted(container, path):
        mount(container, volume, path)
        list_at(pod_spec, "volumes").append({"name": volume, "emptyDir": empty_dir})
