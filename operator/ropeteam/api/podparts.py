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
    kept = {"x-kubernetes-preserve-unknown-fields": True}
    return {"description": description, "type": "object", **kept, **named, **more}


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
    "One variable, as in a pod.",
    {"name": _text("Its name.", 128, minLength=1), "value": _text("Its value.")},
    required=["name"],
)
ENV = {
    "description": "Environment, as in a pod.",
    "type": "array",
    "maxItems": 128,
    "items": ENV_VAR,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
}
RESOURCES = _open(
    "Resources of a container, as in a pod.",
    {
        "limits": _quantities("What it may use at most."),
        "requests": _quantities("What it is promised."),
    },
)
_MOST_VOLUMES = 128
VOLUME_MOUNTS = {
    "description": "Where the container sees the pod's volumes, as in a pod.",
    "type": "array",
    "maxItems": _MOST_VOLUMES,
    "items": _open(
        "One mount, as in a pod.",
        {"name": _text("The volume's.", 63), "mountPath": _text("Where.", 4096)},
        required=["name", "mountPath"],
    ),
}
VOLUMES = {
    "description": "Volumes of the pod.",
    "type": "array",
    "maxItems": _MOST_VOLUMES,
    "items": _open("One volume, as in a pod.", {"name": _text("Its name.", 63)}, required=["name"]),
}
CONTAINER = _open(
    "A container, as in a pod.",
    {
        "name": _text("The one that trains is named `trainer`.", 63, minLength=1),
        "image": _text("Its image.", 1024),
        "command": _texts("What it runs."),
        "args": _texts("Arguments after the command."),
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
            "The pod, as in Kubernetes.",
            {
                "containers": CONTAINERS,
                "restartPolicy": _text("Never, or left out.", 16),
                "volumes": VOLUMES,
            },
        ),
    },
)
VOLUME = _open(
    "A volume source, as in a pod.",
    {
        "name": _text("Not used here.", _MAX_NAME),
        "emptyDir": _open("A folder that lives as long as one pod."),
    },
    minProperties=1,
)

Env = Annotated[tuple[dict[str, Any], ...], WithJsonSchema(ENV)]
Resources = Annotated[dict[str, Any], WithJsonSchema(RESOURCES)]
PodTemplate = Annotated[dict[str, Any], WithJsonSchema(POD_TEMPLATE)]
Volume = Annotated[dict[str, Any], WithJsonSchema(VOLUME)]
