"""A folder as one immutable ConfigMap, and a job that mounts it. Pure but for reading the folder.

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

CODE, MOUNTED_AT = "code", "/code"
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
    def bytes(self) -> int:
        return sum(map(len, self.files.values()))


def bundle(folder: Path) -> Bundle:
    """Bundle of a folder. Raises InvalidInput: no code in it, or too much, with the largest files."""
    files: dict[str, bytes] = {}
    executable, left_out = set(), []
    for path, why in _walk(folder):
        name = path.relative_to(folder).as_posix()
        if why is not None:
            left_out.append(f"{name}{why}")
            continue
        files[name] = path.read_bytes()
        if os.access(path, os.X_OK):
            executable.add(name)
        if sum(map(len, files.values())) > MOST_BYTES:
            raise InvalidInput(_too_large(folder, files))
    if not files:
        raise InvalidInput(f"{folder}: no file in it is code")
    return Bundle(files, frozenset(executable), tuple(left_out))


def _walk(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """All files; those that are left out with the reason."""
    for path in sorted(folder.iterdir()):
        is_folder = path.is_dir()
        if path.is_symlink():
            yield path, " (a link)"
        elif path.name.startswith(".") or path.name in _NOT_CODE or path.name.endswith(_NOT_CODE_SUFFIXES):
            yield path, ""
        elif is_folder and (path / "pyvenv.cfg").exists():
            yield path, " (a virtual environment)"
        elif is_folder:
            yield from _walk(path)
        elif not path.is_file():
            yield path, " (not a regular file)"
        else:
            size = path.stat().st_size
            yield path, f" ({_size(size)})" if size > LARGE_BYTES else None


def _too_large(folder: Path, files: dict[str, bytes]) -> str:
    largest = sorted(files, key=lambda name: -len(files[name]))[:3]
    some = ", ".join(f"{name} ({_size(len(files[name]))})" for name in largest)
    return (
        f"{folder} has more than {_size(MOST_BYTES)} of files, and a ConfigMap holds no more. The largest so "
        f"far: {some}. {_ALTERNATIVES}"
    )


def _size(number: int) -> str:
    return f"{number / (1 << 20):.1f} MiB" if number >= 100_000 else f"{number / 1024:.1f} KiB"


def config_map(job: Object, code: Bundle) -> Object:
    """ConfigMap of this job alone, immutable: a pod that is created later gets the code that the others
    have."""
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


def with_code(job: Object, code: Bundle, name: str) -> Object:
    """Job with that ConfigMap mounted at /code, where its command starts. Raises InvalidInput: the field and
    the conflict."""
    job = copy.deepcopy(job)
    spec: Any = job["spec"]
    workdir = spec.setdefault("workingDir", MOUNTED_AT)
    if not f"{workdir}/".startswith(f"{MOUNTED_AT}/"):
        raise InvalidInput(
            f"spec.workingDir is {workdir}, but the folder is mounted at {MOUNTED_AT}; leave it out"
        )
    pod = _at(spec, "template", "spec")
    volumes = pod.setdefault("volumes", [])
    if any(volume.get("name") == CODE for volume in volumes):
        raise InvalidInput(f"spec.template.spec.volumes already has a volume {CODE}; give it another name")
    items = [
        {"key": f"{number}", "path": path} | ({"mode": 0o555} if path in code.executable else {})
        for number, path in enumerate(sorted(code.files))
    ]
    volumes.append({"name": CODE, "configMap": {"name": name, "items": items}})
    containers = pod.setdefault("containers", [])
    trainer = next((each for each in containers if each.get("name") == "trainer"), None)
    if trainer is None:
        containers.append(trainer := {"name": "trainer"})
    mounts = trainer.setdefault("volumeMounts", [])
    if any(mount.get("mountPath") == MOUNTED_AT for mount in mounts):
        raise InvalidInput(
            f"container trainer already mounts a volume at {MOUNTED_AT}; choose another mountPath"
        )
    mounts.append({"name": CODE, "mountPath": MOUNTED_AT, "readOnly": True})
    return job


def _at(value: Any, *names: str) -> Any:
    for name in names:
        value = value.setdefault(name, {})
    return value


def summary_lines(code: Bundle, name: str, namespace: str) -> Iterator[str]:
    """Lines about the bundle, for a person."""
    some = "file" if len(code.files) == 1 else "files"
    readers = f"readable by users that may read ConfigMaps in namespace {namespace}"
    yield f"configmap/{name}: {len(code.files)} {some}, {_size(code.bytes)}, {readers}"
    if code.left_out:
        yield f"left out: {', '.join(code.left_out)}"
