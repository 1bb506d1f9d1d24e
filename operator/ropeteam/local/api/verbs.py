"""Semantics of writes: names, generation, optimistic concurrency, separate status, deletion in two phases.

Every write is one synchronous step on the store, hence atomic. Objects that the methods return are stored
ones, or with dry_run those that would be stored: do not change them.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from ropeteam.local import resources as r
from ropeteam.local.api import kinds, validation
from ropeteam.local.api.meta import check_types
from ropeteam.local.api.patch import json_patch, merge
from ropeteam.local.api.store import Key, Store, copy_of, key_of
from ropeteam.local.api.validation import RequestOptions
from ropeteam.local.fielderrors import ErrorType, FieldError
from ropeteam.local.resources import Catalog, Object, Resource, StatusError, Undecodable, invalid_error

_SERVER_FIELDS = [
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "namespace",
    "name",
]


def timestamp(ahead: float = 0) -> str:
    """The time now, or `ahead` seconds later, in RFC 3339."""
    return (datetime.now(UTC) + timedelta(seconds=ahead)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Verbs:
    """The write verbs of the API. They raise StatusError for what a real server refuses."""

    def __init__(self, store: Store, catalog: Catalog, own_rules: dict[str, kinds.Rules]) -> None:
        """`own_rules`: rules of custom resources, by the name of the resource."""
        self.store, self.catalog, self._rules = store, catalog, own_rules
        self.allocate_address: Callable[[], str] = lambda: "None"
        """Returns a free address for a Service. The cluster sets it; until then Services are headless."""

    def create(self, resource: Resource, namespace: str, body: Object, options: RequestOptions) -> Object:
        """Create an object; `body` is not changed. Order, as on a real server: metadata, validation, then
        whether the name is taken."""
        new = copy_of(body)
        if new.get("metadata") is None:
            new["metadata"] = {}
        meta = new["metadata"]
        check_types(resource, meta)
        if meta.get("resourceVersion"):
            text = "resourceVersion should not be set on objects to be created"
            raise StatusError(500, "InternalError", text)
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + secrets.token_hex(3)[:5]
        self._set_namespace(resource, meta, namespace)
        validation.complete_and_check(resource, new, None, options, self._rules)
        key = key_of(new)
        if found := self.store.find(resource, key):
            message = f'{resource.name} "{key[1]}" already exists'
            if "deletionTimestamp" in found["metadata"]:
                message = f"object is being deleted: {message}"
            raise StatusError(
                409, "AlreadyExists", message, name=key[1], group=resource.group, kind=resource.plural
            )
        kinds.set_initial_fields(resource, new)
        if resource == r.SERVICES:
            self._allocate_service_address(resource, new)
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "managedFields"):
            meta.pop(name, None)
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp()}
        meta.pop("generation", None)
        if _has_generation(resource):
            meta["generation"] = 1
        if options.dry_run:
            return new
        if resource == r.CRDS:
            self.catalog.define(new)
        return self.store.put(resource, new)

    def _allocate_service_address(self, resource: Resource, new: Object) -> None:
        """Set the address of a Service in place: the requested one, or a free one. Raises 422 if the
        requested one is not free. `None` (headless) is always free."""
        spec = new["spec"]
        address = spec.get("clusterIP")
        used = {service["spec"].get("clusterIP") for service in self.store.list(r.SERVICES)} - {"None"}
        if address in used:
            why = f"failed to allocate IP {address}: provided IP is already allocated"
            error = FieldError.invalid("spec.clusterIPs", [address], why)
            raise resource.invalid_error(new["metadata"]["name"], [error])
        spec["clusterIP"] = address or self.allocate_address()
        spec["clusterIPs"] = [spec["clusterIP"]]

    def update(
        self, resource: Resource, key: Key, body: Object, options: RequestOptions
    ) -> tuple[Object, bool]:
        """Replace an object, or with the subresource its status; what the other has of the two is kept.
        Returns the object, and whether it is new: kinds in _CREATABLE_BY_PUT are created if they do not
        exist."""
        old = self.store.find(resource, key)
        new = copy_of(body)
        if new.get("metadata") is None:
            new["metadata"] = {}
        meta = new["metadata"]
        check_types(resource, meta)
        validation.check_name(resource, key, meta)
        if old is None and resource in _CREATABLE_BY_PUT and not options.subresource:
            return self.create(resource, key[0], new, options), True
        if old is None:
            raise resource.not_found_error(key[1])
        validation.check_update_preconditions(resource, old, meta)
        # What this request may not write is taken from the stored object; then the result is validated.
        if options.subresource == "status":
            new |= {name: part for name, part in copy_of(old).items() if name != "status"}
        else:
            for name in _SERVER_FIELDS:
                meta.pop(name, None)
            meta |= {name: old["metadata"][name] for name in _SERVER_FIELDS if name in old["metadata"]}
            meta.pop("managedFields", None)
            meta["resourceVersion"] = old["metadata"]["resourceVersion"]
            if resource.has_status:
                new.pop("status", None)
                new |= {"status": old["status"]} if "status" in old else {}
        validation.complete_and_check(resource, new, old, options, self._rules)
        return self._store_update(resource, old, new, options), False

    def patch(
        self, resource: Resource, key: Key, change: Any, content_type: str, options: RequestOptions
    ) -> tuple[Object, bool]:
        """Patch an object. `change`: from decode.parse_patch. Returns the object, and whether it is new
        (server-side apply only). Limit: server-side apply is a strategic merge; fields have no managers."""
        old = self.store.find(resource, key)
        if old is None and "apply-patch" in content_type and not options.subresource:
            change.setdefault("metadata", {}).setdefault("name", key[1])
            validation.check_name(resource, key, change["metadata"])
            return self.create(resource, key[0], change, options), True
        if old is None:
            raise resource.not_found_error(key[1])
        if "json-patch" in content_type:
            new = json_patch(copy_of(old), change)
        else:
            new = merge(old, change, strategic="strategic" in content_type or "apply-patch" in content_type)
        meta = new.get("metadata")
        if isinstance(meta, dict):
            if meta.get("uid") not in (None, old["metadata"]["uid"]):
                error = FieldError.invalid("metadata.uid", meta["uid"], "field is immutable")
                raise resource.invalid_error(key[1], [error])
            meta.setdefault("name", key[1])
            meta.setdefault("resourceVersion", old["metadata"]["resourceVersion"])
        try:
            return self.update(resource, key, new, options)
        except Undecodable as refused:
            error = FieldError("patch", ErrorType.INVALID, detail=refused.message)
            raise invalid_error("", "", "", [error]) from None

    def delete(
        self, resource: Resource, key: Key, options: Object, dry_run: bool = False
    ) -> tuple[Object, bool]:
        """Delete an object. `options`: DeleteOptions. Returns the object as it is now, and whether it is
        gone. One that has finalizers or a grace period, and a namespace, is marked only: `release` or the
        removal of its last finalizer ends it. A second deletion can only shorten the grace period."""
        old = self.store.get(resource, key)
        validation.check_delete_preconditions(resource, old, options.get("preconditions") or {})
        grace = _grace_seconds(resource, old, options)
        # Order: preconditions, the new object, dry run, orphaned dependents, then removal or marking.
        held = resource == r.NAMESPACES or grace or old["metadata"].get("finalizers")
        new = copy_of(old)
        if resource != r.NAMESPACES:
            new["metadata"]["deletionGracePeriodSeconds"] = grace
        if "deletionTimestamp" not in new["metadata"] and "generation" in new["metadata"]:
            new["metadata"]["generation"] += 1
        new["metadata"].setdefault("deletionTimestamp", timestamp(grace))
        if resource == r.NAMESPACES:
            new["status"] = {"phase": "Terminating"}
        if dry_run:
            return new, not held
        if options.get("propagationPolicy") == "Orphan" or options.get("orphanDependents"):
            self._remove_owner(old["metadata"]["uid"])
        if not held:
            if resource == r.PODS:
                self.store.put(resource, new)  # watches get the deletionTimestamp before the end
            return self.remove(resource, key), True
        known = old["metadata"].get("deletionGracePeriodSeconds", None)
        if "deletionTimestamp" in old["metadata"] and (known is None or known <= grace):
            return old, False
        new["metadata"]["deletionTimestamp"] = timestamp(grace)
        return self.store.put(resource, new), False

    def remove(self, resource: Resource, key: Key) -> Object:
        """Remove an object at once, even with finalizers. Returns its last state."""
        last = self.store.remove(resource, key)
        if resource == r.CRDS:
            self.catalog.forget(last)
        return last

    def release(self, resource: Resource, key: Key) -> None:
        """End the grace period of an object that is being deleted: the kubelet has no process of it any more,
        or a namespace is empty. It is removed, or with finalizers waits for those alone. Nothing if it is
        gone."""
        old = self.store.find(resource, key)
        if old and old["metadata"].get("finalizers"):
            new = copy_of(old)
            new["metadata"]["deletionGracePeriodSeconds"] = 0
            self.store.put(resource, new)
        elif old:
            self.remove(resource, key)

    def write_status(self, resource: Resource, key: Key, status: Object, spec: Object | None = None) -> None:
        """Replace the status, for the cluster itself: nothing is validated. `spec`: fields that the scheduler
        sets in spec. Nothing if nothing changes, or the object is gone."""
        old = self.store.find(resource, key)
        if old and (old.get("status") != status or spec):
            self.store.put(
                resource, copy_of(old | {"status": status, "spec": old.get("spec", {}) | (spec or {})})
            )

    def _set_namespace(self, resource: Resource, meta: Object, namespace: str) -> None:
        """Set the namespace of a new object in place; a cluster-scoped one has none. Raises 400 for another
        namespace than the URL's, 404 if it does not exist, 403 while it is being deleted."""
        if not resource.namespaced:
            meta.pop("namespace", None)
            return
        validation.check_namespace(meta, namespace)
        meta["namespace"] = namespace
        parent = self.store.get(r.NAMESPACES, ("", namespace))
        if "deletionTimestamp" in parent["metadata"]:
            text = f"unable to create new content in namespace {namespace} because it is being terminated"
            name = meta.get("name") or ""
            message = f'{resource.name} "{name}" is forbidden: {text}'
            causes = [
                {
                    "reason": "NamespaceTerminating",
                    "message": f"namespace {namespace} is being terminated",
                    "field": "metadata.namespace",
                }
            ]
            raise StatusError(
                403,
                "Forbidden",
                message,
                name=name,
                group=resource.group,
                kind=resource.plural,
                causes=causes,
            )

    def _store_update(self, resource: Resource, old: Object, new: Object, options: RequestOptions) -> Object:
        """Store a validated update, unless nothing has changed: then the resourceVersion stays. The removal
        of the last finalizer of a deleted object removes it instead."""
        if new == old:
            return new
        meta = new["metadata"]
        if _has_generation(resource) and _desired_state(new) != _desired_state(old):
            meta["generation"] = old["metadata"].get("generation", 1) + 1
        if options.dry_run:
            return new
        if resource == r.CRDS:
            self.catalog.define(new)
        ends = "deletionTimestamp" in meta and not meta.get("deletionGracePeriodSeconds")
        if ends and not meta.get("finalizers") and resource != r.NAMESPACES:
            self.remove(
                resource, key_of(new)
            )  # one event: no watch gets the write that removed the last finalizer
            return new
        return self.store.put(resource, new)

    def _remove_owner(self, uid: str) -> None:
        """Remove this owner from all of its dependents, so that they outlive it (propagation policy
        Orphan)."""
        for resource in tuple(self.catalog):
            for child in self.store.list(resource):
                owners = child["metadata"].get("ownerReferences", [])
                others = [owner for owner in owners if owner["uid"] != uid]
                if others != owners:
                    new = copy_of(child)
                    new["metadata"]["ownerReferences"] = others
                    self.store.put(resource, new)


_CREATABLE_BY_PUT = (r.SERVICES, r.EVENTS, r.LEASES)


def _has_generation(resource: Resource) -> bool:
    """Whether a server counts changes of spec for this kind. Of the built-in kinds only those that need it
    here."""
    return resource.schema is not None or resource in (r.PODS, r.CRDS)


def _grace_seconds(resource: Resource, old: Object, options: Object) -> int:
    """Grace period in seconds, at least 1, of a pod that runs on a node. 0: the object is removed at once, as
    others are, and a pod for which the client requests 0."""
    if (
        resource != r.PODS
        or not old["spec"].get("nodeName")
        or old["status"].get("phase") in ("Succeeded", "Failed")
    ):
        return 0
    wanted = options.get("gracePeriodSeconds")
    grace = old["spec"].get("terminationGracePeriodSeconds", 30) if wanted is None else wanted
    return max(1, grace) if grace else 0


def _desired_state(value: Object) -> Object:
    """The part of an object whose changes increase its generation."""
    return {name: part for name, part in value.items() if name not in ("metadata", "status")}
