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
from ropeteam.api.job import GROUP, KIND, PLURAL, VERSION, TrainingJob
from ropeteam.api.rules.rulebook import CHANGES, RULES
from ropeteam.api.rules.validate import spec_schema
from ropeteam.api.schema.structural import Schema, opened, structural
from ropeteam.api.status import JobStatus

MAX_BYTES = 200 * 1024
FILE = Path("crds") / f"{GROUP}_{PLURAL}.yaml"
_HEADER = "# Made by `make crds` from operator/ropeteam/api. Do not edit.\n"

COLUMNS = (
    ("STATE", "string", ".status.state", 0, "State of the job in one word."),
    ("READY", "string", ".status.workers.summary", 0, "Ready and desired pods."),
    ("STEP", "integer", ".status.progress.step", 0, "Last step that rank 0 has reported."),
    ("PROGRESS", "string", ".status.progress.summary", 0, "Percentage of all steps that is done."),
    ("ETA", "string", ".status.progress.eta", 0, "Estimated time until the last step."),
    (
        "FAILURES",
        "string",
        ".status.failures.summary",
        0,
        "Charged and allowed incidents.",
    ),
    ("AGE", "date", ".metadata.creationTimestamp", 0, "Time since the job was created."),
    ("REASON", "string", ".status.reason", 1, "Reason for the state."),
    ("CHECKPOINT", "integer", ".status.checkpoint.step", 1, "Step of the newest durable checkpoint."),
    ("LAST-INCIDENT", "string", ".status.lastIncident", 1, "The newest incident."),
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
        "additionalPrinterColumns": [_column(*column) for column in COLUMNS],
        "schema": {"openAPIV3Schema": job_schema()},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def job_schema() -> Schema:
    """The schema of a whole TrainingJob, with the rules at their places."""
    schema = {
        "description": TrainingJob.__doc__,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": "ropeteam.dev/v1alpha1.", "type": "string"},
            "kind": {"description": "TrainingJob.", "type": "string"},
            "metadata": {"type": "object"},  # a real API server refuses a description here
            "spec": _ruled(spec_schema(), "spec"),
            "status": opened(structural(JobStatus, defaults=False)),
        },
    }
    return _ruled(schema, "")


def _column(name: str, kind: str, path: str, priority: int, description: str) -> dict[str, Any]:
    column = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return {**column, "priority": priority} if priority else column


def _ruled(schema: Schema, path: str) -> Schema:
    """`schema` with the rules of its path, and inside spec those of the paths below."""
    rules = [{"rule": rule.cel, "message": rule.message} for rule in RULES if rule.path == path]
    if not path:
        rules += [{"rule": CHANGES.cel, "messageExpression": CHANGES.message_cel}]
    elif "properties" in schema:
        below = {name: _ruled(each, f"{path}.{name}") for name, each in schema["properties"].items()}
        schema = {**schema, "properties": below}
    return {**schema, "x-kubernetes-validations": rules} if rules else schema


def to_yaml() -> str:
    return _HEADER + yaml.dump(crd(), Dumper=_NoAliases, sort_keys=False, width=110)


class _NoAliases(yaml.SafeDumper):
    """Writes a piece that occurs twice in full: people read the file."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def main(arguments: list[str], root: Path) -> int:
    texts = {root / FILE: to_yaml(), root / editor.FILE: editor.to_json()}
    if "--check" not in arguments:
        for file, text in texts.items():
            file.write_text(text)
            print(f"wrote {file}: {len(text.encode())} bytes")
        return 0
    drifted = [file for file, text in texts.items() if not (file.exists() and file.read_text() == text)]
    for file in texts:
        differs = "differs from the models; run `make crds`"
        print(f"{file} {differs if file in drifted else 'is what the models define'}")
    return 1 if drifted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path()))
