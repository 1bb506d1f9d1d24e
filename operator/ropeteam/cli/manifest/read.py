"""Read a manifest from a file or a command line: its documents, and their problems."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropeteam.api import commands, strategy
from ropeteam.api.job import API_VERSION, KIND, TrainingJobSpec
from ropeteam.api.rule import trainer_container
from ropeteam.api.rules import validate as rules
from ropeteam.cli.errors import InvalidInput
from ropeteam.cli.manifest import manifestyaml, usage
from ropeteam.controller.client.apiclient import CLUSTER_WIDE, Object, ObjectRef

_KINDS_OF_OTHERS = frozenset({"TrainJob", "PyTorchJob", "MPIJob", "JobSet", "RayJob", "TFJob"})
"""Kinds of other operators that users try first."""
_USAGE = "To run a command: ropeteam run -n 2 -- torchrun train.py"
MOST_BYTES = 3 << 20
"""Limit of a request to an API server, which limits a manifest too."""


@dataclass(frozen=True)
class Manifest:
    """One job, and the other objects of its file, in that order; they are applied before the job."""

    job: Object
    others: tuple[Object, ...]

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def spec(self) -> TrainingJobSpec:
        return TrainingJobSpec.model_validate(self.job["spec"])

    @property
    def namespace(self) -> str:
        return str(self.job["metadata"]["namespace"])


def read_arguments(arguments: tuple[str, ...], workers: int | None) -> Manifest:
    """Manifest of a command line: a file, or a command to run. First match wins: a name like a manifest's, or
    one file that is no program and no script; a script, which is an error; a program. Raises InvalidInput,
    with the line to write instead.

    workers: of a file, instead of spec.workers; of a command, default 1.
    """
    first, program = arguments[0], shutil.which(arguments[0])
    single = len(arguments) == 1 and program is None
    if first.endswith(usage.MANIFESTS) or (single and Path(first).is_file() and not first.endswith(".py")):
        return _manifest_of_file(arguments, workers)
    if first.endswith(".py") and program is None:
        raise InvalidInput(usage.script_message(arguments, workers))
    if single:
        raise InvalidInput(f"{first}: no such file or program. {_USAGE}")
    return _manifest_of_command(arguments, workers or 1)


def manifests_of_arguments(arguments: tuple[str, ...], workers: int | None) -> list[Manifest]:
    """Manifests of a command line: one for each argument if all are named like manifests (usage.MANIFESTS),
    else the one of read_arguments(). Raises InvalidInput, also for a file that does not exist."""
    if all(argument.endswith(usage.MANIFESTS) for argument in arguments):
        return [read_arguments((argument,), workers) for argument in arguments]
    return [read_arguments(arguments, workers)]


def _manifest_of_file(arguments: tuple[str, ...], workers: int | None) -> Manifest:
    """Manifest of the first argument, which must be the only one."""
    file, *command = arguments
    if command:
        raise InvalidInput(
            f"{file} is a manifest, which has its own command; leave out: {shlex.join(command)}"
        )
    if not Path(file).is_file():
        raise InvalidInput(f"{file}: no such file. {_USAGE}")
    return read_manifest(Path(file), workers)


def _manifest_of_command(command: tuple[str, ...], workers: int) -> Manifest:
    """Manifest of a job on the local cluster. Raises InvalidInput for a command that the agent cannot
    start."""
    image = "local"  # a placeholder: the field is required, and the local cluster uses no image
    spec = {"workers": workers, "image": image, "command": list(command)}
    metadata = {"name": _job_name(command)}
    job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    if errors := list(_job_problems(job, is_typed=True)):
        raise InvalidInput("\n  ".join(["this command is invalid:", *errors]))
    return Manifest(_checked_document(job, Path("the command")), ())


def _job_name(command: tuple[str, ...]) -> str:
    """Name of the first script, or else of the program, in the characters that Kubernetes accepts; `job` if
    it does not begin with a letter. At most 40 characters: names of pods are longer."""
    script = next((argument for argument in command if argument.endswith(".py")), command[0])
    name = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-")
    return name[:40].strip("-") if name[:1].isalpha() else "job"


def read_manifest(file: Path, workers: int | None = None) -> Manifest:
    """Read a file with exactly one TrainingJob, and the objects it needs. Raises InvalidInput: the first
    problem of a document, or else all problems of the job.

    workers: instead of spec.workers.
    """
    documents = [_checked_document(document, file) for document in _read_documents(file)]
    jobs = [document for document in documents if document["kind"] == KIND]
    if len(jobs) != 1:
        raise InvalidInput(f"{file}: {len(jobs)} documents of kind {KIND}; write exactly one into each file")
    if workers is not None and isinstance(jobs[0].get("spec"), dict):  # what is no map is reported below
        jobs[0]["spec"]["workers"] = workers
    errors = list(_job_problems(jobs[0]))
    if errors:
        raise InvalidInput("\n  ".join([f"{file} is invalid:", *errors]))
    return Manifest(jobs[0], tuple(document for document in documents if document is not jobs[0]))


def _job_problems(job: Object, is_typed: bool = False) -> Iterator[str]:
    """Problems of a job, each a sentence: the field, its problem, what to change. The strategy and the
    command are read only if all fields are valid. `is_typed`: the user typed the command, and has no
    manifest."""
    if job.get("apiVersion") != API_VERSION:
        yield f"apiVersion: {job.get('apiVersion')!r} is unknown; write {API_VERSION}"
    for field in job.keys() - {"apiVersion", "kind", "metadata", "spec", "status"}:
        yield f"{field}: unknown field; did you mean spec.{field}?"
    yield from rules.validate_name(job["metadata"]["name"])
    errors = rules.validate(job.get("spec"))
    yield from errors
    if not errors:
        spec = TrainingJobSpec.model_validate(job["spec"])
        yield from strategy.problems(spec.strategy, spec.workers * spec.processes)
        found = commands.problem(spec, set_workers="write -n") if is_typed else commands.problem(spec)
        if found:
            yield found if is_typed else f"spec.command: {found}"


def has_image(job: Object) -> bool:
    """Whether the trainer container has an image, in spec.image or the template: every cluster needs one, the
    local one does not."""
    return bool(job["spec"].get("image") or trainer_container(job["spec"]).get("image"))


def _read_documents(file: Path) -> list[Any]:
    """Documents of a file that are not empty, of any type. Raises InvalidInput."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise InvalidInput(
                f"{file} has more than {MOST_BYTES} bytes, the limit of an API server; make it smaller"
            )
        return [each for each in manifestyaml.documents(data.decode()) if each is not None]
    except manifestyaml.ManifestError as error:
        raise InvalidInput(f"{file}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {file}: {error}") from None


def _checked_document(document: Any, file: Path) -> Object:
    """`document` itself, with labels, annotations and namespace filled into its metadata, in place. Raises
    InvalidInput if it is no Kubernetes object, or of a kind that cannot be applied here."""
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise InvalidInput(f"{file}: a document without `kind` is not a Kubernetes object; write its kind")
    meta = document.get("metadata")
    if not isinstance(meta, dict) or not isinstance(meta.get("name"), str):
        raise InvalidInput(f"{file}: {document['kind']} without metadata.name; give it a name, as text")
    if document["kind"] in _KINDS_OF_OTHERS:
        raise InvalidInput(
            f"{file}: kind {document['kind']} belongs to another operator; Ropeteam runs a TrainingJob: see "
            "docs/guides/migrate.md"
        )
    if not ObjectRef.knows(document["kind"]):
        raise InvalidInput(f"{file}: kind {document['kind']} cannot be applied here; use kubectl apply")
    for field in ("labels", "annotations"):
        entries = meta[field] = meta.get(field) or {}
        if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
            raise InvalidInput(
                f"{file}: metadata.{field} of {document['kind']} {meta['name']} is not a map of text values; "
                "put them in quotes"
            )
    if not isinstance(meta.get("namespace", ""), str):
        raise InvalidInput(
            f"{file}: metadata.namespace of {document['kind']} {meta['name']} is not text; put it in quotes"
        )
    if document["kind"] not in CLUSTER_WIDE:
        meta.setdefault("namespace", "default")
    return document
