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
"""Python equivalents of a kind's CEL rules: (new, old) to errors."""

ANY: Schema = {"x-kubernetes-preserve-unknown-fields": True}
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}


def _object(free: str = "", **known: Schema) -> Schema:
    """Schema of an object. `free`: names of fields that are accepted unchecked."""
    return {"type": "object", "properties": dict.fromkeys(free.split(), ANY) | known}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _default(value: Any, **schema: Any) -> Schema:
    return {**schema, "default": value}


def _texts() -> Schema:
    return {"type": "object", "additionalProperties": TEXT}


_QUANTITIES: Schema = {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}}
_RESOURCES = _object(limits=_QUANTITIES, requests=_QUANTITIES, free="claims") | {"default": {}}
_ENV = _object(name=TEXT, value=TEXT, valueFrom=ANY)
_MOUNT = _object(name=TEXT, mountPath=TEXT, subPath=TEXT, readOnly=FLAG) | ANY
_SECURITY = _object(runAsUser=NUMBER, runAsGroup=NUMBER, runAsNonRoot=FLAG) | ANY
_CONTAINER = _object(
    name=TEXT,
    image=TEXT,
    command=_list(TEXT),
    args=_list(TEXT),
    workingDir=TEXT,
    env=_list(_ENV),
    volumeMounts=_list(_MOUNT),
    resources=_RESOURCES,
    securityContext=_SECURITY,
    terminationMessagePath=_default("/dev/termination-log", **TEXT),
    terminationMessagePolicy=_default("File", **TEXT),
    imagePullPolicy=TEXT,
    free="envFrom ports livenessProbe readinessProbe startupProbe lifecycle stdin stdinOnce tty volumeDevices"
    " restartPolicy restartPolicyRules resizePolicy",
)
_VOLUME = _object(name=TEXT) | ANY
_POD_SPEC = _object(
    containers=_list(_CONTAINER),
    initContainers=_list(_CONTAINER),
    volumes=_list(_VOLUME),
    restartPolicy=_default("Always", **TEXT),
    terminationGracePeriodSeconds=_default(30, **NUMBER),
    activeDeadlineSeconds=NUMBER,
    dnsPolicy=_default("ClusterFirst", **TEXT),
    nodeName=TEXT,
    nodeSelector=_texts(),
    schedulerName=_default("default-scheduler", **TEXT),
    securityContext=_default({}, **_SECURITY),
    priority=_default(0, **NUMBER),
    preemptionPolicy=_default("PreemptLowerPriority", **TEXT),
    enableServiceLinks=_default(True, **FLAG),
    affinity={"type": "object"} | ANY,
    tolerations=_list({"type": "object"} | ANY),
    free="automountServiceAccountToken dnsConfig ephemeralContainers hostAliases hostIPC hostNetwork hostPID"
    " hostUsers hostname imagePullSecrets os overhead priorityClassName readinessGates resourceClaims"
    " resources runtimeClassName schedulingGates serviceAccount serviceAccountName setHostnameAsFQDN"
    " shareProcessNamespace subdomain topologySpreadConstraints workloadRef",
)
_PORT = _object(
    port=_default(0, **NUMBER),
    targetPort={"x-kubernetes-int-or-string": True},
    protocol=_default("TCP", **TEXT),
    free="name nodePort appProtocol",
)
_SERVICE_SPEC = _object(
    ports=_list(_PORT),
    type=_default("ClusterIP", **TEXT),
    selector=_texts(),
    clusterIP=TEXT,
    clusterIPs=_list(TEXT),
    sessionAffinity=_default("None", **TEXT),
    ipFamilies=_default(["IPv4"], **_list(TEXT)),
    ipFamilyPolicy=_default("SingleStack", **TEXT),
    internalTrafficPolicy=_default("Cluster", **TEXT),
    publishNotReadyAddresses=FLAG,
    externalName=TEXT,
    free="allocateLoadBalancerNodePorts externalIPs externalTrafficPolicy healthCheckNodePort"
    " loadBalancerClass loadBalancerIP loadBalancerSourceRanges sessionAffinityConfig trafficDistribution",
)
_NULLABLE: Schema = _default(None, nullable=True, **ANY)
_EVENT = _object(
    involvedObject=_default({}, **_object(
        free="apiVersion fieldPath kind name namespace resourceVersion uid")),
    reason=TEXT,
    message=TEXT,
    type=TEXT,
    count=NUMBER,
    source=_default({}, **_object(component=TEXT, host=TEXT)),
    firstTimestamp=_NULLABLE,
    lastTimestamp=_NULLABLE,
    eventTime=_NULLABLE,
    reportingComponent=_default("", **TEXT),
    reportingInstance=_default("", **TEXT),
    free="action related series",
)  # fmt: skip
_LEASE_SPEC = _object(
    holderIdentity=TEXT,
    leaseDurationSeconds=NUMBER,
    leaseTransitions=NUMBER,
    free="acquireTime renewTime preferredHolder strategy",
)

SCHEMAS: dict[str, Schema] = {
    r.PODS.name: _object(spec=_default({}, **_POD_SPEC), status=ANY),
    r.SERVICES.name: _object(spec=_default({}, **_SERVICE_SPEC), status=ANY),
    r.SECRETS.name: _object(
        data=_texts(), stringData=_texts(), type=_default("Opaque", **TEXT), immutable=FLAG
    ),
    r.CONFIG_MAPS.name: _object(data=_texts(), binaryData=_texts(), immutable=FLAG),
    r.EVENTS.name: _EVENT,
    r.LEASES.name: _object(spec=_default({}, **_LEASE_SPEC)),
}


def prepare_for_create(resource: Resource, value: Object) -> None:
    """Set the initial status, and fields that the server sets once. In place."""
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
    """QoS class of a pod, from the resources of its containers."""
    given = [each.get("resources") or {} for each in spec["containers"]]
    if not any(part.get("limits") or part.get("requests") for part in given):
        return "BestEffort"
    full = all({"cpu", "memory"} <= (part.get("limits") or {}).keys() for part in given)
    same = all((part.get("requests") or part.get("limits")) == part.get("limits") for part in given)
    return "Guaranteed" if full and same else "Burstable"


def before_write(resource: Resource, value: Object, old: Object | None) -> None:
    """Set the fields that the server rewrites on each write. In place."""
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
            _complete(container)
    elif resource == r.NAMESPACES:
        labels = value["metadata"].get("labels") or {}
        value["metadata"]["labels"] = labels | {"kubernetes.io/metadata.name": value["metadata"]["name"]}


def _add_default_tolerations(tolerations: list[Object]) -> None:
    """Add the default tolerations: a node may be away for five minutes, unless the pod sets others."""
    for what in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{what}"
        matching = [each for each in tolerations if each.get("key", key) == key]
        if all(each.get("effect", "NoExecute") != "NoExecute" for each in matching):
            rest = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            tolerations.append({"key": key, **rest})


def _complete(container: Object) -> None:
    image = str(container.get("image") or "")
    tagged = ":" in image.rpartition("/")[2] and not image.endswith(":latest")
    container.setdefault("imagePullPolicy", "IfNotPresent" if tagged or "@" in image else "Always")
    resources = container["resources"]
    for name, limit in (resources.get("limits") or {}).items():
        resources.setdefault("requests", {}).setdefault(name, limit)
    for kind in ("limits", "requests"):
        if resources.get(kind):
            resources[kind] = {name: str(amount) for name, amount in resources[kind].items()}
