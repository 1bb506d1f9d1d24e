"""Tables, as `kubectl get` prints them: the usual columns of the built-in kinds, and those of a CRD."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ropeteam.api.rule import at
from ropeteam.local import resources as r
from ropeteam.local.resources import Object, Resource

Column = tuple[str, int, Callable[[Object], Any]]
"""Name, priority (1: only with `-o wide`), cell."""


def table(resource: Resource, items: list[Object], meta: Object, include: str) -> Object:
    """A Table with a row for each item. `meta`: of the List. `include`: None, Metadata or Object, the part of
    the item in its row."""
    columns = _columns(resource)
    declared = {column["name"]: column for column in resource.columns}
    head = [
        {
            "name": n,
            "type": declared.get(n, {}).get("type", "string"),
            "format": "name" if n == "Name" else "",
            "description": declared.get(n, {}).get("description", n),
            "priority": p,
        }
        for n, p, _ in columns
    ]
    rows = [
        {"cells": [cell(item) for _, _, cell in columns], "object": _row_object(resource, item, include)}
        for item in items
    ]
    wanted = ("resourceVersion", "continue", "remainingItemCount")
    list_meta = {name: value for name, value in meta.items() if name in wanted and value}
    api = {"kind": "Table", "apiVersion": "meta.k8s.io/v1"}
    return {**api, "metadata": list_meta, "columnDefinitions": head, "rows": rows}


def _row_object(resource: Resource, item: Object, include: str) -> Object | None:
    """The item in its row of a table: by `include` nothing, the whole object, or its metadata."""
    if include == "None":
        return None
    if include == "Object":  # kubectl --sort-by reads it
        return {"kind": resource.kind, "apiVersion": resource.api_version, **item}
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item["metadata"]}


def age(moment: str | None) -> str:
    """Time since a moment in RFC 3339, as kubectl formats an age: 45s, 5m20s, 3h5m, 2d3h, with kubectl's own
    thresholds up to two years. `<unknown>` without a moment."""
    if not moment:
        return "<unknown>"
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())
    seconds = max(0, seconds)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if days < 2:
        return f"{hours}h"
    return f"{days}d{hours % 24}h" if days < 8 and hours % 24 else f"{days}d"


def _path_cell(path: str, default: Any = "<none>") -> Callable[[Object], Any]:
    """A cell with the value at a path, or the default if it is missing or empty."""

    def cell(item: Object) -> Any:
        found = at(item, path)
        return default if found in (None, "") else found

    return cell


def _age_cell(path: str) -> Callable[[Object], str]:
    """A cell with the time since the moment at a path."""
    return lambda item: age(at(item, path))


_NAME: Column = ("Name", 0, _path_cell("metadata.name"))
_AGE: Column = ("Age", 0, _age_cell("metadata.creationTimestamp"))


def pod_status(pod: Object) -> str:
    """The value of the STATUS column. First match wins: Terminating; the first init container that has not
    succeeded; Running, if a container runs and none has failed; the reason of a container; the phase."""
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    status = pod["status"]
    init = status.get("initContainerStatuses", ())
    for number, row in enumerate(init):
        ended = row["state"].get("terminated")
        if ended and ended["exitCode"] == 0:
            continue
        if ended:
            return f"Init:{ended['reason']}"
        if not row["state"].get("waiting") or row["state"]["waiting"]["reason"] == "ContainerCreating":
            return f"Init:{number}/{len(init)}"
        return f"Init:{row['state']['waiting']['reason']}"
    reasons = [
        state.get("reason") for row in status.get("containerStatuses", ()) for state in row["state"].values()
    ]
    running = any("running" in row["state"] for row in status.get("containerStatuses", ()))
    if running and not any(reason in ("Error", "StartError", "CrashLoopBackOff") for reason in reasons):
        return "Running"
    return next((reason for reason in reasons if reason), str(status["phase"]))


def _container_statuses(pod: Object) -> list[Object]:
    found: list[Object] = pod["status"].get("containerStatuses", [])
    return found


def _ready_cell(pod: Object) -> str:
    return f"{sum(row['ready'] for row in _container_statuses(pod))}/{len(pod['spec']['containers'])}"


def _ports_cell(service: Object) -> str:
    return ",".join(f"{p['port']}/{p['protocol']}" for p in service["spec"].get("ports", ())) or "<none>"


def _selector_cell(service: Object) -> str:
    return ",".join(f"{k}={v}" for k, v in service["spec"].get("selector", {}).items()) or "<none>"


def _subject_cell(event: Object) -> str:
    subject = event.get("involvedObject", {})
    return f"{subject.get('kind', '').lower()}/{subject.get('name', '')}"


_COLUMNS: dict[str, list[Column]] = {
    r.PODS.name: [
        _NAME,
        ("Ready", 0, _ready_cell),
        ("Status", 0, pod_status),
        ("Restarts", 0, lambda p: str(sum(row["restartCount"] for row in _container_statuses(p)))),
        _AGE,
        ("IP", 1, _path_cell("status.podIP")),
        ("Node", 1, _path_cell("spec.nodeName")),
        ("Nominated Node", 1, _path_cell("status.nominatedNodeName")),
        ("Readiness Gates", 1, lambda _: "<none>"),
    ],
    r.SERVICES.name: [
        _NAME,
        ("Type", 0, _path_cell("spec.type")),
        ("Cluster-IP", 0, _path_cell("spec.clusterIP")),
        ("External-IP", 0, lambda _: "<none>"),
        ("Port(s)", 0, _ports_cell),
        _AGE,
        ("Selector", 1, _selector_cell),
    ],
    r.EVENTS.name: [
        ("Last Seen", 0, _age_cell("lastTimestamp")),
        ("Type", 0, _path_cell("type")),
        ("Reason", 0, _path_cell("reason")),
        ("Object", 0, _subject_cell),
        ("Subobject", 1, _path_cell("involvedObject.fieldPath", "")),
        ("Source", 1, _path_cell("source.component", "")),
        ("Message", 0, lambda e: str(e.get("message", "")).strip()),
        ("First Seen", 1, _age_cell("firstTimestamp")),
        ("Count", 1, lambda e: e.get("count", 1)),
        ("Name", 1, _path_cell("metadata.name")),
    ],
    r.NAMESPACES.name: [_NAME, ("Status", 0, _path_cell("status.phase")), _AGE],
    r.CLAIMS.name: [_NAME, ("Status", 0, _path_cell("status.phase")), _AGE],
    r.NODES.name: [_NAME, ("Status", 0, lambda _: "Ready"), _AGE],
    r.SECRETS.name: [
        _NAME,
        ("Type", 0, _path_cell("type")),
        ("Data", 0, lambda s: len(s.get("data", {}))),
        _AGE,
    ],
    r.CONFIG_MAPS.name: [_NAME, ("Data", 0, lambda c: len(c.get("data", {}))), _AGE],
    r.CRDS.name: [_NAME, ("Created At", 0, _path_cell("metadata.creationTimestamp"))],
    r.LEASES.name: [_NAME, ("Holder", 0, _path_cell("spec.holderIdentity")), _AGE],
}  # fmt: skip


def _columns(resource: Resource) -> list[Column]:
    """Columns of a kind: those of its CRD, or the usual ones of a built-in kind, or name and age."""
    if resource.columns:
        return [_NAME, *(_crd_column(column) for column in resource.columns)]
    return _COLUMNS.get(resource.name, [_NAME, _AGE])


def _crd_column(column: Object) -> Column:
    """A column from an entry of additionalPrinterColumns. Raises ValueError for a jsonPath with more than
    names."""
    path = column["jsonPath"].removeprefix(".")
    if not re.fullmatch(r"[\w.\-]+", path):
        raise ValueError(
            f"printer column {column['name']}: the local cluster supports plain paths only, not {path}"
        )
    cell = _age_cell(path) if column["type"] == "date" else _path_cell(path, None)
    return column["name"], column.get("priority", 0), cell
