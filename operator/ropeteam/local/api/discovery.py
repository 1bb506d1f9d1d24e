"""Discovery: groups, resources, and as much OpenAPI as kubectl requests. No I/O."""

from __future__ import annotations

from ropeteam.local.resources import NAMESPACES, Catalog, Object, Resource, path_not_found_error

_VERSION = {"major": "1", "minor": "32", "gitVersion": "v1.32.0+ropeteam", "platform": "linux/amd64"}
_VERBS_OF_A_CRD = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def document(catalog: Catalog, parts: list[str]) -> Object | None:
    """The discovery document at a path. `parts`: of the path. None: the path is no discovery path. Raises 404
    for a group or version that is not served."""
    match parts:
        case []:
            return {"paths": ["/api", "/apis", "/healthz", "/openapi/v3", "/version"]}
        case ["version"]:
            return _VERSION
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            groups = sorted({resource.group for resource in catalog if resource.group})
            listed = [_group_entry(catalog, group) for group in groups]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        case ["apis", group]:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group_entry(catalog, group)}
        case ["api", version]:
            return _resource_list(catalog, "", version)
        case ["apis", group, version]:
            return _resource_list(catalog, group, version)
        case ["openapi", "v3", *rest]:
            return _openapi_document(catalog, rest)
        case _:
            return None


def _group_entry(catalog: Catalog, group: str) -> Object:
    """A group and its versions. Raises 404 if it is not served."""
    versions = {resource.version: resource.api_version for resource in catalog if resource.group == group}
    if not versions:
        raise path_not_found_error()
    listed = [{"groupVersion": full, "version": version} for version, full in versions.items()]
    return {"name": group, "versions": listed, "preferredVersion": listed[0]}


def _resources_of(catalog: Catalog, group: str, version: str) -> list[Resource]:
    """Resources of a group version, at least one. Raises 404 if there is none."""
    found = [resource for resource in catalog if (resource.group, resource.version) == (group, version)]
    if not found:
        raise path_not_found_error()
    return found


def _resource_list(catalog: Catalog, group: str, version: str) -> Object:
    """The APIResourceList of a group version: each resource, and its subresources. Raises 404."""
    rows: list[Object] = []
    for resource in _resources_of(catalog, group, version):
        base = {"kind": resource.kind, "namespaced": resource.namespaced}
        verbs = _VERBS_OF_A_CRD if resource.schema else _VERBS
        verbs = [verb for verb in verbs if resource != NAMESPACES or verb != "deletecollection"]
        names = {"name": resource.plural, "singularName": resource.kind.lower(), "verbs": verbs}
        more = {"shortNames": list(resource.short), "categories": list(resource.categories)}
        rows.append({**base, **names, **{name: values for name, values in more.items() if values}})
        below = ["status"] if resource.has_status else []
        for name in [*below, "log"] if resource.plural == "pods" else below:
            verbs = ["get", "patch", "update"] if name == "status" else ["get"]
            rows.append({**base, "name": f"{resource.plural}/{name}", "singularName": "", "verbs": verbs})
    full = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": full, "resources": rows}


def _openapi_document(catalog: Catalog, rest: list[str]) -> Object:
    """The index of OpenAPI v3, or the document of one group version: schemas, and the operations get and
    patch of each resource. That is enough for `kubectl explain` and for kubectl to find out that the server
    validates fields and supports dry runs. `rest`: the path below openapi/v3; empty for the index. Raises
    404."""
    if not rest:
        names = {(f"apis/{x.api_version}" if x.group else f"api/{x.version}") for x in catalog}
        return {"paths": {name: {"serverRelativeURL": f"/openapi/v3/{name}"} for name in sorted(names)}}
    paths: Object = {}
    schemas: Object = {}
    for resource in _resources_of(catalog, rest[1] if rest[0] == "apis" else "", rest[-1]):
        kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        name = ".".join([*reversed(resource.group.split(".")), resource.version, resource.kind]).strip(".")
        schema = resource.schema or {"type": "object", "description": "Not described by the local cluster."}
        schemas[name] = {**schema, "x-kubernetes-group-version-kind": [kind]}
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
        answer = {"responses": {"200": {"description": "OK", "content": content}}}
        operation = {**answer, "x-kubernetes-group-version-kind": kind}
        parameters = [
            {"name": n, "in": "query", "schema": {"type": "string"}} for n in ("fieldValidation", "dryRun")
        ]
        scope = "namespaces/{namespace}/" if resource.namespaced else ""
        base = f"/{'/'.join(rest)}/{scope}{resource.plural}/{{name}}"
        paths[base] = {
            "get": {**operation, "x-kubernetes-action": "get"},
            "patch": {**operation, "x-kubernetes-action": "patch", "parameters": parameters},
        }
    info = {"title": "ropeteam local cluster", "version": _VERSION["gitVersion"]}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}}
