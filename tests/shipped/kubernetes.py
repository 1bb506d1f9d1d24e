"""An API server for the shipped operator: objects, resourceVersions, preconditions, watches that lag and end.

`handle` is one request as etcd would serialize it: method, path, query and body in, status and body out.
`watch` gives what happened since a resourceVersion; too old a one is 410. Owner references are followed when
an object is deleted. Schemas, admission and paging are not here: tests/differential and tests/local hold
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import orjson
from tests.shipped.loop import Loop

from ropeteam.api.status import JobStatus

Object = dict[str, Any]
Answer = tuple[int, Object]
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
_HISTORY = 400
_KINDS = {
    "pods": "Pod",
    "services": "Service",
    "secrets": "Secret",
    "events": "Event",
    "nodes": "Node",
    "leases": "Lease",
    "networkpolicies": "NetworkPolicy",
    "trainingjobs": "TrainingJob",
}
_PLURALS = {kind: plural for plural, kind in _KINDS.items()}


def copy_of(obj: Object) -> Object:
    copied: Object = orjson.loads(orjson.dumps(obj))
    return copied


def stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


class Kubernetes:
    """`changed(event type, object)` is called for every write, `saving(old, new)` of those of a job's
    status."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.revision = 1
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.changed: list[Callable[[str, Object], None]] = []
        self.saving: Callable[[Object, Object], None] = lambda *_: None
        self.created: Callable[[Object], None] = lambda _: None
        self._history: deque[tuple[int, str, Object]] = deque(maxlen=_HISTORY)
        self._forgotten = 0
        self._uids = 0

    def time(self) -> datetime:
        return BEGAN + timedelta(seconds=self.loop.now)

    @property
    def job(self) -> Any:
        """As tests/sim's checks read it."""
        obj = next(iter(self.all("TrainingJob")), {})
        return SimpleNamespace(status=JobStatus.model_validate(obj.get("status") or {}))

    def find(self, kind: str, name: str, namespace: str = "default") -> Object | None:
        return self.objects.get((kind, "" if kind == "Node" else namespace, name))

    def all(self, kind: str) -> list[Object]:
        return [obj for (of, _, _), obj in self.objects.items() if of == kind]

    # ---- requests

    def handle(self, method: str, path: str, query: dict[str, str], body: Object | None) -> Answer:
        kind, namespace, name, sub = _parse(path)
        if method == "POST":
            return self._create(kind, namespace, body or {}, "dryRun" in query)
        if not name:
            return 200, self._list(kind, namespace, query.get("labelSelector", ""))
        old = self.objects.get((kind, namespace, name))
        if old is None:
            return _refuse(404, f'{kind} "{name}" not found')
        if method == "GET":
            return 200, old
        meta = (body or {}).get("preconditions" if method == "DELETE" else "metadata") or {}
        if meta.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            return _refuse(409, f"the UID in the precondition ({meta['uid']}) is not that of {name}")
        if method == "DELETE":
            return 200, self.delete(old, (body or {}).get("gracePeriodSeconds"))
        return self._update(method, old, body or {}, sub)

    def _list(self, kind: str, namespace: str, selector: str) -> Object:
        items = [
            obj
            for (of, where, _), obj in self.objects.items()
            if of == kind and namespace in ("", where) and matches(obj, selector)
        ]
        return {"metadata": {"resourceVersion": str(self.revision)}, "items": items}

    def _create(self, kind: str, namespace: str, body: Object, dry_run: bool) -> Answer:
        meta = body["metadata"]
        if (kind, namespace, meta["name"]) in self.objects:
            return _refuse(409, f'{kind} "{meta["name"]}" already exists')
        if dry_run:
            return 201, body
        for owner in meta.get("ownerReferences") or ():
            if not any(each["metadata"]["uid"] == owner["uid"] for each in self.all(owner["kind"])):
                self.loop.after(1.0, self._orphan, kind, namespace, meta["name"])
        self._uids += 1
        new = {"apiVersion": "v1", "kind": kind, **body}
        new["metadata"] = {
            "namespace": namespace,
            **meta,
            "uid": f"{_PLURALS[kind][:-1]}-{self._uids}",
            "creationTimestamp": stamp(self.time()),
            "generation": 1,
        }
        if kind == "Service":
            new["spec"] = {"clusterIP": "10.96.0.7", **new["spec"]}
        if kind == "Pod":
            self.created(new)
            new["status"] = {"phase": "Pending"}
        return 201, self.put("ADDED", new)

    def _orphan(self, kind: str, namespace: str, name: str) -> None:
        if obj := self.objects.get((kind, namespace, name)):
            self.delete(obj)

    def _update(self, method: str, old: Object, body: Object, sub: str) -> Answer:
        new = copy_of(old)
        if method == "PATCH":
            _merge(new, body)
        else:
            version = body["metadata"].get("resourceVersion")
            if version and version != old["metadata"]["resourceVersion"]:
                return _refuse(409, "the object has been modified; please apply your changes to the latest")
            part = "status" if sub == "status" else "spec"
            new[part] = copy_of(body.get(part) or {})
        if new == old:
            return 200, old
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
        if sub == "status" and old["kind"] == "TrainingJob":
            self.saving(old, new)
        return 200, self.put("MODIFIED", new)

    # ---- writes

    def put(self, event: str, new: Object) -> Object:
        """Store it; never changed in place afterwards."""
        self.revision += 1
        meta = new["metadata"]
        meta["resourceVersion"] = str(self.revision)
        self.objects[new["kind"], "" if new["kind"] == "Node" else meta["namespace"], meta["name"]] = new
        self._send_event(event, new)
        return new

    def edit(self, obj: Object, change: Callable[[Object], None]) -> Object | None:
        """By somebody who is no operator. None: it is not there any more."""
        now = self.find(obj["kind"], obj["metadata"]["name"])
        if now is None or now["metadata"]["uid"] != obj["metadata"]["uid"]:
            return None
        new = copy_of(now)
        change(new)
        if new == now:
            return now
        if new.get("spec") != now.get("spec") and new["kind"] == "TrainingJob":
            new["metadata"]["generation"] += 1
        return self.put("MODIFIED", new)

    def delete(self, obj: Object, grace: float | None = None) -> Object:
        """Pods that have a node stay until their kubelet says that they have ended."""
        spec = obj.get("spec") or {}
        if obj["kind"] != "Pod" or not spec.get("nodeName"):
            return self.remove(obj)
        seconds = spec.get("terminationGracePeriodSeconds", 30) if grace is None else grace
        until = self.time() + timedelta(seconds=seconds)

        def mark(new: Object) -> None:
            known = new["metadata"].get("deletionTimestamp")
            if known is None or stamp(until) < known:
                new["metadata"] |= {
                    "deletionTimestamp": stamp(until),
                    "deletionGracePeriodSeconds": int(seconds),
                }

        return self.edit(obj, mark) or obj

    def remove(self, obj: Object) -> Object:
        """Gone from the API, whatever still runs."""
        meta = obj["metadata"]
        key = obj["kind"], "" if obj["kind"] == "Node" else meta["namespace"], meta["name"]
        known = self.objects.get(key)
        if known is None or known["metadata"]["uid"] != meta["uid"]:
            return obj
        del self.objects[key]
        self.revision += 1
        last = copy_of(known)
        last["metadata"]["resourceVersion"] = str(self.revision)
        self._send_event("DELETED", last)
        for owned in list(self.objects.values()):
            owners = owned["metadata"].get("ownerReferences") or ()
            if any(owner["uid"] == meta["uid"] for owner in owners):
                self.loop.after(self.loop.random.random(), self.delete, owned)
        return last

    def _send_event(self, event: str, obj: Object) -> None:
        if len(self._history) == _HISTORY:
            self._forgotten = self._history[0][0]
        self._history.append((self.revision, event, obj))
        for call in list(self.changed):
            call(event, obj)

    def since(
        self, kind: str, namespace: str, selector: str, version: int
    ) -> list[tuple[str, Object]] | None:
        """None: that is too long ago."""
        if version < self._forgotten:
            return None
        found = ((n, event, obj) for n, event, obj in self._history if n > version)
        return [(e, t) for _, e, t in found if concerns(t, kind, namespace, selector)]

    def compact(self) -> None:
        self._forgotten = self.revision
        self._history.clear()


def concerns(obj: Object, kind: str, namespace: str, selector: str) -> bool:
    here = namespace in ("", obj["metadata"].get("namespace"))
    return obj["kind"] == kind and here and matches(obj, selector)


def matches(obj: Object, selector: str) -> bool:
    labels = obj["metadata"].get("labels") or {}
    pairs = (pair.split("=") for pair in selector.split(",") if pair)
    return all(labels.get(name) == value for name, value in pairs)


def _parse(path: str) -> tuple[str, str, str, str]:
    """Kind, namespace, name, subresource."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    name, sub = (*parts[1:], "", "")[:2]
    return _KINDS[parts[0]], namespace, name, sub


def parse_kind(path: str) -> tuple[str, str]:
    return _parse(path)[:2]


def _merge(old: Object, change: Object) -> None:
    for name, value in change.items():
        if isinstance(value, dict) and isinstance(old.get(name), dict):
            _merge(old[name], value)
        elif value is None:
            old.pop(name, None)
        else:
            old[name] = value


def _refuse(code: int, message: str) -> Answer:
    return code, {"kind": "Status", "code": code, "message": message}
