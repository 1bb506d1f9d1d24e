"""Whether an object may be written: schema, metadata, rules, resourceVersion. Pure.

An object is passed as the client sent it; it is pruned and defaulted in place before it is validated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ropeteam.api.schema.walker import Problem, differences
from ropeteam.local.api import kinds, meta, rules, schema
from ropeteam.local.api.store import Key
from ropeteam.local.fielderrors import FieldError
from ropeteam.local.resources import Object, Resource, StatusError, invalid

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


def check(
    resource: Resource,
    new: Object,
    old: Object | None,
    options: RequestOptions,
    own_rules: Mapping[str, kinds.Rules],
) -> None:
    """Prune, default and validate in place. `own_rules`: rules of kinds of a CRD, by the kind's name."""
    name, shape = new["metadata"].get("name") or "", resource.schema or kinds.SCHEMAS.get(resource.name)
    if resource.schema and new.get("kind", resource.kind) != resource.kind:
        error = FieldError.invalid("kind", new["kind"], f"must be {resource.kind}")
        raise invalid(new["kind"], resource.group, name, [error])
    new["apiVersion"], new["kind"] = resource.api_version, resource.kind
    _complete(resource, new, shape, options)
    errors = list(meta.field_errors(resource, new["metadata"]))
    if old and "deletionTimestamp" in old["metadata"]:
        errors += _new_finalizers(new["metadata"], old["metadata"])
    if not resource.schema:
        kinds.before_write(resource, new, old)
        errors += rules.field_errors(resource, new, old)
    elif options.subresource == "status":
        part = resource.schema.get("properties", {}).get("status", {})
        given = schema.field_errors(new["status"], part) if "status" in new else ()
        errors += _with_note([error.below("status") for error in given])
    else:
        errors = _with_note([*errors, *schema.field_errors(new, resource.schema)])
        if _NOT_CHECKED not in errors and resource.name in own_rules:
            errors += own_rules[resource.name](new, old)
    if errors:
        raise resource.invalid(name, errors)


def _with_note(errors: list[FieldError]) -> list[FieldError]:
    """`errors`, with a note if some of them prevent the evaluation of rules."""
    return [*errors, _NOT_CHECKED] if any(error.blocks_rules for error in errors) else errors


def _complete(resource: Resource, new: Object, shape: Object | None, options: RequestOptions) -> None:
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
        raise resource.undecodable(f"strict decoding error: {', '.join(warnings)}")
    options.warnings += warnings


def _refuse_undecodable(resource: Resource, new: Object, shape: Object) -> None:
    """Raise 400 for a value of a wrong type: then the body is no object of a built-in kind."""
    for fault in differences(shape, new, whole_floats=True):
        if fault.problem is Problem.TYPE:
            raise meta.mistyped(resource, fault.value, fault.path, schema.type_of(fault.schema))
    for text in rules.undecodable(resource, new):
        raise resource.undecodable(text)


def _new_finalizers(new: Object, old: Object) -> Iterator[FieldError]:
    added = [each for each in new.get("finalizers") or () if each not in (old.get("finalizers") or ())]
    if added:
        names = ", ".join(f'"{each}"' for each in added)
        text = "no new finalizers can be added if the object is being deleted, found new finalizers []string"
        yield FieldError.forbidden("metadata.finalizers", f"{text}{{{names}}}")


def check_name(resource: Resource, key: Key, meta: Object) -> None:
    name = meta.setdefault("name", key[1]) or key[1]
    if name != key[1]:
        text = f"the name of the object ({name}) does not match the name on the URL ({key[1]})"
        raise StatusError(400, "BadRequest", text)
    if resource.namespaced:
        check_namespace(meta, key[0])


def check_namespace(meta: Object, namespace: str) -> None:
    if (meta.get("namespace") or namespace) != namespace:
        text = "the namespace of the provided object does not match the namespace sent on the request"
        raise StatusError(400, "BadRequest", text)


def check_version(resource: Resource, old: Object, meta: Object) -> None:
    name, wanted = old["metadata"]["name"], meta.get("resourceVersion")
    if wanted in (None, "", "0"):
        if resource.schema:
            error = FieldError.invalid("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(resource.plural, resource.group, name, [error])
    elif wanted != old["metadata"]["resourceVersion"]:
        why = "the object has been modified; please apply your changes to the latest version and try again"
        raise resource.conflict(name, why)
    uid = old["metadata"]["uid"]
    if (meta.get("uid") or uid) != uid:
        why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {uid}"
        raise resource.conflict(name, why)


def check_preconditions(resource: Resource, old: Object, wanted: Object) -> None:
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
            message = f'Operation cannot be fulfilled on {resource.qualified_kind} "{name}": {why}'
            raise StatusError(409, "Conflict", message, name=name, group=resource.group, kind=resource.kind)
