"""Rules of the built-in kinds beyond schemas, with the messages of a real server. No I/O.

Of a real server's rules these are the ones that hand-written pods, Services and Secrets break; the missing
ones are listed in tests/differential.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from decimal import Decimal

from ropeteam.api.quantity import parse_quantity
from ropeteam.api.schema.walker import is_time
from ropeteam.local import resources as r
from ropeteam.local.api.meta import NO_LABEL
from ropeteam.local.fielderrors import FieldError
from ropeteam.local.resources import Object, Resource

_KEY = "[-._a-zA-Z0-9]+"
_NO_KEY = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or "
    f"'KEY_NAME',  or 'key-name', regex used for validation is '{_KEY}')"
)
_PORT_RANGE = "must be between 1 and 65535, inclusive"
_ENUMS: dict[str, tuple[str, ...]] = {
    "type": ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort"),
    "protocol": ("SCTP", "TCP", "UDP"),
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "operator": ("Equal", "Exists"),
}
_NO_VARIABLE = (
    "a valid environment variable name must consist only of printable ASCII characters other than '='"
)
_TIMES = {r.EVENTS: ("firstTimestamp", "lastTimestamp", "eventTime"), r.LEASES: ("acquireTime", "renewTime")}
FIXED_POD = FieldError.forbidden(
    "spec",
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
    "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
    "previously negative)",
)


def decoding_errors(resource: Resource, value: Object) -> Iterator[str]:
    """Reasons why an object whose types are right still cannot be decoded: texts that are no base64, time or
    quantity. A server answers 400, before it validates."""
    if resource == r.SECRETS:
        for text in (value.get("data") or {}).values():
            try:
                base64.b64decode(text or "", validate=True)
            except binascii.Error:
                yield "illegal base64 data at input byte 0"
    home = (value.get("spec") or {}) if resource == r.LEASES else value
    for text in (home[name] for name in _TIMES.get(resource, ()) if home.get(name)):
        if not is_time(text):
            yield f'parsing time "{text}": cannot parse it as a time like 2006-01-02T15:04:05Z'
    if resource == r.PODS:
        spec = value.get("spec") or {}
        containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
        parts = [(container.get("resources") or {}) for container in containers]
        given = [
            each
            for part in parts
            for kind in ("limits", "requests")
            for each in (part.get(kind) or {}).values()
        ]
        if any(parse_quantity(each) is None for each in given):
            pattern = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
            yield f"quantities must match the regular expression '{pattern}'"


def field_errors(resource: Resource, new: Object, old: Object | None) -> Iterator[FieldError]:
    """Errors of an object whose types are right and whose defaults are set: within fields, between fields,
    and between the object and its previous version. `old`: None at a create."""
    if resource == r.PODS:
        yield from _pod_errors(new["spec"])
        if old:
            yield from _pod_change_errors(new["spec"], old["spec"])
    elif resource == r.SERVICES:
        yield from _service_errors(new["spec"])
        was = old["spec"].get("clusterIP") if old else None
        if was and new["spec"].get("clusterIP") != was:
            requested = new["spec"].get("clusterIP")
            yield FieldError.invalid("spec.clusterIPs[0]", [requested], "may not change once set")
    elif resource in (r.SECRETS, r.CONFIG_MAPS):
        yield from _data_errors(new, old)
    elif resource == r.CLAIMS:
        if not new["spec"].get("accessModes"):
            yield FieldError.required("spec.accessModes", "at least 1 access mode is required")
        if "storage" not in ((new["spec"].get("resources") or {}).get("requests") or {}):
            yield FieldError.required("spec.resources[storage]")
    elif resource == r.CRDS:
        yield from _crd_errors(new)
    elif resource == r.EVENTS:
        about, home = (new.get("involvedObject") or {}).get("namespace", ""), new["metadata"]["namespace"]
        if about != home and (about or home not in ("default", "kube-system")):
            yield FieldError.invalid("involvedObject.namespace", about, "does not match event.namespace")
    elif resource == r.LEASES:
        seconds = (new.get("spec") or {}).get("leaseDurationSeconds")
        if seconds is not None and seconds <= 0:
            yield FieldError.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0")


def _data_errors(new: Object, old: Object | None) -> Iterator[FieldError]:
    """Errors of a Secret or ConfigMap."""
    for key in [*new.get("data", {}), *new.get("binaryData", {})]:
        if not re.fullmatch(_KEY, key):
            yield FieldError.invalid(f"data[{key}]", key, _NO_KEY)
    if not old:
        return
    if new.get("type") != old.get("type"):
        yield FieldError.invalid("type", new.get("type"), "field is immutable")
    if old.get("immutable"):
        if not new.get("immutable"):
            yield FieldError.forbidden("immutable", "field is immutable when `immutable` is set")
        if new.get("data") != old.get("data"):
            yield FieldError.forbidden("data", "field is immutable when `immutable` is set")


def _crd_errors(crd: Object) -> Iterator[FieldError]:
    """Errors of a CustomResourceDefinition: required fields, and its name."""
    spec = crd.get("spec") or {}
    names = spec.get("names") or {}
    needed = {"group": spec, "scope": spec, "versions": spec, "names.plural": names, "names.kind": names}
    for path, home in needed.items():
        if not home.get(path.rpartition(".")[2]):
            yield FieldError.required(f"spec.{path}")
    name = crd["metadata"]["name"]
    if name != f"{names.get('plural', '')}.{spec.get('group', '')}":
        yield FieldError.invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group')


def _service_errors(spec: Object) -> Iterator[FieldError]:
    """Errors in the order of a real server: type, ports, clusterIP."""
    yield from _enum_errors(spec, "type", "spec")
    ports = spec.get("ports") or []
    if not ports and spec.get("clusterIP") != "None":
        yield FieldError.required("spec.ports")
    names: list[str] = []
    for number, port in enumerate(ports):
        here = f"spec.ports[{number}]"
        if len(ports) > 1 and not port.get("name"):
            yield FieldError.required(f"{here}.name")
        elif port.get("name") in names:
            yield FieldError.duplicate(f"{here}.name", port["name"])
        names += [port["name"]] if port.get("name") else []
        for name in ("port", "targetPort"):
            value = port.get(name, 0)
            if isinstance(value, int) and not 1 <= value <= 65535:
                yield FieldError.invalid(f"{here}.{name}", value, _PORT_RANGE)
        yield from _enum_errors(port, "protocol", here)
    address = spec.get("clusterIP") or "None"
    if address != "None" and not re.fullmatch(r"\d+(\.\d+){3}", address):
        why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
        yield FieldError.invalid("spec.clusterIPs[0]", address, why)


def _enum_errors(value: Object, name: str, path: str) -> Iterator[FieldError]:
    """An error if the field `name` of `value`, which is at `path`, is set to no value of its enum."""
    if value.get(name) is not None and value[name] not in _ENUMS[name]:
        yield FieldError.not_supported(f"{path}.{name}", value[name], _ENUMS[name])


def _pod_errors(spec: Object) -> Iterator[FieldError]:
    """Errors in the order of a real server: volumes, fields of the pod, containers, init containers."""
    volumes = [volume.get("name", "") for volume in spec.get("volumes") or ()]
    for number, volume in enumerate(spec.get("volumes") or ()):
        here = f"spec.volumes[{number}]"
        if not volume.get("name"):
            yield FieldError.required(f"{here}.name")
        elif volume["name"] in volumes[:number]:
            yield FieldError.duplicate(f"{here}.name", volume["name"])
        for source, name in (("secret", "secretName"), ("persistentVolumeClaim", "claimName")):
            if isinstance(volume.get(source), dict) and not volume[source].get(name):
                yield FieldError.required(f"{here}.{source}.{name}")
    yield from _enum_errors(spec, "restartPolicy", "spec")
    if not spec.get("containers"):
        yield FieldError.required("spec.containers")
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline < 2**31:
        why = "must be between 1 and 2147483647, inclusive"
        yield FieldError.invalid("spec.activeDeadlineSeconds", deadline, why)
    for number, each in enumerate(spec.get("tolerations") or ()):
        yield from _enum_errors(each, "operator", f"spec.tolerations[{number}]")
    seen: set[str] = set()
    for part in ("containers", "initContainers"):
        for number, container in enumerate(spec.get(part) or ()):
            yield from _container_errors(container, f"spec.{part}[{number}]", volumes, seen)


def _container_errors(
    container: Object, path: str, volumes: list[str], seen: set[str]
) -> Iterator[FieldError]:
    """Errors in the order of a real server: name, image, pull policy, resources, ports, env, mounts.
    `volumes`: names of the pod's volumes. `seen`: names of containers before this one; its own is added."""
    name = container.get("name")
    if not name:
        yield FieldError.required(f"{path}.name")
    elif not re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
        yield FieldError.invalid(f"{path}.name", name, NO_LABEL)
    elif name in seen:
        yield FieldError.duplicate(f"{path}.name", name)
    seen |= {name or ""}
    if not container.get("image"):
        yield FieldError.required(f"{path}.image")
    yield from _enum_errors(container, "imagePullPolicy", path)
    yield from _resource_errors(container.get("resources") or {}, f"{path}.resources")
    for number, port in enumerate(container.get("ports") or ()):
        if not 1 <= port.get("containerPort", 0) <= 65535:
            here = f"{path}.ports[{number}].containerPort"
            yield FieldError.invalid(here, port.get("containerPort", 0), _PORT_RANGE)
    for number, variable in enumerate(container.get("env") or ()):
        if not variable.get("name"):
            yield FieldError.required(f"{path}.env[{number}].name")
        elif not re.fullmatch(r"[ -<>-~]+", variable["name"]):
            yield FieldError.invalid(f"{path}.env[{number}].name", variable["name"], _NO_VARIABLE)
        if variable.get("value") and variable.get("valueFrom"):
            why = "may not be specified when `value` is not empty"
            yield FieldError.invalid(f"{path}.env[{number}].valueFrom", "", why)
    for number, mount in enumerate(container.get("volumeMounts") or ()):
        here = f"{path}.volumeMounts[{number}]"
        earlier = container["volumeMounts"][:number]
        if not mount.get("name"):
            yield FieldError.required(f"{here}.name")
        elif mount["name"] not in volumes:
            yield FieldError.not_found(f"{here}.name", mount["name"])
        if not mount.get("mountPath"):
            yield FieldError.required(f"{here}.mountPath")
        elif any(mount["mountPath"] == each.get("mountPath") for each in earlier):
            yield FieldError.invalid(f"{here}.mountPath", mount["mountPath"], "must be unique")


def _resource_errors(resources: Object, path: str) -> Iterator[FieldError]:
    """Errors of the quantities of a container's resources; requests may not exceed limits. Extended resources
    (with a `/` in their name) are whole numbers."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            here = f"{path}.{kind}[{name}]"
            if _quantity(text) < 0:
                yield FieldError.invalid(here, text, "must be greater than or equal to 0")
            elif "/" in name and _quantity(text) % 1:
                yield FieldError.invalid(here, text, "must be an integer")
    for name, text in requests.items():
        if name in limits and _quantity(text) > _quantity(limits[name]):
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            yield FieldError.invalid(f"{path}.requests", text, why)


def _quantity(text: str) -> Decimal:
    """The number of a quantity that `decoding_errors` has accepted."""
    found = parse_quantity(text)
    assert found is not None
    return found


def _pod_change_errors(new: Object, old: Object) -> Iterator[FieldError]:
    """An error if an update changes a field of a pod's spec that may not change."""
    if len(new.get("containers") or ()) != len(old["containers"]):
        yield FieldError.forbidden("spec.containers", "pod updates may not add or remove containers")
    elif _immutable_part(new) != _immutable_part(old):
        yield FIXED_POD


def _immutable_part(spec: Object) -> Object:
    """A pod's spec without what an update may change: the images. Limit: any change of tolerations,
    activeDeadlineSeconds and initContainers is accepted, where a real server accepts some."""
    containers = [{k: v for k, v in c.items() if k != "image"} for c in spec["containers"]]
    free = ("tolerations", "activeDeadlineSeconds", "initContainers")
    return {k: v for k, v in spec.items() if k not in free} | {"containers": containers}


def selectable_fields(resource: Resource) -> tuple[str, ...]:
    """Fields of a kind for `--field-selector`, beside name and namespace."""
    return _SELECTABLE_FIELDS.get(resource.name, ())


_SELECTABLE_FIELDS: dict[str, tuple[str, ...]] = {
    r.PODS.name: (
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
        "spec.hostNetwork", "status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName",
    ),
    r.EVENTS.name: (
        "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
        "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason",
        "reportingComponent", "source", "type",
    ),
    r.SECRETS.name: ("type",),
    r.NAMESPACES.name: ("status.phase",),
    r.NODES.name: ("spec.unschedulable",),
    r.SERVICES.name: ("spec.clusterIP", "spec.type"),
}  # fmt: skip
