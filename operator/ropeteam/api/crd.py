"""The CustomResourceDefinition, made from the models and the rulebook.

    python -m ropeteam.api.crd            write crds/, and the schema for editors beside docs/api.md
    python -m ropeteam.api.crd --check    say whether they are what the models say; exit status 1 if not

Small enough (200 KiB) for plain `kubectl apply`, which keeps a copy of it in an annotation.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from ropeteam.api import editor
from ropeteam.api.job import API_VERSION, GROUP, KIND, PLURAL, VERSION, TrainingJob
from ropeteam.api.rules.rulebook import CHANGES, RULES
from ropeteam.api.rules.validate import spec_schema
from ropeteam.api.schema.explained import with_limits_explained
from ropeteam.api.schema.structural import Schema, preserving_unknown_fields, structural_schema
from ropeteam.api.status import JobStatus

MAX_BYTES = 200 * 1024
FILE = Path("crds") / f"{GROUP}_{PLURAL}.yaml"
_HEADER = "# Made by `make crds` from operator/ropeteam/api. Do not edit.\n"

COLUMNS = (
    ("STATE", "string", ".status.state", 0, "State of the job in one word."),
    ("READY", "string", ".status.workers.summary", 0, "Ready and desired pods."),
    ("STEP", "integer", ".status.progress.step", 0, "Last step that rank 0 has reported."),
    ("PROGRESS", "string", ".status.progress.summary", 0, "Percentage of all steps that are done."),
    ("ETA", "string", ".status.progress.eta", 0, "Estimated time until the last step."),
    (
        "FAILURES",
        "string",
        ".status.failures.summary",
        0,
        "Charged and allowed incidents.",
    ),
    ("AGE", "date", ".metadata.creationTimestamp", 0, "Time since the job was created."),
    ("REASON", "string", ".status.reason", 1, "Reason of the condition that explains the state."),
    ("CHECKPOINT", "integer", ".status.checkpoint.step", 1, "Step of the newest committed checkpoint."),
    ("LAST-INCIDENT", "string", ".status.lastIncident", 1, "Cause and slot of the newest incident."),
)
"""Name, type, path, priority (1: only with `-o wide`), description. Each path is plain: a dot and a field."""


def crd() -> dict[str, Any]:
    """The whole CustomResourceDefinition."""
    names = {
        "kind": KIND,
        "listKind": f"{KIND}List",
        "plural": PLURAL,
        "singular": KIND.lower(),
        "shortNames": ["tj"],
        "categories": ["ropeteam"],
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_printer_column(*column) for column in COLUMNS],
        "schema": {"openAPIV3Schema": _explained_schema()},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def job_schema() -> Schema:
    """The structural schema of a whole TrainingJob, with each CEL rule at the path that it validates."""
    text = {"type": "string"}
    schema = {
        "description": TrainingJob.__doc__,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": f"API group and version of the object: {API_VERSION}.", **text},
            "kind": {"description": f"Kind of the object: {KIND}.", **text},
            "metadata": {"type": "object"},  # a real API server refuses a description here
            "spec": _with_rules(spec_schema(), "spec"),
            "status": preserving_unknown_fields(structural_schema(JobStatus, defaults=False)),
        },
    }
    return _with_rules(schema, "")


def _explained_schema() -> Schema:
    """`job_schema` with defaults and limits of spec in its descriptions. Not in status, which nobody writes
    by hand."""
    schema = job_schema()
    properties = schema["properties"]
    return {**schema, "properties": {**properties, "spec": with_limits_explained(properties["spec"])}}


def _printer_column(name: str, kind: str, path: str, priority: int, description: str) -> dict[str, Any]:
    """A row of COLUMNS as an entry of additionalPrinterColumns."""
    column = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return {**column, "priority": priority} if priority else column


def _with_rules(schema: Schema, path: str) -> Schema:
    """A copy of `schema` with the CEL rules of `path`, and of the fields below it. `path`: dotted; "" is the
    whole object, whose fields are not entered: the caller has added the rules of spec, and status has none.
    CHANGES compares two specs, so it is a rule of the whole object."""
    rules = [{"rule": rule.cel, "message": rule.message} for rule in RULES if rule.path == path]
    if not path:
        rules += [{"rule": CHANGES.cel, "messageExpression": CHANGES.message_cel}]
    elif "properties" in schema:
        below = {name: _with_rules(each, f"{path}.{name}") for name, each in schema["properties"].items()}
        schema = {**schema, "properties": below}
    return {**schema, "x-kubernetes-validations": rules} if rules else schema


def to_yaml() -> str:
    """Text of FILE."""
    return _HEADER + yaml.dump(crd(), Dumper=_NoAliases, sort_keys=False, width=110)


class _NoAliases(yaml.SafeDumper):
    """Writes each object in full, also one that occurs twice: no `&anchor` and `*alias`, for human
    readers."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def main(arguments: list[str], root: Path) -> int:
    """Write both generated files below `root`; with `--check` only compare them. Returns the exit status: 1
    if a file differs."""
    texts = {root / FILE: to_yaml(), root / editor.FILE: editor.to_json()}
    if "--check" not in arguments:
        for file, text in texts.items():
            file.write_text(text)
            print(f"wrote {file}: {len(text.encode())} bytes")
        return 0
    changed = [file for file, text in texts.items() if not (file.exists() and file.read_text() == text)]
    for file in texts:
        differs = "differs from the models; run `make crds`"
        print(f"{file} {differs if file in changed else 'is what the models define'}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path()))
