"""Parses and checks requests: bodies by content type, options, resourceVersions. No I/O.

A request that a real server refuses is refused here, with the same status and reason; the messages of parsers
are those of the parsers used here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson
import yaml

from ropeteam.local.fielderrors import FieldError
from ropeteam.local.resources import Object, Resource, StatusError, invalid_error

JSON_PATCH, MERGE = "application/json-patch+json", "application/merge-patch+json"
APPLY, STRATEGIC = "application/apply-patch+yaml", "application/strategic-merge-patch+json"
_CONTENT_TYPES = {"", "application/json", "application/yaml", "application/octet-stream"}
_POLICIES = ("Foreground", "Background", "Orphan")
_OPTIONS = {
    "POST": "CreateOptions",
    "PUT": "UpdateOptions",
    "PATCH": "PatchOptions",
    "DELETE": "DeleteOptions",
}


def not_allowed_error() -> StatusError:
    """405: the resource has no such verb."""
    text = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", text)


def parse_manifest(resource: Resource, content: str, raw: bytes) -> Object:
    """The object in the body of a create or update. `content`: the content type. Raises StatusError: 415 for
    another content type, 400 for a body that is no object of this kind."""
    if "protobuf" in content:  # kubectl create configmap, secret, namespace ...
        text = (
            "the local cluster does not support protobuf, which `kubectl create KIND` sends; write a "
            "manifest and apply that: add `--dry-run=client -o yaml | kubectl apply -f -`"
        )
        raise StatusError(415, "UnsupportedMediaType", text)
    if content not in _CONTENT_TYPES:
        raise _unknown_format_error("application/json, application/yaml, application/vnd.kubernetes.protobuf")
    refused = f"the object provided is unrecognized (must be of type {resource.kind})"
    shown = raw.decode(errors="replace")[:25] or "<empty>"
    try:
        body = yaml.safe_load(raw) if content == "application/yaml" else json.loads(raw)
    except (ValueError, OverflowError, yaml.YAMLError) as error:
        text = f"{refused}: couldn't get version/kind; json parse error: {error} ({shown})"
        raise StatusError(400, "BadRequest", text) from None
    if body is None and not resource.schema:
        body = {}
    if not isinstance(body, dict):
        text = f"{refused}: couldn't get version/kind; json parse error: it is no object ({shown})"
        raise StatusError(400, "BadRequest", text)
    _check_kind(resource, body, refused, shown)
    return body


def _check_kind(resource: Resource, body: Object, refused: str, shown: str) -> None:
    """Raise 400 for a body of another kind or version. A custom resource must set kind; another kind of one
    is reported later (validation.py), as a real server does. `refused`, `shown`: parts of the message."""
    kind, version = body.get("kind"), body.get("apiVersion")
    if resource.schema:
        if not kind:
            raise StatusError(
                400, "BadRequest", f"{refused}: Object 'Kind' is missing in '{shown}' ({shown})"
            )
        if (version or resource.api_version) != resource.api_version:
            text = f"the API version in the data ({version}) does not match the expected API version"
            raise StatusError(400, "BadRequest", f"{text} ({resource.api_version})")
    elif (kind or resource.kind) != resource.kind or (
        version or resource.api_version
    ) != resource.api_version:
        text = f'{kind} in version "{version}" cannot be handled as a {resource.kind}: it is of another kind'
        raise StatusError(400, "BadRequest", text)


def parse_patch(resource: Resource, content: str, query: Mapping[str, str], raw: bytes) -> Any:
    """The patch in a body: a list for JSON patch, else an object. `content`: the content type. Raises
    StatusError: 415 for a content type that the resource does not support, 400 for a malformed body, 422 for
    server-side apply without a field manager."""
    known = {JSON_PATCH, MERGE, APPLY} | (set() if resource.schema else {STRATEGIC})
    if content not in known | {STRATEGIC} and not resource.schema:
        raise StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type")
    if content not in known:
        raise _unknown_format_error(", ".join((JSON_PATCH, MERGE, APPLY)))
    if content == APPLY and not query.get("fieldManager"):
        error = FieldError.required("fieldManager", "is required for apply patch")
        raise invalid_error("PatchOptions", "meta.k8s.io", "", [error])
    try:
        body = yaml.safe_load(raw) if content == APPLY else json.loads(raw)
    except (ValueError, OverflowError, yaml.YAMLError) as error:
        raise StatusError(400, "BadRequest", f"error decoding patch: {error}") from None
    wanted, type_name = (list, "array") if content == JSON_PATCH else (dict, "object")
    if not isinstance(body, wanted):
        raise StatusError(400, "BadRequest", f"error decoding patch: it is no {type_name}")
    if isinstance(body, dict) and content == APPLY and not (body.get("kind") and body.get("apiVersion")):
        text = f"invalid object type: {body.get('apiVersion', '/')}, Kind={body.get('kind', '')}"
        raise StatusError(400, "BadRequest", text)
    return body


def _unknown_format_error(known: str) -> StatusError:
    text = f"the body of the request was in an unknown format - accepted media types include: {known}"
    return StatusError(415, "UnsupportedMediaType", text)


def parse_delete_options(query: Mapping[str, str], raw: bytes) -> Object:
    """DeleteOptions from the body, or from the query if there is no body, as on a real server. Raises
    StatusError: 400 for a malformed body, 422 for invalid options."""
    try:
        options = orjson.loads(raw) if raw else {}
    except ValueError as error:
        text = f"couldn't get version/kind; json parse error: {error}"
        raise StatusError(400, "BadRequest", text) from None
    if options.get("kind", "DeleteOptions") != "DeleteOptions":
        text = f'no kind "{options["kind"]}" is registered for version "{options.get("apiVersion")}"'
        raise StatusError(400, "BadRequest", text)
    if not raw:
        if "gracePeriodSeconds" in query:
            options["gracePeriodSeconds"] = parse_integer(query["gracePeriodSeconds"])
        if "propagationPolicy" in query:
            options["propagationPolicy"] = query["propagationPolicy"]
        if "dryRun" in query:
            options["dryRun"] = [query["dryRun"]]
    policy, orphan = options.get("propagationPolicy"), options.get("orphanDependents")
    errors = _dry_run_errors(options.get("dryRun") or [])
    if policy is not None and orphan is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        errors.insert(0, FieldError.invalid("propagationPolicy", policy, why))
    elif policy is not None and policy not in _POLICIES:
        errors.insert(0, FieldError.not_supported("propagationPolicy", policy, (*_POLICIES, "nil")))
    if errors:
        raise invalid_error("DeleteOptions", "meta.k8s.io", "", errors)
    return options


def check_write_options(method: str, query: Mapping[str, str]) -> None:
    """Raise 422 for invalid options of a create, update or patch."""
    errors = _dry_run_errors([query["dryRun"]] if "dryRun" in query else [])
    validation, known = query.get("fieldValidation", ""), ("", "Ignore", "Strict", "Warn")
    if validation not in known:
        errors.append(FieldError.not_supported("fieldValidation", validation, known))
    if errors:
        raise invalid_error(_OPTIONS[method], "meta.k8s.io", "", errors)


def _dry_run_errors(given: list[str]) -> list[FieldError]:
    return [] if set(given) <= {"All"} else [FieldError.not_supported("dryRun", given, ["All"])]


def parse_integer(text: str) -> int:
    """The integer in a query parameter. Raises 400."""
    try:
        return int(text)
    except ValueError:
        why = f'strconv.ParseInt: parsing "{text}": invalid syntax'
        raise StatusError(400, "BadRequest", why) from None


def invalid_revision_error(text: str) -> FieldError:
    """Error of a resourceVersion that is no number, as Go reports it."""
    why = f'strconv.ParseUint: parsing "{text}": invalid syntax'
    return FieldError.invalid("resourceVersion", text, why)


def parse_revision(text: str, newest: int) -> int:
    """The resourceVersion to read at. `newest`: that of the store. Raises StatusError: 400 for an invalid
    one, 504 for one that is newer than the newest."""
    if not text.isdigit():
        raise StatusError(400, "BadRequest", f"invalid resource version: {invalid_revision_error(text)}")
    if int(text) > newest:
        why = f"Too large resource version: {text}, current: {newest}"
        causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
        raise StatusError(504, "Timeout", f"Timeout: {why}", causes=causes, retryAfterSeconds=1)
    return int(text)


def check_list_options(query: Mapping[str, str], watches: bool) -> None:
    """Raise 422 for options of a list, or with `watches` of a watch, that contradict each other:
    resourceVersionMatch, resourceVersion, sendInitialEvents."""
    match, version = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
    initial, here = query.get("sendInitialEvents"), "resourceVersionMatch"
    errors: list[FieldError] = []
    if watches and initial and not match:
        why = f"sendInitialEvents requires setting {here} to NotOlderThan"
        errors = [FieldError.forbidden(here, why)]
    elif watches and match and not initial:
        why = f"{here} is forbidden for watch unless sendInitialEvents is provided"
        errors = [FieldError.forbidden(here, why)]
    elif initial and not watches:
        errors = [FieldError.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")]
    elif match and not watches:
        if not version:
            errors = [FieldError.forbidden(here, f"{here} is forbidden unless resourceVersion is provided")]
        if match not in ("Exact", "NotOlderThan"):
            errors += [FieldError.not_supported(here, match, ("Exact", "NotOlderThan", ""))]
        elif match == "Exact" and version == "0":
            errors = [FieldError.forbidden(here, f'{here} "exact" is forbidden for resourceVersion "0"')]
    if errors:
        raise invalid_error("ListOptions", "meta.k8s.io", "", errors)
