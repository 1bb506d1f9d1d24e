"""Lists for clients: pages, tables, metadata only. No I/O.

Limits: only the newest state is kept, so a later page includes changes since the first one.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

import orjson

from ropeteam.local.api import decode, tables
from ropeteam.local.api.store import key_of
from ropeteam.local.resources import Object, Resource, StatusError

_META = "meta.k8s.io/v1"


def list_page(resource: Resource, items: list[Object], query: Mapping[str, str], revision: int) -> Object:
    """A List of one page, or of all items. `items`: those that the request selects, in the store's order.
    `query`: its options, `limit` and `continue` among them. `revision`: of the store. Raises StatusError for
    invalid options."""
    decode.check_list_options(query, watches=False)
    version, token = query.get("resourceVersion", ""), query.get("continue", "")
    if token and version not in ("", "0"):
        text = "specifying resource version is not allowed when using continue"
        raise StatusError(400, "BadRequest", text)
    if version:
        decode.parse_revision(version, revision)
    meta: Object = {"resourceVersion": str(revision)}
    if token:
        page = _parse_continue_token(token)
        meta["resourceVersion"] = page["revision"]
        items = [item for item in items if list(key_of(item)) > page["after"]]
    limit = decode.parse_integer(query.get("limit") or "0")
    # From its cache a real server answers "any version" with everything.
    if 0 < limit < len(items) and version != "0":
        if not (query.get("labelSelector") or query.get("fieldSelector")):
            meta["remainingItemCount"] = len(items) - limit
        items = items[:limit]
        page = {"revision": meta["resourceVersion"], "after": key_of(items[-1])}
        meta["continue"] = base64.urlsafe_b64encode(orjson.dumps(page)).decode()
    return list_object(resource, items, meta)


def _parse_continue_token(token: str) -> Object:
    """The page that a continue token names: `revision` of the first page, and the key of the last item before
    this page, `after`. Raises 400."""
    try:
        page: Object = orjson.loads(base64.urlsafe_b64decode(token))
        if not {"revision", "after"} <= page.keys():
            raise ValueError("it is of another server")
    except (ValueError, binascii.Error) as error:
        text = f"invalid continue token: continue key is not valid: {error}"
        raise StatusError(400, "BadRequest", text) from None
    return page


def list_object(resource: Resource, items: list[Object], meta: Object) -> Object:
    """A List object. As on a real server, items of a built-in kind have no kind and apiVersion, and the
    metadata of a list of custom resources has `continue` even if it is empty."""
    if not resource.schema:
        items = [{k: v for k, v in item.items() if k not in ("kind", "apiVersion")} for item in items]
    else:
        meta = {"continue": "", **meta}
    api = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
    return {**api, "metadata": meta, "items": items}


def in_requested_form(accept: str, include: str, resource: Resource, plain: Object) -> Object:
    """An object or a List in the representation that the client requested: a Table, metadata only, or as it
    is. `accept`: the header. `include`: includeObject, the part of the object in each row of a table. Raises
    400 for an invalid one."""
    items = plain.get("items", [plain])
    if "as=Table" in accept:
        if include not in ("", "None", "Metadata", "Object"):
            why = f"Invalid value: \"{include}\": must be 'Metadata', 'Object', 'None', or empty"
            raise StatusError(
                400, "BadRequest", f"Unable to convert to Table as requested: includeObject: {why}"
            )
        return tables.table(resource, items, plain["metadata"], include or "Metadata")
    if "as=PartialObjectMetadataList" in accept and "items" in plain:
        api = {"kind": "PartialObjectMetadataList", "apiVersion": _META}
        meta = {name: value for name, value in plain["metadata"].items() if value}
        return {**api, "metadata": meta, "items": [_partial_metadata(item) for item in items]}
    if "as=PartialObjectMetadata" in accept and "items" not in plain:
        return {"kind": "PartialObjectMetadata", "apiVersion": _META, "metadata": plain["metadata"]}
    return plain


def _partial_metadata(item: Object) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": _META, "metadata": item["metadata"]}
