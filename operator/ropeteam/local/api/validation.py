"""Whether an object may be written: schema, metadata, rules, resourceVersion. No I/O.

An object is passed as the client sent it; it is pruned and defaulted in place before it is validated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ropeteam.api.schema.walker import Problem, differences
from ropeteam.local.api import kinds, meta, rules, schema
from ropeteam.local.api.store import Key
from ropeteam.local.fielderrors import FieldError
from ropeteam.local.resources import Object, Resource, StatusError, invalid_error

_NOT_CHECKED = FieldError.invalid(
    "<nil>",
    None,
    "some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation",
)
_METADATA: Object = {"properties": dict.fromkeys(meta.FIELDS, kinds.ANY)}
_TYPE_META: Object = {"apiVersion": kinds.ANY, "kind": kinds.ANY, "metadata": _METADATA}


@dataclass
class RequestOptions:
    """Options of one request."""

    dry_run: bool = False
    field_validation: str = "Warn"
    subresource: str = ""
    warnings: list[str] = field(default_factory=list)
    """Filled while the request is carried out, for the Warning header."""


def complete_and_check(
    resource: Resource,
    new: Object,
    old: Object | None,
    options: RequestOptions,
    own_rules: Mapping[str, kinds.Rules],
) -> None:
    """Complete `new` in place (apiVersion, kind, pruning, defaults), then validate it. `new`: as the client
    sent it, with metadata whose types are right. `old`: None at a create. `own_rules`: rules of custom
    resources, by the name of the resource. Raises StatusError: 400 for undecodable objects, 422 with all
    errors for invalid ones."""
    name, shape = new["metadata"].get("name") or "", resource.schema or kinds.SCHEMAS.get(resource.name)
    if resource.schema and new.get("kind", resource.kind) != resource.kind:
        error = FieldError.invalid("kind", new["kind"], f"must be {resource.kind}")
        raise invalid_error(new["kind"], resource.group, name, [error])
    # As on a real server: a write of status validates nothing else; CEL rules run on a valid object only.
    new["apiVersion"], new["kind"] = resource.api_version, resource.kind
    _prune_and_default(resource, new, shape, options)
    errors = list(meta.field_errors(resource, new["metadata"]))
    if old and "deletionTimestamp" in old["metadata"]:
        errors += _new_finalizer_errors(new["metadata"], old["metadata"])
    if not resource.schema:
        kinds.set_server_fields(resource, new, old)
        errors += rules.field_errors(resource, new, old)
    elif options.subresource == "status":
        part = resource.schema.get("properties", {}).get("status", {})
        given = schema.field_errors(new["status"], part) if "status" in new else ()
        errors += _with_unchecked_rules_note([error.within("status") for error in given])
    else:
        errors = _with_unchecked_rules_note([*errors, *schema.field_errors(new, resource.schema)])
        if _NOT_CHECKED not in errors and resource.name in own_rules:
            errors += own_rules[resource.name](new, old)
    if errors:
        raise resource.invalid_error(name, errors)


def _with_unchecked_rules_note(errors: list[FieldError]) -> list[FieldError]:
    """`errors`, with _NOT_CHECKED appended if one of them prevents the evaluation of CEL rules."""
    return [*errors, _NOT_CHECKED] if any(error.blocks_rules for error in errors) else errors


def _prune_and_default(
    resource: Resource, new: Object, shape: Object | None, options: RequestOptions
) -> None:
    """Remove unknown fields and set defaults, in place. `shape`: the schema, None for a kind without one.
    Unknown fields are added to the warnings; with fieldValidation Strict they raise 400. An undecodable
    object raises 400."""
    known = (shape or kinds.ANY) | {"properties": (shape or {}).get("properties", {}) | _TYPE_META}
    unknown = schema.prune(new, known)
    if shape:
        schema.set_defaults(new, shape)
    if shape and not resource.schema:
        _refuse_undecodable(resource, new, shape)
    if not unknown or options.field_validation == "Ignore":
        return
    warnings = [f'unknown field "{path}"' for path in sorted(unknown)]
    if options.field_validation == "Strict":
        raise resource.undecodable_error(f"strict decoding error: {', '.join(warnings)}")
    options.warnings += warnings


def _refuse_undecodable(resource: Resource, new: Object, shape: Object) -> None:
    """Raise 400 for a value that cannot be decoded into its type. Only for built-in kinds: a server decodes
    them into Go structs, and custom resources into maps, whose types it validates later (422)."""
    for fault in differences(shape, new, whole_floats=True):
        if fault.problem is Problem.TYPE:
            raise meta.wrong_type_error(resource, fault.value, fault.path, schema.type_name(fault.schema))
    for text in rules.decoding_errors(resource, new):
        raise resource.undecodable_error(text)


def _new_finalizer_errors(new: Object, old: Object) -> Iterator[FieldError]:
    """An error if an object that is being deleted gets a new finalizer. `new`, `old`: metadata."""
    added = [each for each in new.get("finalizers") or () if each not in (old.get("finalizers") or ())]
    if added:
        names = ", ".join(f'"{each}"' for each in added)
        text = "no new finalizers can be added if the object is being deleted, found new finalizers []string"
        yield FieldError.forbidden("metadata.finalizers", f"{text}{{{names}}}")


def check_name(resource: Resource, key: Key, meta: Object) -> None:
    """Raise 400 if name or namespace in the metadata differ from the URL's, `key`. Sets a missing name in
    place."""
    name = meta.setdefault("name", key[1]) or key[1]
    if name != key[1]:
        text = f"the name of the object ({name}) does not match the name on the URL ({key[1]})"
        raise StatusError(400, "BadRequest", text)
    if resource.namespaced:
        check_namespace(meta, key[0])


def check_namespace(meta: Object, namespace: str) -> None:
    """Raise 400 if the metadata has another namespace."""
    if (meta.get("namespace") or namespace) != namespace:
        text = "the namespace of the provided object does not match the namespace sent on the request"
        raise StatusError(400, "BadRequest", text)


def check_update_preconditions(resource: Resource, old: Object, meta: Object) -> None:
    """Raise 409 if resourceVersion or uid in the new metadata differ from the stored object's; 422 for a
    custom resource without a resourceVersion."""
    name, wanted = old["metadata"]["name"], meta.get("resourceVersion")
    if wanted in (None, "", "0"):
        if resource.schema:
            error = FieldError.invalid("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid_error(resource.plural, resource.group, name, [error])
    elif wanted != old["metadata"]["resourceVersion"]:
        why = "the object has been modified; please apply your changes to the latest version and try again"
        raise resource.conflict_error(name, why)
    uid = old["metadata"]["uid"]
    if (meta.get("uid") or uid) != uid:
        why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {uid}"
        raise resource.conflict_error(name, why)


def check_delete_preconditions(resource: Resource, old: Object, wanted: Object) -> None:
    """Raise 409 if the stored object has another uid or resourceVersion than `wanted`, the preconditions of
    DeleteOptions."""
    for field_name, label, event in (
        ("uid", "UID", "deleted and then recreated"),
        ("resourceVersion", "ResourceVersion", "modified"),
    ):
        have = old["metadata"][field_name]
        if wanted.get(field_name, have) != have:
            why = (
                f"the {label} in the precondition ({wanted[field_name]}) does not match the {label} in "
                f"record ({have}). The object might have been {event}"
            )
            name = old["metadata"]["name"]
            # a real server names the kind here, and the plural for updates: so no resource.conflict_error()
            message = f'Operation cannot be fulfilled on {resource.qualified_kind} "{name}": {why}'
            raise StatusError(409, "Conflict", message, name=name, group=resource.group, kind=resource.kind)
