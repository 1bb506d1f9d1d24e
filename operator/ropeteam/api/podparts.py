"""Pieces of Kubernetes' own pod API inside our spec: passed through, known only as far as a rule needs.

Each is a plain dict. The schema names the fields that our rules compare; all others are kept and checked by
the API server itself, through a dry run of one pod.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import WithJsonSchema

Schema = dict[str, Any]

_MAX_NAME, _MAX_TEXT = 253, 16_384


def _text_schema(description: str, maximum: int = _MAX_TEXT, **more: Any) -> Schema:
    """Schema of a string of at most `maximum` characters. `more`: further keywords, as `minLength`."""
    return {"description": description, "type": "string", "maxLength": maximum, **more}


def _open_object_schema(description: str, properties: Schema | None = None, **more: Any) -> Schema:
    """Schema of an object that keeps fields beside `properties`. `more`: further keywords, as `required`."""
    named = {"properties": properties} if properties else {}
    unpruned = {"x-kubernetes-preserve-unknown-fields": True}
    return {"description": description, "type": "object", **unpruned, **named, **more}


def _text_list_schema(description: str) -> Schema:
    """Schema of a list of strings; CEL rules need the limits."""
    items = {"type": "string", "maxLength": _MAX_TEXT}
    return {"description": description, "type": "array", "maxItems": 256, "items": items}


def _quantity_map_schema(description: str) -> Schema:
    """Schema of a map from resource name to quantity, as in `limits`."""
    quantity = {"x-kubernetes-int-or-string": True}
    return {
        "description": description,
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": quantity,
    }


ENV_VAR = _open_object_schema(
    "An environment variable, as in a pod.",
    {
        "name": _text_schema("Name of the variable.", 128, minLength=1),
        "value": _text_schema("Value of the variable."),
    },
    required=["name"],
)
ENV = {
    "description": "Environment variables of the container, as in a pod.",
    "type": "array",
    "maxItems": 128,
    "items": ENV_VAR,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
}
RESOURCES = _open_object_schema(
    "Compute resources of the container, as in a pod.",
    {
        "limits": _quantity_map_schema("Maximum amounts of compute resources, as in a pod."),
        "requests": _quantity_map_schema("Minimum amounts of compute resources, as in a pod."),
    },
)
_MAX_VOLUMES = 128
VOLUME_MOUNTS = {
    "description": "Volume mounts of the container, as in a pod. Each must name a volume of the pod.",
    "type": "array",
    "maxItems": _MAX_VOLUMES,
    "items": _open_object_schema(
        "A volume mount, as in a pod.",
        {
            "name": _text_schema("Name of the volume.", 63),
            "mountPath": _text_schema("Path in the container at which the volume is mounted.", 4096),
        },
        required=["name", "mountPath"],
    ),
}
VOLUMES = {
    "description": "Volumes that containers of the pod may mount.",
    "type": "array",
    "maxItems": _MAX_VOLUMES,
    "items": _open_object_schema(
        "A volume, as in a pod.", {"name": _text_schema("Name of the volume.", 63)}, required=["name"]
    ),
}
CONTAINER = _open_object_schema(
    "A container, as in a pod.",
    {
        "name": _text_schema(
            "Name of the container. The one that trains is named `trainer`.", 63, minLength=1
        ),
        "image": _text_schema("Image of the container.", 1024),
        "command": _text_list_schema("Command of the container."),
        "args": _text_list_schema("Arguments of the command."),
        "workingDir": _text_schema("Working directory of the command.", 1024),
        "env": ENV,
        "resources": RESOURCES,
        "volumeMounts": VOLUME_MOUNTS,
    },
    required=["name"],
)
CONTAINERS = {
    "description": "Containers of the pod. If there are any, one must be named `trainer`.",
    "type": "array",
    "maxItems": 8,
    "items": CONTAINER,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
}
POD_TEMPLATE = _open_object_schema(
    "A pod template.",
    {
        "metadata": _open_object_schema("Labels and annotations of the pods. Other fields have no effect."),
        "spec": _open_object_schema(
            "Specification of the pods, as in a pod template of Kubernetes.",
            {
                "containers": CONTAINERS,
                "restartPolicy": _text_schema(
                    "Restart policy of the pod. Must be Never or omitted: agents restart ranks in the pod.",
                    16,
                ),
                "volumes": VOLUMES,
            },
        ),
    },
)
VOLUME = _open_object_schema(
    "A volume source, as in a pod.",
    {
        "name": _text_schema("Name of the volume. Must be omitted, because the operator sets it.", _MAX_NAME),
        "emptyDir": _open_object_schema(
            "An emptyDir volume source, as in a pod. Refused with several workers: each pod has its own."
        ),
    },
    minProperties=1,
)

Env = Annotated[tuple[dict[str, Any], ...], WithJsonSchema(ENV)]
Resources = Annotated[dict[str, Any], WithJsonSchema(RESOURCES)]
PodTemplate = Annotated[dict[str, Any], WithJsonSchema(POD_TEMPLATE)]
Volume = Annotated[dict[str, Any], WithJsonSchema(VOLUME)]
