"""Patches: merge, strategic merge (lists of named objects merge by name) and JSON patch. Pure."""

from __future__ import annotations

from typing import Any

from ropeteam.local.resources import StatusError


def merge(target: Any, patch: Any, strategic: bool = False) -> Any:
    """RFC 7386; `strategic` also merges lists whose members have a `name` and drops the `$` directives."""
    if isinstance(patch, dict):
        result = dict(target) if isinstance(target, dict) else {}
        for key, value in patch.items():
            if strategic and key.startswith("$"):
                continue
            if value is None:
                result.pop(key, None)
            else:
                result[key] = merge(result.get(key), value, strategic)
        return result
    if strategic and isinstance(target, list) and _named(patch) and _named(target):
        return _merge_named(target, patch)
    return patch


def _named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) and "name" in item for item in value)


def _merge_named(target: list[Any], patch: list[Any]) -> list[Any]:
    result = {item["name"]: item for item in target}
    for item in patch:
        if item.get("$patch") == "delete":
            result.pop(item["name"], None)
        else:
            result[item["name"]] = merge(result.get(item["name"]), item, strategic=True)
    return list(result.values())


def json_patch(target: Any, operations: list[dict[str, Any]]) -> Any:
    """RFC 6902. Changes `target`. Raises 422 if one fails; a real server gives no details either."""
    document = {"": target}
    for operation in operations:
        try:
            _apply(document, operation)
        except (KeyError, IndexError, ValueError, TypeError):
            text = "the server rejected our request due to an error in our request"
            raise StatusError(422, "Invalid", text) from None
    return document[""]


def _apply(document: dict[str, Any], operation: dict[str, Any]) -> None:
    kind, path = operation["op"], operation["path"]
    if kind not in ("add", "remove", "replace", "move", "copy", "test"):
        raise ValueError(kind)
    parent, last = _locate(document, path)
    if kind == "test":
        if _read(parent, last) != operation["value"]:
            raise ValueError(f"testing value {path} failed")
        return
    value = operation.get("value")
    if kind in ("move", "copy"):
        source, name = _locate(document, operation["from"])
        value = _read(source, name)
        if kind == "move":
            del source[_index(source, name)]
    if kind == "remove" or (isinstance(parent, list) and kind == "replace"):
        _read(parent, last)  # must be there
    if kind == "remove":
        del parent[_index(parent, last)]
    elif isinstance(parent, list) and kind != "replace":
        position = len(parent) if last == "-" else int(last)
        if position > len(parent):
            raise IndexError(last)
        parent.insert(position, value)
    else:
        parent[_index(parent, last)] = value


def _locate(document: dict[str, Any], path: str) -> tuple[Any, str]:
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")]
    here: Any = document
    for part in parents:
        here = _read(here, part)
    return here, last


def _read(parent: Any, name: str) -> Any:
    return parent[_index(parent, name)]


def _index(parent: Any, name: str) -> Any:
    return int(name) if isinstance(parent, list) else name
