"""What a write means: names, generation, optimistic concurrency, status apart, deletion in two phases.

Every write is one synchronous step on the store: nothing can happen in the middle of it.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from ropeteam.local import kinds, schema
from ropeteam.local import resources as r
from ropeteam.local.patch import json_patch, merge
from ropeteam.local.resources import ApiError, Catalog, Object, Resource
from ropeteam.local.store import Key, Store, copy_of, key_of

_OWNED_BY_SERVER = [
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "namespace",
    "name",
]


def timestamp(ahead: float = 0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=ahead)).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Options:
    """Of one request."""

    dry_run: bool = False
    field_validation: str = "Warn"
    subresource: str = ""
    warnings: list[str] = field(default_factory=list)
    """Filled by the verbs, for the Warning header."""


class Verbs:
    """The writing half of the API."""

    def __init__(self, store: Store, catalog: Catalog, rules: dict[str, kinds.Rules]) -> None:
        self.store, self.catalog, self._rules = store, catalog, rules
        self.allocate_address: Callable[[], str] = lambda: "None"

    def create(self, resource: Resource, namespace: str, body: Object, options: Options) -> Object:
        new = copy_of(body)
        meta = new.setdefault("metadata", {})
        if "name" not in meta and "generateName" in meta:
            meta["name"] = meta["generateName"] + secrets.token_hex(3)[:5]
        if "name" not in meta:
            raise resource.invalid("", ["metadata.name: Required value: name or generateName is required"])
        self._place(resource, meta, namespace)
        key = key_of(new)
        if self.store.find(resource, key):
            message = f'{resource.name} "{key[1]}" already exists'
            raise ApiError(
                409, "AlreadyExists", message, name=key[1], group=resource.group, kind=resource.plural
            )
        self._check(resource, new, None, options)
        kinds.at_birth(resource, new)
        if resource == r.SERVICES and not new["spec"].get("clusterIP"):
            new["spec"]["clusterIP"] = self.allocate_address()
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "managedFields"):
            meta.pop(name, None)
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp(), "generation": 1}
        if options.dry_run:
            return new
        if resource == r.CRDS:
            self.catalog.define(new)
        return self.store.put(resource, new)

    def update(self, resource: Resource, key: Key, body: Object, options: Options) -> Object:
        old = self.store.get(resource, key)
        new = copy_of(body)
        meta = new.setdefault("metadata", {})
        self._expect(resource, old, meta)
        if options.subresource == "status":
            new = copy_of(old) | ({"status": new["status"]} if "status" in new else {})
            new["metadata"] = copy_of(old["metadata"])
        else:
            for name in _OWNED_BY_SERVER:
                meta.pop(name, None)
            meta |= {name: old["metadata"][name] for name in _OWNED_BY_SERVER if name in old["metadata"]}
            meta.pop("managedFields", None)
            meta["resourceVersion"] = old["metadata"]["resourceVersion"]
            if resource.has_status:
                new.pop("status", None)
                new |= {"status": old["status"]} if "status" in old else {}
        self._check(resource, new, old, options)
        return self._replace(resource, old, new, options)

    def patch(
        self, resource: Resource, key: Key, change: Any, content_type: str, options: Options
    ) -> tuple[Object, bool]:
        """The object, and whether it is new (server-side apply only)."""
        old = self.store.find(resource, key)
        if old is None and "apply-patch" in content_type and not options.subresource:
            change.setdefault("metadata", {})["name"] = key[1]
            return self.create(resource, key[0], change, options), True
        if old is None:
            raise resource.not_found(key[1])
        if "json-patch" in content_type:
            new = json_patch(copy_of(old), change)
        else:
            self._expect(resource, old, change.get("metadata") or {})
            new = merge(
                old, change, strategic="merge-patch+json" not in content_type or "strategic" in content_type
            )
        if "json-patch" not in content_type:
            new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        return self.update(resource, key, new, options), False

    def delete(self, resource: Resource, key: Key, wish: Object, dry_run: bool = False) -> Object | None:
        """None: the object is gone. Otherwise it is on its way, and this is how it looks now."""
        old = self.store.get(resource, key)
        self._check_preconditions(resource, old, wish.get("preconditions") or {})
        if dry_run:
            return old
        if wish.get("propagationPolicy") == "Orphan" or wish.get("orphanDependents"):
            self._orphan(old["metadata"]["uid"])
        waits = resource in (r.PODS, r.NAMESPACES) or old["metadata"].get("finalizers")
        if not waits:
            self.remove(resource, key)
            return None
        grace = wish.get("gracePeriodSeconds")
        if grace is None:
            grace = old.get("spec", {}).get("terminationGracePeriodSeconds", 0)
        known = old["metadata"].get("deletionGracePeriodSeconds")
        if known is not None and known <= grace:
            return old
        new = copy_of(old)
        new["metadata"] |= {"deletionTimestamp": timestamp(grace), "deletionGracePeriodSeconds": grace}
        if resource == r.NAMESPACES:
            new["status"] = {"phase": "Terminating"}
        return self.store.put(resource, new)

    def remove(self, resource: Resource, key: Key) -> Object:
        """For good, finalizers or not."""
        last = self.store.remove(resource, key)
        if resource == r.CRDS:
            self.catalog.forget(last)
        return last

    def release(self, resource: Resource, key: Key) -> None:
        """The kubelet or the namespace is done with a deleted object: only finalizers may still hold it."""
        old = self.store.find(resource, key)
        if old and old["metadata"].get("finalizers"):
            new = copy_of(old)
            new["metadata"]["deletionGracePeriodSeconds"] = 0
            self.store.put(resource, new)
        elif old:
            self.remove(resource, key)

    def write_status(self, resource: Resource, key: Key, status: Object, spec: Object | None = None) -> None:
        """For the parts of the cluster itself: no checks. `spec`: what the scheduler adds."""
        old = self.store.find(resource, key)
        if old and (old.get("status") != status or spec):
            self.store.put(
                resource, copy_of(old | {"status": status, "spec": old.get("spec", {}) | (spec or {})})
            )

    def _place(self, resource: Resource, meta: Object, namespace: str) -> None:
        if fault := kinds.name_fault(resource, meta["name"]):
            raise resource.invalid(meta["name"], [fault])
        if not resource.namespaced:
            meta.pop("namespace", None)
            return
        if meta.setdefault("namespace", namespace) != namespace:
            text = "the namespace of the provided object does not match the namespace sent on the request"
            raise ApiError(400, "BadRequest", text)
        home = self.store.get(r.NAMESPACES, ("", namespace))
        if "deletionTimestamp" in home["metadata"]:
            text = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise ApiError(403, "Forbidden", f'{resource.name} "{meta["name"]}" is forbidden: {text}')

    def _check(self, resource: Resource, new: Object, old: Object | None, options: Options) -> None:
        """Prune, default, validate: in place."""
        new["apiVersion"], new["kind"] = resource.api_version, resource.kind
        shape = resource.schema or kinds.SCHEMAS.get(resource.name)
        name = new["metadata"]["name"]
        if shape:
            known = shape | {"properties": shape.get("properties", {}) | dict.fromkeys(_TYPE_META, kinds.ANY)}
            unknown = schema.prune(new, known)
            self._tell_unknown(resource, unknown, options)
            schema.set_defaults(new, shape)
            if causes := list(schema.faults(new, shape)):
                raise resource.invalid(name, causes)
        kinds.before_write(resource, new)
        causes = list(kinds.rule_faults(resource, new, old))
        if resource.name in self._rules and options.subresource != "status":
            causes += self._rules[resource.name](new, old)
        if causes:
            raise resource.invalid(name, causes)

    def _tell_unknown(self, resource: Resource, unknown: list[str], options: Options) -> None:
        if not unknown or options.field_validation == "Ignore":
            return
        faults = [f'unknown field "{path}"' for path in unknown]
        if options.field_validation == "Strict":
            text = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
            raise ApiError(400, "BadRequest", f"{text}: strict decoding error: {', '.join(faults)}")
        options.warnings += faults

    def _expect(self, resource: Resource, old: Object, meta: Object) -> None:
        wanted = meta.get("resourceVersion")
        if wanted and wanted != old["metadata"]["resourceVersion"]:
            text = (
                "the object has been modified; please apply your changes to the latest version and try again"
            )
            raise resource.conflict(old["metadata"]["name"], text)
        if meta.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            raise resource.conflict(old["metadata"]["name"], "the UID differs: the object was made anew")

    def _check_preconditions(self, resource: Resource, old: Object, wanted: Object) -> None:
        for field_name, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            have = old["metadata"][field_name]
            if wanted.get(field_name, have) != have:
                text = f"the {label} in the precondition ({wanted[field_name]}) is not the record's ({have})"
                raise resource.conflict(old["metadata"]["name"], f"Precondition failed: {text}")

    def _replace(self, resource: Resource, old: Object, new: Object, options: Options) -> Object:
        if new == old or options.dry_run:
            return new
        meta = new["metadata"]
        if _wish(new) != _wish(old):
            meta["generation"] = old["metadata"].get("generation", 1) + 1
        if resource == r.CRDS:
            self.catalog.define(new)
        stored = self.store.put(resource, new)
        if (
            "deletionTimestamp" in meta
            and not meta.get("finalizers")
            and not meta["deletionGracePeriodSeconds"]
        ):
            return self.remove(resource, key_of(new))
        return stored

    def _orphan(self, uid: str) -> None:
        for resource in tuple(self.catalog):
            for child in self.store.list(resource):
                owners = child["metadata"].get("ownerReferences", [])
                kept = [owner for owner in owners if owner["uid"] != uid]
                if kept != owners:
                    new = copy_of(child)
                    new["metadata"]["ownerReferences"] = kept
                    self.store.put(resource, new)


_TYPE_META = ("apiVersion", "kind", "metadata")


def _wish(value: Object) -> Object:
    return {name: part for name, part in value.items() if name not in ("metadata", "status")}
