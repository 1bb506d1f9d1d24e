"""A manifest: its documents, what is wrong with them, and how they get into a cluster."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropeteam.api import commands, strategy
from ropeteam.api.job import API_VERSION, KIND, TrainingJobSpec
from ropeteam.api.rule import trainer
from ropeteam.api.rules import validate as rules
from ropeteam.cli.errors import BadInput
from ropeteam.cli.manifest import manifestyaml, usage
from ropeteam.controller.client.apiclient import (
    CLUSTER_WIDE,
    AlreadyOurs,
    ApiClient,
    ApiError,
    Conflict,
    Object,
    ObjectRef,
)

WORKDIR = "ropeteam.dev/workdir"
"""Where relative paths in a command begin, on the local cluster."""
OF_OTHERS = frozenset({"TrainJob", "PyTorchJob", "MPIJob", "JobSet", "RayJob", "TFJob"})
_HOW = "To run a command: ropeteam run -n 2 -- torchrun train.py"
MOST_BYTES = 3 << 20
"""Of a request to an API server."""


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


def given(words: tuple[str, ...], workers: int | None) -> Manifest:
    """A manifest's file, or a command to run in so many pods (1). Raises BadInput.

    workers: of a manifest, instead of its spec.workers.
    """
    first, program = words[0], shutil.which(words[0])
    alone = len(words) == 1 and program is None
    if first.endswith(usage.MANIFESTS) or (alone and Path(first).is_file() and not first.endswith(".py")):
        return _written(words, workers)
    if first.endswith(".py") and program is None:
        raise BadInput(usage.of_script(words, workers))
    if alone:
        raise BadInput(f"{first}: no such file or program. {_HOW}")
    return _of_command(words, workers or 1)


def several(words: tuple[str, ...], workers: int | None) -> list[Manifest]:
    """Manifests, or one command. Raises BadInput."""
    if all(word.endswith(usage.MANIFESTS) for word in words):
        return [given((word,), workers) for word in words]
    return [given(words, workers)]


def _written(words: tuple[str, ...], workers: int | None) -> Manifest:
    file, *more = words
    if more:
        raise BadInput(f"{file} is a manifest; its command stands in it, so leave out: {shlex.join(more)}")
    if not Path(file).is_file():
        raise BadInput(f"{file}: no such file. {_HOW}")
    return read(Path(file), workers)


def _of_command(words: tuple[str, ...], workers: int) -> Manifest:
    spec = {"workers": workers, "image": "local", "command": list(words)}
    job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": _name_of(words)}, "spec": spec}
    if faults := list(problems(job)):
        plain = (
            each.removeprefix("spec.command: ").replace("set spec.workers to", "write -n") for each in faults
        )
        raise BadInput("\n  ".join(["this command cannot work:", *plain]))
    return Manifest(_with_names(job, Path("the command")), ())


def _name_of(words: tuple[str, ...]) -> str:
    """That of its script, as Kubernetes takes it."""
    script = next((word for word in words if word.endswith(".py")), words[0])
    plain = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-")
    return plain[:40].strip("-") if plain[:1].isalpha() else "job"


def read(file: Path, workers: int | None = None) -> Manifest:
    """Exactly one TrainingJob, and what it needs. Raises BadInput with every fault of it.

    workers: instead of spec.workers.
    """
    documents = [_with_names(document, file) for document in _load(file)]
    jobs = [document for document in documents if document["kind"] == KIND]
    if len(jobs) != 1:
        raise BadInput(f"{file}: {len(jobs)} documents of kind {KIND}; exactly one can be run")
    if workers is not None and isinstance(jobs[0].get("spec"), dict):
        jobs[0]["spec"]["workers"] = workers
    faults = list(problems(jobs[0]))
    if faults:
        raise BadInput("\n  ".join([f"{file} cannot work:", *faults]))
    return Manifest(jobs[0], tuple(document for document in documents if document is not jobs[0]))


def problems(job: Object) -> Iterator[str]:
    """Sentences: field, what is wrong, what to change."""
    if job.get("apiVersion") != API_VERSION:
        yield f"apiVersion: {job.get('apiVersion')!r} is not known; write {API_VERSION}"
    for field in job.keys() - {"apiVersion", "kind", "metadata", "spec", "status"}:
        yield f"{field}: unknown field; did you mean spec.{field}?"
    yield from rules.validate_name(job["metadata"]["name"])
    faults = rules.validate(job.get("spec"))
    yield from faults
    if not faults:
        spec = TrainingJobSpec.model_validate(job["spec"])
        yield from strategy.problems(spec.strategy, spec.workers * spec.processes)
        yield from commands.problems(spec)


def lacks_image(job: Object) -> bool:
    """Which `run` does without, and no cluster."""
    return not (job["spec"].get("image") or trainer(job["spec"]).get("image"))


async def make_namespace(client: ApiClient, name: str) -> None:
    """On a local cluster, which begins with `default` alone."""
    with suppress(AlreadyOurs, Conflict):
        await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


async def apply(client: ApiClient, manifest: Manifest, workdir: Path | None) -> None:
    """Raises BadInput when the server refuses a document. workdir: of a job on the local cluster."""
    if workdir is not None:
        manifest.job["metadata"].setdefault("annotations", {}).setdefault(WORKDIR, str(workdir))
    for thing in (*manifest.others, manifest.job):
        try:
            await _apply_one(client, thing)
        except ApiError as error:
            meta = thing["metadata"]
            raise BadInput(f"{thing['kind']} {meta['name']} was refused: {error}") from None


async def _apply_one(client: ApiClient, thing: Object) -> None:
    try:
        await client.create(thing)
    except (AlreadyOurs, Conflict):
        await client.merge(ObjectRef.of(thing), thing)


def _load(file: Path) -> list[Any]:
    try:
        with file.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise BadInput(f"{file} has more than {MOST_BYTES} bytes, which no server takes; make it smaller")
        return [each for each in manifestyaml.documents(data.decode()) if each is not None]
    except manifestyaml.Refused as error:
        raise BadInput(f"{file}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {file}: {error}") from None


def _with_names(document: Any, file: Path) -> Object:
    """The document with its namespace written down. Raises BadInput if it is no Kubernetes object."""
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise BadInput(f"{file}: a document without `kind` is no Kubernetes object")
    meta = document.get("metadata")
    if not isinstance(meta, dict) or not isinstance(meta.get("name"), str):
        raise BadInput(f"{file}: {document['kind']} without metadata.name")
    if document["kind"] in OF_OTHERS:
        text = "belongs to another operator; Ropeteam runs a TrainingJob, which is shorter: see README"
        raise BadInput(f"{file}: kind {document['kind']} {text}")
    if not ObjectRef.knows(document["kind"]):
        raise BadInput(f"{file}: kind {document['kind']} cannot be applied here; use kubectl apply")
    for field in ("labels", "annotations"):
        words = meta[field] = meta.get(field) or {}
        if not isinstance(words, dict) or not all(isinstance(word, str) for word in words.values()):
            raise BadInput(f"{file}: metadata.{field} is no map of texts; put its values in quotes")
    if not isinstance(meta.get("namespace", ""), str):
        raise BadInput(f"{file}: metadata.namespace is no text; put it in quotes")
    if document["kind"] not in CLUSTER_WIDE:
        meta.setdefault("namespace", "default")
    return document
