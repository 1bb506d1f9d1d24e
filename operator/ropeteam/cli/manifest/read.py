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

OF_OTHERS = frozenset({"TrainJob", "PyTorchJob", "MPIJob", "JobSet", "RayJob", "TFJob"})
_USAGE = "To run a command: ropeteam run -n 2 -- torchrun train.py"
MOST_BYTES = 3 << 20
"""Limit of a request to an API server."""


@dataclass(frozen=True)
class Manifest:
    """`others` in the order of the file; they are applied before the job."""

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
    """Manifest of a file, or of a command to run in so many pods (1). Raises InvalidInput.

    workers: for a file, instead of its spec.workers.
    """
    first, program = arguments[0], shutil.which(arguments[0])
    single = len(arguments) == 1 and program is None
    if first.endswith(usage.MANIFESTS) or (single and Path(first).is_file() and not first.endswith(".py")):
        return _of_file(arguments, workers)
    if first.endswith(".py") and program is None:
        raise InvalidInput(usage.script_message(arguments, workers))
    if single:
        raise InvalidInput(f"{first}: no such file or program. {_USAGE}")
    return _of_command(arguments, workers or 1)


def read_several(arguments: tuple[str, ...], workers: int | None) -> list[Manifest]:
    """Manifests of files, or of one command. Raises InvalidInput."""
    if all(argument.endswith(usage.MANIFESTS) for argument in arguments):
        return [read_arguments((argument,), workers) for argument in arguments]
    return [read_arguments(arguments, workers)]


def _of_file(arguments: tuple[str, ...], workers: int | None) -> Manifest:
    file, *command = arguments
    if command:
        raise InvalidInput(
            f"{file} is a manifest, which has its own command; leave out: {shlex.join(command)}"
        )
    if not Path(file).is_file():
        raise InvalidInput(f"{file}: no such file. {_USAGE}")
    return read_manifest(Path(file), workers)


def _of_command(command: tuple[str, ...], workers: int) -> Manifest:
    spec = {"workers": workers, "image": "local", "command": list(command)}
    job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": _name_of(command)}, "spec": spec}
    if errors := list(problems(job, is_typed=True)):
        raise InvalidInput("\n  ".join(["this command is invalid:", *errors]))
    return Manifest(_with_names(job, Path("the command")), ())


def _name_of(command: tuple[str, ...]) -> str:
    """Name of its script, as Kubernetes accepts it."""
    script = next((argument for argument in command if argument.endswith(".py")), command[0])
    name = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-")
    return name[:40].strip("-") if name[:1].isalpha() else "job"


def read_manifest(file: Path, workers: int | None = None) -> Manifest:
    """Read a file with exactly one TrainingJob, and the objects it needs. Raises InvalidInput with every
    problem.

    workers: instead of spec.workers.
    """
    documents = [_with_names(document, file) for document in _load(file)]
    jobs = [document for document in documents if document["kind"] == KIND]
    if len(jobs) != 1:
        raise InvalidInput(f"{file}: {len(jobs)} documents of kind {KIND}; exactly one can be run")
    if workers is not None and isinstance(jobs[0].get("spec"), dict):
        jobs[0]["spec"]["workers"] = workers
    errors = list(problems(jobs[0]))
    if errors:
        raise InvalidInput("\n  ".join([f"{file} is invalid:", *errors]))
    return Manifest(jobs[0], tuple(document for document in documents if document is not jobs[0]))


def problems(job: Object, is_typed: bool = False) -> Iterator[str]:
    """Sentences: the field, its problem, what to change. `is_typed`: the user typed the command, and has no
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


def needs_image(job: Object) -> bool:
    """Whether the job has no image. `run` needs none, every cluster does."""
    return not (job["spec"].get("image") or trainer_container(job["spec"]).get("image"))


def _load(file: Path) -> list[Any]:
    try:
        with file.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise InvalidInput(
                f"{file} has more than {MOST_BYTES} bytes, the limit of a server; make it smaller"
            )
        return [each for each in manifestyaml.documents(data.decode()) if each is not None]
    except manifestyaml.ManifestError as error:
        raise InvalidInput(f"{file}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {file}: {error}") from None


def _with_names(document: Any, file: Path) -> Object:
    """The document with its namespace written down. Raises InvalidInput if it is no Kubernetes object."""
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise InvalidInput(f"{file}: a document without `kind` is not a Kubernetes object")
    meta = document.get("metadata")
    if not isinstance(meta, dict) or not isinstance(meta.get("name"), str):
        raise InvalidInput(f"{file}: {document['kind']} without metadata.name")
    if document["kind"] in OF_OTHERS:
        text = "belongs to another operator; Ropeteam runs a TrainingJob, which is shorter: see README"
        raise InvalidInput(f"{file}: kind {document['kind']} {text}")
    if not ObjectRef.knows(document["kind"]):
        raise InvalidInput(f"{file}: kind {document['kind']} cannot be applied here; use kubectl apply")
    for field in ("labels", "annotations"):
        entries = meta[field] = meta.get(field) or {}
        if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
            raise InvalidInput(f"{file}: metadata.{field} is not a map of text values; put them in quotes")
    if not isinstance(meta.get("namespace", ""), str):
        raise InvalidInput(f"{file}: metadata.namespace is not text; put it in quotes")
    if document["kind"] not in CLUSTER_WIDE:
        meta.setdefault("namespace", "default")
    return document
