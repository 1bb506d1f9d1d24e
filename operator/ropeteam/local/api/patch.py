"""Patches: merge, strategic merge (lists of named objects merge by name) and JSON patch. No I/O."""

from __future__ import annotations

from typing import Any

from ropeteam.local.resources import StatusError


def merge(target: Any, patch: Any, strategic: bool = False) -> Any:
    """The result of a merge patch (RFC 7386); `target` is not changed, but parts of both are shared.
    `strategic`: lists of objects with a `name` are merged by it, and `$` directives of objects are ignored.
    Limit: a real server knows the merge key of each list, and more directives."""
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
    if strategic and isinstance(target, list) and _is_list_of_named(patch) and _is_list_of_named(target):
        return _merge_lists_by_name(target, patch)
    return patch


def _is_list_of_named(value: Any) -> bool:
    """Whether a value is a list of objects with a name; an empty list is one."""
    return isinstance(value, list) and all(isinstance(item, dict) and "name" in item for item in value)


def _merge_lists_by_name(target: list[Any], patch: list[Any]) -> list[Any]:
    """`target` with items of `patch` merged by name, appended, or with `$patch: delete` removed."""
    result = {item["name"]: item for item in target}
    for item in patch:
        if item.get("$patch") == "delete":
            result.pop(item["name"], None)
        else:
            result[item["name"]] = merge(result.get(item["name"]), item, strategic=True)
    return list(result.values())


def json_patch(target: Any, operations: list[dict[str, Any]]) -> Any:
    """The result of a JSON patch (RFC 6902). Changes `target` in place, so pass a copy. Raises 422 if an
    operation fails; a real server gives no details either."""
    document = {"": target}
    for operation in operations:
        try:
            _apply_operation(document, operation)
        except (KeyError, IndexError, ValueError, TypeError):
            text = "the server rejected our request due to an error in our request"
            raise StatusError(422, "Invalid", text) from None
    return document[""]


def _apply_operation(document: dict[str, Any], operation: dict[str, Any]) -> None:
    """Apply one operation in place. `document`: {"": the document}, so that the path "" has a parent, too.
    Raises KeyError, IndexError, ValueError or TypeError if it cannot be applied."""
    kind, path = operation["op"], operation["path"]
    if kind not in ("add", "remove", "replace", "move", "copy", "test"):
        raise ValueError(kind)
    parent, last = _parent_and_key(document, path)
    if kind == "test":
        if _member(parent, last) != operation["value"]:
            raise ValueError(f"testing value {path} failed")
        return
    value = operation.get("value")
    if kind in ("move", "copy"):
        source, name = _parent_and_key(document, operation["from"])
        value = _member(source, name)
        if kind == "move":
            del source[_index_or_key(source, name)]
    if kind == "remove" or (isinstance(parent, list) and kind == "replace"):
        _member(parent, last)  # must be there
    if kind == "remove":
        del parent[_index_or_key(parent, last)]
    elif isinstance(parent, list) and kind != "replace":
        position = len(parent) if last == "-" else int(last)
        if position > len(parent):
            raise IndexError(last)
        parent.insert(position, value)
    else:
        parent[_index_or_key(parent, last)] = value


def _parent_and_key(document: dict[str, Any], path: str) -> tuple[Any, str]:
    """The object or list that holds the value at a JSON pointer, and the last part of the pointer."""
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")]
    here: Any = document
    for part in parents:
        here = _member(here, part)
    return here, last


def _member(parent: Any, name: str) -> Any:
    return parent[_index_or_key(parent, name)]


def _index_or_key(parent: Any, name: str) -> Any:
    return int(name) if isinstance(parent, list) else name
