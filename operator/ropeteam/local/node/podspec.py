"""From a container's spec to a command line of this machine: environment, `$(VAR)`, mounts.

There is no mount namespace. Where command, arguments, environment and working directory name a `mountPath`,
they get the volume's folder instead. A path inside a script is not replaced.
"""

from __future__ import annotations

import base64
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropeteam.api.rule import at
from ropeteam.local import resources as r
from ropeteam.local.resources import Object, Resource
from ropeteam_trainer.contract.errors import RopeteamError

Lookup = Callable[[Resource, str], Object | None]
"""An object of the pod's namespace, by kind and name."""


class ContainerError(RopeteamError):
    """A container cannot start."""


class ContainerNotReady(ContainerError):
    """A container cannot start yet, for a reason that the user can change while it waits."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


class ContainerStartError(ContainerError):
    """A container can never start."""


@dataclass(frozen=True)
class ExecutionContext:
    """Replacement for the image and the mount namespace."""

    mounts: Mapping[str, Path]
    """mountPath to folder."""
    environment: Mapping[str, str]
    folder: Path
    """The working directory of a container that sets none."""


@dataclass(frozen=True)
class ProcessSpec:
    """The command that the shim runs. `command[0]` is a path."""

    command: list[str]
    environment: dict[str, str]
    folder: Path


def process_spec(pod: Object, container: Object, context: ExecutionContext, lookup: Lookup) -> ProcessSpec:
    """The process of a container: mountPaths replaced, variables expanded. Order: envFrom, then env, in which
    a variable may name earlier ones; then the command. Raises ContainerNotReady for a Secret or ConfigMap
    that may still be created, ContainerStartError for permanent errors."""
    rewrite = _mount_rewriter(context.mounts)
    declared = _environment_from(container.get("envFrom", ()), lookup)
    for row in container.get("env", ()):
        value = _variable_value(pod, row, lookup)
        if value is not None:
            declared[row["name"]] = _expand(value, declared) if "value" in row else value
    environment = {**context.environment, **{name: rewrite(value) for name, value in declared.items()}}
    arguments = [*container.get("command", ()), *container.get("args", ())]
    if not container.get("command"):
        raise ContainerStartError(
            f"container {container['name']} has no command. The local cluster does not use the image, so its "
            "entrypoint is unknown; write the command in the manifest"
        )
    arguments = [rewrite(_expand(argument, declared)) for argument in arguments]
    folder = context.folder / rewrite(container.get("workingDir", ""))
    if not folder.is_dir():
        raise ContainerStartError(
            f"working directory {folder} does not exist on this machine (the image is not used); create it, "
            "or change workingDir"
        )
    return ProcessSpec([find_command(arguments[0], environment, folder), *arguments[1:]], environment, folder)


def find_command(name: str, environment: Mapping[str, str], folder: Path) -> str:
    """Path of the program that a command names. First match wins: a path, relative to `folder`; python and
    torchrun beside our own Python, which has torch, as the image's would; PATH of the environment. Raises
    ContainerStartError if there is none."""
    if "/" in name:
        path = folder / name
        if not path.is_file():
            raise ContainerStartError(f'exec: "{path}": no such file on this machine (the image is not used)')
        return str(path)
    if re.fullmatch(r"python[0-9.]*|torchrun", name):
        ours = Path(sys.prefix, "bin", name)
        if ours.exists():
            return str(ours)
        if name in ("python", "python3"):
            return sys.executable
    found = shutil.which(name, path=environment.get("PATH"))
    if not found:
        raise ContainerStartError(
            f'exec: "{name}": executable file not found in $PATH (of this machine: the image is not used)'
        )
    return found


def _mount_rewriter(mounts: Mapping[str, Path]) -> Callable[[str], str]:
    """A function that replaces each mountPath in a text, where it is a whole path or its beginning, with the
    folder of the volume."""
    if not mounts:
        return lambda text: text
    longest_first = sorted(mounts, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w.\-/])({'|'.join(map(re.escape, longest_first))})(?![\w.\-])")
    return lambda text: pattern.sub(lambda found: str(mounts[found[1]]), text)


def _expand(text: str, known: Mapping[str, str]) -> str:
    """Expand `$(NAME)`; `$$(NAME)` is the escape, and an unknown name stays as it is."""

    def replacement(found: re.Match[str]) -> str:
        if found[0].startswith("$$"):
            return found[0][1:]
        return known.get(found[1], found[0])

    return re.sub(r"\$?\$\(([^()\s]+)\)", replacement, text)


def _variable_value(pod: Object, row: Object, lookup: Lookup) -> str | None:
    """The value of a variable of `env`, not expanded. None: its source is optional and missing. Raises
    ContainerNotReady, ContainerStartError."""
    source = row.get("valueFrom")
    if not source:
        return str(row.get("value", ""))
    if "fieldRef" in source:
        return str(field_of(pod, source["fieldRef"]["fieldPath"]) or "")
    for kind, resource in (("secretKeyRef", r.SECRETS), ("configMapKeyRef", r.CONFIG_MAPS)):
        if kind in source:
            return _referenced_value(resource, source[kind], lookup)
    raise ContainerStartError(
        f"env {row['name']}: the local cluster does not support valueFrom.{next(iter(source))}; use value, "
        "fieldRef, secretKeyRef or configMapKeyRef"
    )


def field_of(pod: Object, path: str) -> Any:
    """The value at the fieldPath of a fieldRef. None: it is missing."""
    found = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    return (at(pod, f"metadata.{found[1]}") or {}).get(found[2]) if found else at(pod, path)


def _environment_from(sources: Iterable[Object], lookup: Lookup) -> dict[str, str]:
    """Variables of `envFrom`: all keys of Secrets and ConfigMaps; a later source wins. Raises
    ContainerNotReady if one is missing and not optional."""
    found = {}
    for source in sources:
        for kind, resource in (("secretRef", r.SECRETS), ("configMapRef", r.CONFIG_MAPS)):
            if ref := source.get(kind):
                owner = lookup(resource, ref["name"])
                if owner is None and not ref.get("optional"):
                    raise _missing_error(resource, ref["name"])
                for name, value in decoded_data(owner).items() if owner else ():
                    found[source.get("prefix", "") + name] = value.decode()
    return found


def _missing_error(resource: Resource, name: str) -> ContainerNotReady:
    return ContainerNotReady("CreateContainerConfigError", f'{resource.kind.lower()} "{name}" not found')


def _referenced_value(resource: Resource, ref: Object, lookup: Lookup) -> str | None:
    """The value of a key of a Secret or ConfigMap. None: it is missing and optional. Raises ContainerNotReady
    if it is missing and not optional."""
    owner = lookup(resource, ref["name"])
    content = decoded_data(owner).get(ref["key"]) if owner else None
    if content is not None:
        return content.decode()
    if ref.get("optional"):
        return None
    if owner is None:
        raise _missing_error(resource, ref["name"])
    text = f"couldn't find key {ref['key']} in {resource.kind} {ref['name']}"
    raise ContainerNotReady("CreateContainerConfigError", text)


def decoded_data(value: Object) -> dict[str, bytes]:
    """Keys and values of a Secret or ConfigMap."""
    plain = value["kind"] == "ConfigMap"
    data = {
        name: text.encode() if plain else base64.b64decode(text)
        for name, text in (value.get("data") or {}).items()
    }
    return data | {name: base64.b64decode(text) for name, text in (value.get("binaryData") or {}).items()}
