"""Pieces of Kubernetes' own pod API inside our spec: passed through, known only as far as a rule needs.

Each is a plain dict. The schema names the fields that our rules compare; all others are kept and checked by
the API server itself, through a dry run of one pod.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import WithJsonSchema

Schema = dict[str, Any]

_MAX_NAME, _MAX_TEXT = 253, 16_384


def _text(description: str, maximum: int = _MAX_TEXT, **more: Any) -> Schema:
    return {"description": description, "type": "string", "maxLength": maximum, **more}


def _open(description: str, properties: Schema | None = None, **more: Any) -> Schema:
    """An object that may hold more than the named properties."""
    named = {"properties": properties} if properties else {}
    unpruned = {"x-kubernetes-preserve-unknown-fields": True}
    return {"description": description, "type": "object", **unpruned, **named, **more}


def _texts(description: str) -> Schema:
    items = {"type": "string", "maxLength": _MAX_TEXT}
    return {"description": description, "type": "array", "maxItems": 256, "items": items}


def _quantities(description: str) -> Schema:
    quantity = {"x-kubernetes-int-or-string": True}
    return {
        "description": description,
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": quantity,
    }


ENV_VAR = _open(
    "One environment variable, as in a pod.",
    {"name": _text("Name of the variable.", 128, minLength=1), "value": _text("Value of the variable.")},
    required=["name"],
)
ENV = {
    "description": "Environment variables, as in a pod.",
    "type": "array",
    "maxItems": 128,
    "items": ENV_VAR,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
}
RESOURCES = _open(
    "Resources of a container, as in a pod.",
    {
        "limits": _quantities("Maximum amounts of resources."),
        "requests": _quantities("Minimum amounts of resources."),
    },
)
_MOST_VOLUMES = 128
VOLUME_MOUNTS = {
    "description": "Volumes of the pod to mount into the container, as in a pod.",
    "type": "array",
    "maxItems": _MOST_VOLUMES,
    "items": _open(
        "One volume mount, as in a pod.",
        {"name": _text("Name of the volume.", 63), "mountPath": _text("Path in the container.", 4096)},
        required=["name", "mountPath"],
    ),
}
VOLUMES = {
    "description": "Volumes of the pod.",
    "type": "array",
    "maxItems": _MOST_VOLUMES,
    "items": _open("One volume, as in a pod.", {"name": _text("Name of the volume.", 63)}, required=["name"]),
}
CONTAINER = _open(
    "A container, as in a pod.",
    {
        "name": _text("Name of the container; the one that trains is named `trainer`.", 63, minLength=1),
        "image": _text("Image of the container.", 1024),
        "command": _texts("Command of the container."),
        "args": _texts("Arguments of the command."),
        "workingDir": _text("Working directory of the command.", 1024),
        "env": ENV,
        "resources": RESOURCES,
        "volumeMounts": VOLUME_MOUNTS,
    },
    required=["name"],
)
CONTAINERS = {
    "description": "Containers of the pod. One must be named `trainer`, if any are given.",
    "type": "array",
    "maxItems": 8,
    "items": CONTAINER,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
}
POD_TEMPLATE = _open(
    "A pod template.",
    {
        "metadata": _open("Labels and annotations of the pods."),
        "spec": _open(
            "Specification of the pods, as in Kubernetes.",
            {
                "containers": CONTAINERS,
                "restartPolicy": _text("Must be Never, or omitted.", 16),
                "volumes": VOLUMES,
            },
        ),
    },
)
VOLUME = _open(
    "A volume source, as in a pod.",
    {
        "name": _text("Must be omitted: the operator names the volume.", _MAX_NAME),
        "emptyDir": _open("Empty folder that exists as long as its pod."),
    },
    minProperties=1,
)

Env = Annotated[tuple[dict[str, Any], ...], WithJsonSchema(ENV)]
Resources = Annotated[dict[str, Any], WithJsonSchema(RESOURCES)]
PodTemplate = Annotated[dict[str, Any], WithJsonSchema(POD_TEMPLATE)]
Volume = Annotated[dict[str, Any], WithJsonSchema(VOLUME)]
