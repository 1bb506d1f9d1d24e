"""What the API server knows about single kinds: defaults, rules, and the shape of a pod."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from typing import Any

from ropeteam.local import resources as r
from ropeteam.local.resources import Object, Resource
from ropeteam.local.schema import Schema

Rules = Callable[[Object, Object | None], list[str]]
"""The twins of a kind's CEL rules: (new, old) to faults as `path: Invalid value: ...`."""

ANY: Schema = {"x-kubernetes-preserve-unknown-fields": True}
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}


def _object(*required: str, free: str = "", **known: Schema) -> Schema:
    """`free`: names of fields that are accepted as they are."""
    properties = dict.fromkeys(free.split(), ANY) | known
    return {"type": "object", "required": list(required), "properties": properties}


def _list(item: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": item, **more}


_ENV = _object("name", name={"type": "string", "minLength": 1}, value=TEXT, valueFrom=ANY)
_MOUNT = _object(
    "name", "mountPath", name=TEXT, mountPath={"type": "string", "minLength": 1}, subPath=TEXT, readOnly=FLAG
) | {"x-kubernetes-preserve-unknown-fields": True}
_CONTAINER = _object(
    "name",
    "image",
    name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"},
    image={"type": "string", "minLength": 1},
    command=_list(TEXT),
    args=_list(TEXT),
    workingDir=TEXT,
    env=_list(_ENV),
    volumeMounts=_list(_MOUNT),
    free="envFrom ports resources livenessProbe readinessProbe startupProbe lifecycle securityContext stdin"
    " stdinOnce tty terminationMessagePath terminationMessagePolicy imagePullPolicy volumeDevices"
    " restartPolicy restartPolicyRules resizePolicy",
)
_VOLUME = _object("name", name=TEXT) | {"x-kubernetes-preserve-unknown-fields": True}
_POD_SPEC = _object(
    "containers",
    containers=_list(_CONTAINER, minItems=1),
    initContainers=_list(_CONTAINER),
    volumes=_list(_VOLUME),
    restartPolicy={"type": "string", "enum": ["Always", "OnFailure", "Never"], "default": "Always"},
    terminationGracePeriodSeconds={"type": "integer", "default": 30, "minimum": 0},
    nodeName=TEXT,
    schedulerName={"type": "string", "default": "default-scheduler"},
    free="activeDeadlineSeconds affinity automountServiceAccountToken dnsConfig dnsPolicy enableServiceLinks"
    " ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers hostname imagePullSecrets"
    " nodeSelector os overhead preemptionPolicy priority priorityClassName readinessGates resourceClaims"
    " resources runtimeClassName schedulingGates securityContext serviceAccount serviceAccountName"
    " setHostnameAsFQDN shareProcessNamespace subdomain tolerations topologySpreadConstraints workloadRef",
)
_PORT = _object(
    "port",
    port={"type": "integer", "minimum": 1, "maximum": 65535},
    targetPort={"x-kubernetes-int-or-string": True},
    protocol={"type": "string", "enum": ["TCP", "UDP", "SCTP"], "default": "TCP"},
    free="name nodePort appProtocol",
)
_SERVICE_SPEC = _object(
    ports=_list(_PORT),
    type={"type": "string", "default": "ClusterIP"},
    selector={"type": "object", "additionalProperties": TEXT},
) | {"x-kubernetes-preserve-unknown-fields": True}

SCHEMAS: dict[str, Schema] = {
    r.PODS.name: _object("spec", spec=_POD_SPEC, status=ANY),
    r.SERVICES.name: _object("spec", spec=_SERVICE_SPEC, status=ANY),
    r.SECRETS.name: _object(
        data={"type": "object", "additionalProperties": TEXT},
        stringData={"type": "object", "additionalProperties": TEXT},
        type={"type": "string", "default": "Opaque"},
        immutable=FLAG,
    ),
    r.CONFIG_MAPS.name: _object(
        data={"type": "object", "additionalProperties": TEXT}, binaryData=ANY, immutable=FLAG
    ),
}


def at_birth(resource: Resource, value: Object) -> None:
    """The status with which an object starts, and what the server fills in once. In place."""
    if resource == r.PODS:
        value["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
    elif resource == r.NAMESPACES:
        value["status"] = {"phase": "Active"}
    elif resource == r.CLAIMS:
        spec = value.setdefault("spec", {})
        capacity = spec.get("resources", {}).get("requests", {})
        value["status"] = {
            "phase": "Bound",
            "accessModes": spec.get("accessModes", []),
            "capacity": capacity,
        }
    elif resource == r.CRDS:
        names = value["spec"]["names"]
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", names["kind"] + "List")
        value["status"] = {
            "acceptedNames": names,
            "storedVersions": [v["name"] for v in value["spec"]["versions"]],
            "conditions": [
                {"type": kind, "status": "True", "reason": "Accepted"}
                for kind in ("NamesAccepted", "Established")
            ],
        }
    elif resource.has_status:
        value.pop("status", None)


def before_write(resource: Resource, value: Object) -> None:
    """What the server rewrites on each write. In place."""
    if resource == r.SECRETS:
        for name, text in value.pop("stringData", {}).items():
            value.setdefault("data", {})[name] = base64.b64encode(text.encode()).decode()
    if resource == r.SERVICES:
        for port in value["spec"].get("ports", ()):
            port.setdefault("targetPort", port["port"])


def rule_faults(resource: Resource, new: Object, old: Object | None) -> Iterator[str]:
    """Rules between fields, and between an object and what it was."""
    if resource == r.PODS:
        yield from _pod_faults(new["spec"])
        if old and _fixed(new["spec"]) != _fixed(old["spec"]):
            yield "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`"
    if old and old.get("immutable") and new.get("data") != old.get("data"):
        yield "data: Forbidden: field is immutable when `immutable` is set"
    if old and resource == r.SERVICES and new["spec"].get("clusterIP") != old["spec"].get("clusterIP"):
        yield f'spec.clusterIP: Invalid value: "{new["spec"].get("clusterIP")}": field is immutable'


def name_fault(resource: Resource, name: str) -> str | None:
    label = resource in (r.SERVICES, r.NAMESPACES)
    part = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    pattern = part if label else rf"{part}(\.{part})*"
    if re.fullmatch(pattern, name) and len(name) <= (63 if label else 253):
        return None
    what = "an RFC 1123 label" if label else "a lowercase RFC 1123 subdomain"
    return f'metadata.name: Invalid value: "{name}": {what} must match {pattern!r}, in 63 or 253 characters'


def _fixed(spec: Object) -> Object:
    """What of a pod may not change."""
    containers = [{k: v for k, v in c.items() if k != "image"} for c in spec["containers"]]
    free = ("nodeName", "tolerations", "activeDeadlineSeconds", "initContainers")
    return {k: v for k, v in spec.items() if k not in free} | {"containers": containers}


def _pod_faults(spec: Object) -> Iterator[str]:
    volumes = [volume["name"] for volume in spec.get("volumes", ())]
    for number, name in enumerate(volumes):
        if name in volumes[:number]:
            yield f'spec.volumes[{number}].name: Duplicate value: "{name}"'
    seen = set()
    for part in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(part, ())):
            path = f"spec.{part}[{number}]"
            if container["name"] in seen:
                yield f'{path}.name: Duplicate value: "{container["name"]}"'
            seen.add(container["name"])
            for place, mount in enumerate(container.get("volumeMounts", ())):
                if mount["name"] not in volumes:
                    yield f'{path}.volumeMounts[{place}].name: Not found: "{mount["name"]}"'
