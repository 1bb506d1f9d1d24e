"""The campaign's table: TOML files beside this module. Pure: text in, projects and rows out, or RowError.

    [project.nanogpt]                     a public repository, at one commit
    repo = "karpathy/nanoGPT"
    commit = "..."
                                          without both: our own, in tests/programs/scripts
    packages = ["tiktoken"]               with what they need, but for torch and numpy, which are ours
    bare = ["torchvision==0.28.0"]        without what they need

    [[row]]                               one program of it under one launcher
    name = "nanogpt-train"
    project = "nanogpt"
    command = "torchrun --nproc-per-node={processes} train.py"      or a list of words
    shapes = ["1x1", "2x1"]               workers x processesPerWorker

The other keys of a row are the fields of `Row`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

SHAPES = ("1x1", "2x1", "1x2", "2x2")
_LAUNCHERS = {
    "torchrun": "torchrun",
    "accelerate": "accelerate launch",
    "accelerate-launch": "accelerate launch",
    "deepspeed": "deepspeed",
    "fabric": "fabric run",
    "lightning": "lightning run",
    "tune": "tune run",
    "composer": "composer",
    "uv": "uv run",
    "env": "env",
    "bash": "bash script",
    "mpirun": "mpirun",
    "mpiexec": "mpirun",
    "srun": "srun",
    "horovodrun": "horovodrun",
    "conda": "conda run",
    "nohup": "nohup",
    "nice": "nice",
    "colossalai": "colossalai run",
}


class RowError(ValueError):
    """The table is wrong: which row, which key, and what it may be."""


@dataclass(frozen=True)
class Project:
    name: str
    repo: str = ""
    """Empty: ours."""
    commit: str = ""
    packages: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    name: str
    project: Project
    command: str
    shapes: tuple[str, ...]
    seconds: int = 15
    """How long it trains, about. A run ends red a good while after that."""
    prepare: tuple[str, ...] = ()
    """Shell lines, run once in a copy of the checkout, mostly to make tiny data."""
    cpu: tuple[str, ...] = ()
    """Files that insist on CUDA: cuda_to_cpu.sed is run over them."""
    edits: tuple[str, ...] = ()
    """Every other change of the program that `prepare` makes, in words."""
    env: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the TrainingJob beside command, workers, processesPerWorker and env."""
    trains: str = ""
    """A regular expression of lines in its log that appear again and again while it trains."""
    kill: bool = True
    world: int = 0
    """Ranks of the one world, if they are not workers x processesPerWorker."""
    refused: str = ""
    """A part of the refusal that is right for this row."""
    reason: str = ""
    """The reason of the condition that is right for this row."""
    message: str = ""
    """A regular expression of that condition's message."""
    within: float = 0.0
    """Seconds after the first smaller group, by which that condition has to be there."""
    end: str = ""
    """The reason of its end that is right. Such a row is classified by its end, not by its worlds."""
    cause: str = ""
    """A regular expression of the message of its newest incident, and its rank."""
    rank: int | None = None
    folder: str = "."
    """Where in the checkout the command runs."""

    def argv(self, shape: str) -> list[str]:
        """The command in this shape."""
        workers, processes = counts(shape)
        text = self.command
        for name, number in (("workers", workers), ("processes", processes), ("world", workers * processes)):
            text = text.replace("{" + name + "}", str(number))
        return shlex.split(text)

    def expected(self, shape: str) -> int:
        """The size of its one world."""
        workers, processes = counts(shape)
        return self.world or workers * processes

    @property
    def launcher(self) -> str:
        return launcher(self.argv("1x1"))


def counts(shape: str) -> tuple[int, int]:
    """(workers, processes per worker)"""
    workers, _, processes = shape.partition("x")
    return int(workers), int(processes)


def launcher(argv: list[str]) -> str:
    """The program's launcher, as a person would name it."""
    name = argv[0].rpartition("/")[2]
    if name in ("bash", "sh") and any(re.fullmatch("-[a-z]*c", argument) for argument in argv[1:]):
        return f"{name} -c"
    if not name.startswith("python"):
        return _LAUNCHERS.get(name, name)
    rest = [argument for argument in argv[1:] if argument in ("-m", "-c") or not argument.startswith("-")]
    if rest[0] == "-m" and rest[1].startswith(("torch.", "accelerate.", "lightning.", "deepspeed.")):
        return f"python -m {rest[1]}"
    return f"python {rest[0]}" if rest[0] in ("-m", "-c") else "python"


def read(tables: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """All rows of parsed TOML files, by file name. Raises RowError."""
    projects: dict[str, Project] = {}
    for file, table in tables.items():
        for name, given in table.get("project", {}).items():
            if name in projects:
                raise RowError(f"{file}: project {name} is in two files: name it once")
            projects[name] = _project(file, name, given)
    rows = [_row(file, given, projects) for file, table in tables.items() for given in table.get("row", [])]
    names = [row.name for row in rows]
    for name in names:
        if names.count(name) > 1:
            raise RowError(f"row {name} is there twice: a name is the key of its results")
    return rows


def _project(file: str, name: str, given: Mapping[str, Any]) -> Project:
    _known(f"{file}: project {name}", given, (each.name for each in fields(Project)))
    if not {"repo", "commit"} & set(given):
        return Project(name=name, **{key: _frozen(value) for key, value in given.items()})
    if not re.fullmatch(r"[0-9a-f]{40}", str(given.get("commit"))):
        raise RowError(f"{file}: project {name}: commit has to be 40 hexadecimal digits")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(given.get("repo"))):
        raise RowError(f"{file}: project {name}: repo has to be owner/name")
    return Project(name=name, **{key: _frozen(value) for key, value in given.items()})


def _row(file: str, given: Mapping[str, Any], projects: Mapping[str, Project]) -> Row:
    name = str(given.get("name", ""))
    where = f"{file}: row {name or given}"
    _known(where, given, (each.name for each in fields(Row)))
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,31}", name):
        raise RowError(f"{where}: name has to be lower case letters, digits and dashes, 32 at most")
    if given.get("project") not in projects:
        raise RowError(f"{where}: project {given.get('project')} is in no file")
    if not given.get("command"):
        raise RowError(f"{where}: command is missing")
    for shape in given.get("shapes") or ["none"]:
        if shape not in SHAPES:
            raise RowError(f"{where}: shapes: {shape} is none of {', '.join(SHAPES)}")
    if given.get("refused") and given.get("reason"):
        raise RowError(f"{where}: refused and reason exclude each other")
    values = {key: _frozen(value) for key, value in given.items()} | {"project": projects[given["project"]]}
    if isinstance(given["command"], list):
        values["command"] = shlex.join(given["command"])
    return Row(**values)


def _known(where: str, given: Mapping[str, Any], names: Iterable[str]) -> None:
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise RowError(f"{where}: unknown key {unknown[0]}")


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
