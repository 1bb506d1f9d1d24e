"""A folder as one immutable ConfigMap, and a job that mounts it. The only I/O is reading the folder.

Left out: names that begin with a dot (.git, .env), links, virtual environments, caches, keys, and files that
are too large to be code. All of them are listed, so nothing is dropped in silence.
"""

from __future__ import annotations

import copy
import os
import secrets
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropeteam.cli.errors import InvalidInput
from ropeteam.controller.client.apiclient import Object
from ropeteam.core.seen import names

VOLUME, MOUNTED_AT = "code", "/code"
MOST_BYTES = 1_000_000
"""Below the limit of a ConfigMap: 1 MiB, with the names of its files."""
LARGE_BYTES = 512 << 10
_NOT_CODE = frozenset({"__pycache__", "node_modules"})
_NOT_CODE_SUFFIXES = (".pyc", ".pem", ".key")
_ALTERNATIVES = "For more, use a git commit, a volume, or the image (docs/guides/code.md)."


@dataclass(frozen=True)
class Bundle:
    files: dict[str, bytes]
    """Contents by path below the folder, with / between names."""
    executable: frozenset[str]
    left_out: tuple[str, ...]
    """`.git`, `data/a.bin (2.1 MiB)`"""

    @property
    def total_bytes(self) -> int:
        return sum(map(len, self.files.values()))


def read_folder(folder: Path) -> Bundle:
    """Read a folder and those below it. Raises InvalidInput: it has no code, or too much. Stops reading at
    the file that is too much, so that a folder of data is not read into memory."""
    files: dict[str, bytes] = {}
    executable, left_out = set(), []
    for path, note in _walk_folder(folder):
        name = path.relative_to(folder).as_posix()
        if note is not None:
            left_out.append(f"{name}{note}")
            continue
        files[name] = path.read_bytes()
        if os.access(path, os.X_OK):
            executable.add(name)
        if sum(map(len, files.values())) > MOST_BYTES:
            raise InvalidInput(_too_large_message(folder, files))
    if not files:
        found = f"left out: {', '.join(left_out)}" if left_out else "it is empty"
        raise InvalidInput(f"{folder}: no file in it is code ({found}); name the folder of your script")
    return Bundle(files, frozenset(executable), tuple(left_out))


def _walk_folder(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """Files below a folder, each with None; and what is left out, a whole folder as one, each with the note
    for the list: the reason, or "" where the name shows it. First match wins: a link is never followed."""
    for path in sorted(folder.iterdir()):
        is_folder = path.is_dir()
        if path.is_symlink():
            yield path, " (a link)"
        elif path.name.startswith(".") or path.name in _NOT_CODE or path.name.endswith(_NOT_CODE_SUFFIXES):
            yield path, ""
        elif is_folder and (path / "pyvenv.cfg").exists():
            yield path, " (a virtual environment)"
        elif is_folder:
            yield from _walk_folder(path)
        elif not path.is_file():
            yield path, " (not a regular file)"
        else:
            size = path.stat().st_size
            yield path, f" ({_size_text(size)})" if size > LARGE_BYTES else None


def _too_large_message(folder: Path, files: dict[str, bytes]) -> str:
    """Message with the three largest of the files that were read."""
    largest = sorted(files, key=lambda name: -len(files[name]))[:3]
    some = ", ".join(f"{name} ({_size_text(len(files[name]))})" for name in largest)
    return (
        f"{folder} has more than {_size_text(MOST_BYTES)} of files, and a ConfigMap holds no more. The "
        f"largest so far: {some}. {_ALTERNATIVES}"
    )


def _size_text(number: int) -> str:
    return f"{number / (1 << 20):.1f} MiB" if number >= 100_000 else f"{number / 1024:.1f} KiB"


def config_map(job: Object, code: Bundle) -> Object:
    """Manifest of a ConfigMap for this job alone, with a random name. Immutable: a pod that is created later
    gets the code that the others have.

    A key may not contain `/`, so it is the number of the file in the order of paths; with_mounted_code
    numbers the same way.
    """
    keys = {f"{number}": data for number, (_, data) in enumerate(sorted(code.files.items()))}
    meta = job["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{meta['name']}-code-{secrets.token_hex(4)}",
            "namespace": meta["namespace"],
            "labels": {names.CODE_OF: meta["name"]},
        },
        "immutable": True,
        "binaryData": {key: b64encode(data).decode() for key, data in keys.items()},
    }


def with_mounted_code(job: Object, code: Bundle, config_map_name: str) -> Object:
    """Copy of the job with the ConfigMap mounted at /code, where its command starts. Raises InvalidInput for
    a workingDir elsewhere, and for a volume or a mount that is in the way.

    A template without a pod or a container `trainer` gets one: the operator merges the short form into it.
    """
    job = copy.deepcopy(job)
    spec: Any = job["spec"]
    workdir = spec.setdefault("workingDir", MOUNTED_AT)
    if not f"{workdir}/".startswith(f"{MOUNTED_AT}/"):
        raise InvalidInput(
            f"spec.workingDir is {workdir}, but the folder is mounted at {MOUNTED_AT}; leave it out"
        )
    pod = spec.setdefault("template", {}).setdefault("spec", {})
    volumes = pod.setdefault("volumes", [])
    if any(volume.get("name") == VOLUME for volume in volumes):
        raise InvalidInput(f"spec.template.spec.volumes already has a volume {VOLUME}; give it another name")
    items = [
        {"key": f"{number}", "path": path} | ({"mode": 0o555} if path in code.executable else {})
        for number, path in enumerate(sorted(code.files))
    ]
    volumes.append({"name": VOLUME, "configMap": {"name": config_map_name, "items": items}})
    containers = pod.setdefault("containers", [])
    trainer = next((each for each in containers if each.get("name") == "trainer"), None)
    if trainer is None:
        containers.append(trainer := {"name": "trainer"})
    mounts = trainer.setdefault("volumeMounts", [])
    if any(mount.get("mountPath") == MOUNTED_AT for mount in mounts):
        raise InvalidInput(
            f"spec.template.spec: container trainer already mounts a volume at {MOUNTED_AT}; choose another "
            "mountPath"
        )
    mounts.append({"name": VOLUME, "mountPath": MOUNTED_AT, "readOnly": True})
    return job


def summary_lines(code: Bundle, config_map_name: str, namespace: str) -> Iterator[str]:
    """Lines for a person: size and readers of the ConfigMap, then the files that were left out, if any."""
    some = "file" if len(code.files) == 1 else "files"
    readers = f"readable by users that may read ConfigMaps in namespace {namespace}"
    yield f"configmap/{config_map_name}: {len(code.files)} {some}, {_size_text(code.total_bytes)}, {readers}"
    if code.left_out:
        yield f"left out: {', '.join(code.left_out)}"
