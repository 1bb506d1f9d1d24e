"""A scenario: requests as data, some of which refer to earlier answers. Pure.

`{ns}` in a path is the scenario's own namespace. `At` and `Edited`, anywhere in a body or a query, stand for
what that very server answered before, since uids and resourceVersions differ between servers.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ropeteam.api.rule import at
from ropeteam.local.api.patch import merge

Object = dict[str, Any]
JSON, MERGE = "application/json", "application/merge-patch+json"
JSON_PATCH, STRATEGIC = "application/json-patch+json", "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True)
class At:
    """A value of the body that call number `call` was answered with."""

    call: int
    path: str


@dataclass(frozen=True)
class Edited:
    """The whole body of an earlier answer with a merge patch on it."""

    call: int
    change: Object


@dataclass(frozen=True)
class Call:
    """One request. A body that is text is sent as it is, anything else as JSON."""

    verb: str
    path: str
    body: Any = None
    query: Mapping[str, Any] = field(default_factory=dict)
    content: str = JSON
    accept: str = JSON


@dataclass(frozen=True)
class Scenario:
    """Calls in their order, in a namespace that nobody else uses. The name begins with its chapter."""

    name: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Answer:
    """`body`: parsed JSON, the events of a watch, or text."""

    status: int
    content: str
    warnings: tuple[str, ...]
    body: Any


def scenario(name: str, *calls: Call) -> Scenario:
    return Scenario(name, calls)


def each(chapter: str, calls: Mapping[str, Call]) -> Iterator[Scenario]:
    """A scenario for every single call."""
    for name, call in calls.items():
        yield Scenario(f"{chapter}/{name}", (call,))


def resolve(value: Any, namespace: str, seen: Sequence[Answer]) -> Any:
    """`value` with all that it stands for filled in."""
    match value:
        case At(call, path):
            return at(seen[call].body, path)
        case Edited(call, change):
            return merge(seen[call].body, resolve(change, namespace, seen))
        case dict():
            return {name: resolve(part, namespace, seen) for name, part in value.items()}
        case list():
            return [resolve(part, namespace, seen) for part in value]
        case str():
            return value.replace("{ns}", namespace)
        case _:
            return value


def encode(body: Any) -> io.BytesIO | None:
    if body is None:
        return None
    text = body if isinstance(body, str) else json.dumps(body)
    return io.BytesIO(text.encode())


def get(path: str, accept: str = JSON, **query: Any) -> Call:
    return Call("GET", path, query=query, accept=accept)


def post(path: str, body: Any, content: str = JSON, **query: Any) -> Call:
    return Call("POST", path, body, query, content)


def put(path: str, body: Any, **query: Any) -> Call:
    return Call("PUT", path, body, query)


def patch(path: str, body: Any, content: str = MERGE, **query: Any) -> Call:
    return Call("PATCH", path, body, query, content)


def delete(path: str, body: Any = None, **query: Any) -> Call:
    return Call("DELETE", path, body, query)


def watch(path: str, accept: str = JSON, **query: Any) -> Call:
    """Ends by itself after three seconds: a busy server may send an event a second later."""
    return Call("GET", path, query={"timeoutSeconds": "3", "watch": "true", **query}, accept=accept)
