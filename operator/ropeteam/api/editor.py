"""The JSON Schema of a TrainingJob, by which editors complete, explain and check a manifest.

Of the same models as the definition, in the words of draft 7; and stricter: a server prunes a field that it
does not know, an editor marks it. Limits: rules over several fields are those of `ropeteam validate`, and the
pod template is open.
"""

from __future__ import annotations

import json
from pathlib import Path

from ropeteam.api.job import API_VERSION, KIND, TrainingJob
from ropeteam.api.rules.rulebook import MAX_NAME, NAME
from ropeteam.api.rules.validate import spec_schema
from ropeteam.api.schema.structural import INT_OR_STRING, OPEN, Schema

FILE = Path("docs") / "trainingjob.schema.json"
"""Not in crds/: `kubectl apply -f crds/` takes every .json there for an object."""

_STRING_MAP = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA = {
    "description": "Standard object metadata of Kubernetes.",
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"description": "Name of the job.", "type": "string", "maxLength": MAX_NAME, "pattern": NAME},
        "namespace": {"description": "Namespace of the job.", "type": "string"},
        "labels": {"description": "Labels, to select the job by.", **_STRING_MAP},
        "annotations": {"description": "Annotations, for people and tools.", **_STRING_MAP},
    },
}


def editor_schema() -> Schema:
    """The JSON Schema (draft 7) of a whole TrainingJob."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": KIND,
        "description": TrainingJob.__doc__,
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"description": "API group and version.", "const": API_VERSION},
            "kind": {"description": "Kind of the object.", "const": KIND},
            "metadata": _METADATA,
            "spec": _in_draft_7(spec_schema()),
            "status": {"description": "Status of the job, as the operator reports it.", "type": "object"},
        },
        "additionalProperties": False,
    }


def _in_draft_7(schema: Schema) -> Schema:
    """A structural schema in draft 7: without `x-kubernetes-*` keywords, int-or-string as two types. An
    object with named fields refuses all others, unless it preserves unknown fields."""
    plain = {key: each for key, each in schema.items() if not key.startswith("x-kubernetes-")}
    if INT_OR_STRING in schema:
        plain["type"] = ["integer", "string"]
    for inner in ("items", "additionalProperties"):
        if inner in schema:
            plain[inner] = _in_draft_7(schema[inner])
    if "properties" in schema:
        plain["properties"] = {name: _in_draft_7(each) for name, each in schema["properties"].items()}
        if OPEN not in schema:
            plain["additionalProperties"] = False
    return plain


def to_json() -> str:
    """Text of FILE."""
    return json.dumps(editor_schema(), indent=2) + "\n"
