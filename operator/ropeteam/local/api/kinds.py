"""Defaults, rules and schemas of single kinds."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from ropeteam.api.schema.structural import Schema
from ropeteam.local import resources as r
from ropeteam.local.fielderrors import FieldError
from ropeteam.local.resources import Object, Resource

Rules = Callable[[Object, Object | None], list[FieldError]]
"""Python equivalents of a kind's CEL rules: (new, old) to errors. `old` is None at a create."""

ANY: Schema = {"x-kubernetes-preserve-unknown-fields": True}
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}


def _object_schema(free: str = "", **known: Schema) -> Schema:
    """Schema of an object. `free`: names of fields, separated by spaces, whose values are not validated.
    Other fields are pruned, unless the caller adds `| ANY`."""
    return {"type": "object", "properties": dict.fromkeys(free.split(), ANY) | known}


def _list_schema(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _with_default(value: Any, **schema: Any) -> Schema:
    """`schema` with a default."""
    return {**schema, "default": value}


def _text_map_schema() -> Schema:
    """Schema of a map from text to text, as labels."""
    return {"type": "object", "additionalProperties": TEXT}


_QUANTITIES: Schema = {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}}
_RESOURCES = _object_schema(limits=_QUANTITIES, requests=_QUANTITIES, free="claims") | {"default": {}}
_ENV = _object_schema(name=TEXT, value=TEXT, valueFrom=ANY)
_MOUNT = _object_schema(name=TEXT, mountPath=TEXT, subPath=TEXT, readOnly=FLAG) | ANY
_SECURITY = _object_schema(runAsUser=NUMBER, runAsGroup=NUMBER, runAsNonRoot=FLAG) | ANY
_CONTAINER = _object_schema(
    name=TEXT,
    image=TEXT,
    command=_list_schema(TEXT),
    args=_list_schema(TEXT),
    workingDir=TEXT,
    env=_list_schema(_ENV),
    volumeMounts=_list_schema(_MOUNT),
    resources=_RESOURCES,
    securityContext=_SECURITY,
    terminationMessagePath=_with_default("/dev/termination-log", **TEXT),
    terminationMessagePolicy=_with_default("File", **TEXT),
    imagePullPolicy=TEXT,
    free="envFrom ports livenessProbe readinessProbe startupProbe lifecycle stdin stdinOnce tty volumeDevices"
    " restartPolicy restartPolicyRules resizePolicy",
)
_VOLUME = _object_schema(name=TEXT) | ANY
_POD_SPEC = _object_schema(
    containers=_list_schema(_CONTAINER),
    initContainers=_list_schema(_CONTAINER),
    volumes=_list_schema(_VOLUME),
    restartPolicy=_with_default("Always", **TEXT),
    terminationGracePeriodSeconds=_with_default(30, **NUMBER),
    activeDeadlineSeconds=NUMBER,
    dnsPolicy=_with_default("ClusterFirst", **TEXT),
    nodeName=TEXT,
    nodeSelector=_text_map_schema(),
    schedulerName=_with_default("default-scheduler", **TEXT),
    securityContext=_with_default({}, **_SECURITY),
    priority=_with_default(0, **NUMBER),
    preemptionPolicy=_with_default("PreemptLowerPriority", **TEXT),
    enableServiceLinks=_with_default(True, **FLAG),
    affinity={"type": "object"} | ANY,
    tolerations=_list_schema({"type": "object"} | ANY),
    free="automountServiceAccountToken dnsConfig ephemeralContainers hostAliases hostIPC hostNetwork hostPID"
    " hostUsers hostname imagePullSecrets os overhead priorityClassName readinessGates resourceClaims"
    " resources runtimeClassName schedulingGates serviceAccount serviceAccountName setHostnameAsFQDN"
    " shareProcessNamespace subdomain topologySpreadConstraints workloadRef",
)
_PORT = _object_schema(
    port=_with_default(0, **NUMBER),
    targetPort={"x-kubernetes-int-or-string": True},
    protocol=_with_default("TCP", **TEXT),
    free="name nodePort appProtocol",
)
_SERVICE_SPEC = _object_schema(
    ports=_list_schema(_PORT),
    type=_with_default("ClusterIP", **TEXT),
    selector=_text_map_schema(),
    clusterIP=TEXT,
    clusterIPs=_list_schema(TEXT),
    sessionAffinity=_with_default("None", **TEXT),
    ipFamilies=_with_default(["IPv4"], **_list_schema(TEXT)),
    ipFamilyPolicy=_with_default("SingleStack", **TEXT),
    internalTrafficPolicy=_with_default("Cluster", **TEXT),
    publishNotReadyAddresses=FLAG,
    externalName=TEXT,
    free="allocateLoadBalancerNodePorts externalIPs externalTrafficPolicy healthCheckNodePort"
    " loadBalancerClass loadBalancerIP loadBalancerSourceRanges sessionAffinityConfig trafficDistribution",
)
_NULLABLE: Schema = _with_default(None, nullable=True, **ANY)
_EVENT = _object_schema(
    involvedObject=_with_default({}, **_object_schema(
        free="apiVersion fieldPath kind name namespace resourceVersion uid")),
    reason=TEXT,
    message=TEXT,
    type=TEXT,
    count=NUMBER,
    source=_with_default({}, **_object_schema(component=TEXT, host=TEXT)),
    firstTimestamp=_NULLABLE,
    lastTimestamp=_NULLABLE,
    eventTime=_NULLABLE,
    reportingComponent=_with_default("", **TEXT),
    reportingInstance=_with_default("", **TEXT),
    free="action related series",
)  # fmt: skip
_LEASE_SPEC = _object_schema(
    holderIdentity=TEXT,
    leaseDurationSeconds=NUMBER,
    leaseTransitions=NUMBER,
    free="acquireTime renewTime preferredHolder strategy",
)

SCHEMAS: dict[str, Schema] = {
    r.PODS.name: _object_schema(spec=_with_default({}, **_POD_SPEC), status=ANY),
    r.SERVICES.name: _object_schema(spec=_with_default({}, **_SERVICE_SPEC), status=ANY),
    r.SECRETS.name: _object_schema(
        data=_text_map_schema(),
        stringData=_text_map_schema(),
        type=_with_default("Opaque", **TEXT),
        immutable=FLAG,
    ),
    r.CONFIG_MAPS.name: _object_schema(
        data=_text_map_schema(), binaryData=_text_map_schema(), immutable=FLAG
    ),
    r.EVENTS.name: _EVENT,
    r.LEASES.name: _object_schema(spec=_with_default({}, **_LEASE_SPEC)),
}


def set_initial_fields(resource: Resource, value: Object) -> None:
    """Set in place what a server sets at a create: the initial status, and names of a CRD. A status that the
    client sent is dropped."""
    if resource == r.PODS:
        value["status"] = {"phase": "Pending", "qosClass": _qos_class(value["spec"])}
    elif resource == r.SERVICES:
        value["status"] = {"loadBalancer": {}}
    elif resource == r.NAMESPACES:
        value["status"] = {"phase": "Active"}
        value["spec"] = {"finalizers": ["kubernetes"]}
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


def _qos_class(spec: Object) -> str:
    """QoS class of a pod, from the resources of its containers. Limit: init containers are not considered."""
    given = [each.get("resources") or {} for each in spec["containers"]]
    if not any(part.get("limits") or part.get("requests") for part in given):
        return "BestEffort"
    full = all({"cpu", "memory"} <= (part.get("limits") or {}).keys() for part in given)
    same = all((part.get("requests") or part.get("limits")) == part.get("limits") for part in given)
    return "Guaranteed" if full and same else "Burstable"


def set_server_fields(resource: Resource, value: Object, old: Object | None) -> None:
    """Set in place what a server sets or rewrites on each write of a built-in kind, after the defaults of its
    schema. `old`: None at a create."""
    if resource == r.CLAIMS:
        value.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
    if resource == r.SECRETS:
        for name, text in value.pop("stringData", {}).items():
            value.setdefault("data", {})[name] = base64.b64encode(text.encode()).decode()
    elif resource == r.SERVICES:
        spec = value["spec"]
        for port in spec.get("ports", ()):
            port.setdefault("targetPort", port["port"])
        if old and not spec.get("clusterIP"):  # a client may omit the address
            spec |= {name: old["spec"][name] for name in ("clusterIP", "clusterIPs") if name in old["spec"]}
    elif resource == r.PODS:
        for volume in value["spec"].get("volumes") or ():
            if not volume.keys() - {"name"}:
                volume["emptyDir"] = {}
        if old is None:
            _add_default_tolerations(value["spec"].setdefault("tolerations", []))
        for container in [*value["spec"].get("containers", ()), *value["spec"].get("initContainers", ())]:
            _complete_container(container)
    elif resource == r.NAMESPACES:
        labels = value["metadata"].get("labels") or {}
        value["metadata"]["labels"] = labels | {"kubernetes.io/metadata.name": value["metadata"]["name"]}


def _add_default_tolerations(tolerations: list[Object]) -> None:
    """Append the default tolerations, in place: a pod stays for five minutes on a node that is not ready or
    unreachable, unless it sets its own NoExecute toleration for that."""
    for what in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{what}"
        matching = [each for each in tolerations if each.get("key", key) == key]
        if all(each.get("effect", "NoExecute") != "NoExecute" for each in matching):
            rest = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            tolerations.append({"key": key, **rest})


def _complete_container(container: Object) -> None:
    """Set in place: the pull policy by the image's tag, requests from limits, and quantities as texts."""
    image = str(container.get("image") or "")
    tagged = ":" in image.rpartition("/")[2] and not image.endswith(":latest")
    container.setdefault("imagePullPolicy", "IfNotPresent" if tagged or "@" in image else "Always")
    resources = container["resources"]
    for name, limit in (resources.get("limits") or {}).items():
        resources.setdefault("requests", {}).setdefault(name, limit)
    for kind in ("limits", "requests"):
        if resources.get(kind):
            resources[kind] = {name: str(amount) for name, amount in resources[kind].items()}
