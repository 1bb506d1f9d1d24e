"""A good checkpoint, and a newer one that somebody else has made of it: the cases of test_planted.py.

Each case does something to the files of a copy, which then gets a manifest with the right hashes; or to the
manifest, after that (`after`).
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import Metadata

from ropeteam_trainer.checkpoint.manifest import MANIFEST, METADATA, Manifest
from ropeteam_trainer.checkpoint.saving import Checkpoints
from ropeteam_trainer.contract.config import CheckpointConfig, RankPlan, Resume
from ropeteam_trainer.contract.world import Epoch, ShardFile
from ropeteam_trainer.world import World

JOB, GOOD, PLANTED = "job", Path("step-3/1.0.1"), Path("step-1000/9.0.1")
CANARY = "canary"
"""In the folder of checkpoints, if something of a planted one was executed."""
STATE, RANK, TENSORS = "state.pt", "rank-0.pt", "__0_0.distcp"


class Case(NamedTuple):
    name: str
    act: Callable[[Path], None]
    after: bool = False
    job: str = JOB


def a_plan(directory: Path) -> RankPlan:
    return RankPlan("1.0.1", (), False, CheckpointConfig(str(directory)), Resume.LATEST, None, JOB, "")


def checkpoints(directory: Path, model: torch.nn.Module | None = None) -> tuple[Checkpoints, torch.nn.Module]:
    """Of one rank, without an operator."""
    kept = Checkpoints(a_plan(directory), World(0, 1, torch.device("cpu")), None)
    model = model or torch.nn.Linear(3, 2)
    kept.keep({"model": model})
    return kept, model


def plant(directory: Path, case: Case) -> None:
    """Beside the good one, which is there."""
    place = directory / PLANTED
    shutil.copytree(directory / GOOD, place)
    (place / MANIFEST).unlink()
    if not case.after:
        case.act(place)
    files = tuple(
        ShardFile(path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(place.iterdir())
    )
    manifest = Manifest(1000, Epoch(9, 0, 1), 1, case.job, "", files, None)
    (place / MANIFEST).write_bytes(manifest.to_bytes())
    if case.after:
        case.act(place)


class Gadget:
    def __init__(self, place: Path) -> None:
        self.word = f"touch {place.parent.parent / CANARY}"

    def __reduce__(self) -> Any:
        return os.system, (self.word,)


def written(name: str, content: bytes | Callable[[Path], bytes]) -> Callable[[Path], None]:
    def act(place: Path) -> None:
        (place / name).write_bytes(content if isinstance(content, bytes) else content(place))

    return act


def saved(name: str, make: Callable[[Path], Any], **options: Any) -> Callable[[Path], None]:
    return lambda place: torch.save(make(place), place / name, **options)


def halved(name: str) -> Callable[[Path], None]:
    return lambda place: os.truncate(place / name, (place / name).stat().st_size // 2)


def changed(change: Callable[[Metadata], None]) -> Callable[[Path], None]:
    """`.metadata` with other values."""

    def act(place: Path) -> None:
        about = pickle.loads((place / METADATA).read_bytes())
        change(about)
        (place / METADATA).write_bytes(pickle.dumps(about))

    return act


def pointing(**fields: Any) -> Callable[[Path], None]:
    """Where `.metadata` says that a tensor lies."""

    def change(about: Metadata) -> None:
        for info in about.storage_data.values():
            for name, value in fields.items():
                object.__setattr__(info, name, value)

    return changed(change)


def manifest(**fields: Any) -> Callable[[Path], None]:
    def act(place: Path) -> None:
        plain = json.loads((place / MANIFEST).read_bytes())
        (place / MANIFEST).write_text(json.dumps(plain | fields))

    return act


def naming(name: str) -> Callable[[Path], None]:
    """The manifest has one file more."""

    def act(place: Path) -> None:
        plain = json.loads((place / MANIFEST).read_bytes())
        plain["files"].append({"name": name, "size": 1, "sha256": "0" * 64})
        (place / MANIFEST).write_text(json.dumps(plain))

    return act


def without(name: str) -> Callable[[Path], None]:
    """The manifest has one file less."""

    def act(place: Path) -> None:
        plain = json.loads((place / MANIFEST).read_bytes())
        plain["files"] = [file for file in plain["files"] if file["name"] != name]
        (place / MANIFEST).write_text(json.dumps(plain))

    return act


def instead(name: str, make: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Something that is no file."""

    def act(place: Path) -> None:
        (place / name).unlink()
        make(place / name)

    return act


def linked_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def a_socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)
    os.chdir(before)


def moved(place: Path) -> None:
    """The whole folder is elsewhere, and a link leads there."""
    place.rename(place.parent.parent / "elsewhere")
    place.symlink_to(place.parent.parent / "elsewhere")


def moved_step(place: Path) -> None:
    place.parent.rename(place.parent.parent / "elsewhere")
    place.parent.symlink_to(place.parent.parent / "elsewhere")


def gadget(*words: str) -> Callable[[Path], bytes]:
    """A pickle in text. `{}`: what is to be run."""
    return lambda place: "".join(words).replace("{}", Gadget(place).word).encode()


def tensors(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Something else instead of each, and `.metadata` to match."""

    def act(place: Path) -> None:
        torch.save(make(place), place / TENSORS)
        pointing(offset=0, length=(place / TENSORS).stat().st_size)(place)

    return act


def shaped(*sizes: int) -> Callable[[Path], None]:
    """Of the blocks that `.metadata` tells of."""

    def change(about: Metadata) -> None:
        for tensor in about.state_dict_metadata.values():
            for chunk in tensor.chunks:
                chunk.sizes = torch.Size(sizes)

    return changed(change)


def with_state(**fields: Any) -> Callable[[Path], None]:
    """None: without."""

    def act(place: Path) -> None:
        tree = torch.load(place / STATE, weights_only=True) | fields
        torch.save({name: value for name, value in tree.items() if value is not None}, place / STATE)

    return act


class OfAScript:
    """Of this class a script may have made its state, and known to torch."""


def of_another_model(place: Path) -> None:
    """A state of ours, of a script that has been changed since."""
    kept, _ = checkpoints(place / "elsewhere", torch.nn.Linear(5, 2))
    kept.save(3, None)
    kept.close()
    for file in (place / "elsewhere" / "step-3").glob("*/*"):
        if file.name != MANIFEST:
            file.rename(place / file.name)
    shutil.rmtree(place / "elsewhere")


_ELSEWHERE = {"step": 3, "epoch": {"term": 1, "boot": 0, "n": 1}, "digest": "", "run": "/../../elsewhere"}
_CLASS = b"ctorch.distributed.checkpoint.metadata\nMetadataIndex\n"
PASSED_OVER = (
    Case("a manifest that is a FIFO", instead(MANIFEST, os.mkfifo), after=True),
    Case("a manifest that is a socket", instead(MANIFEST, a_socket), after=True),
    Case("a manifest that is a folder", instead(MANIFEST, os.mkdir), after=True),
    Case("a manifest that leads to a device", instead(MANIFEST, linked_to("/dev/zero")), after=True),
    Case("a manifest that is too large", lambda place: os.truncate(place / MANIFEST, 1 << 40), after=True),
    Case("half a manifest", halved(MANIFEST), after=True),
    Case("a deep manifest", written(MANIFEST, b"[" * 1_000_000), after=True),
    Case("a manifest of another step", manifest(step=4), after=True),
    Case("a manifest of no files", manifest(files=[]), after=True),
    Case("a parent elsewhere", manifest(files=[], parent=_ELSEWHERE), after=True),
    Case("a file named with NUL", naming("a\0b"), after=True),
    Case("a file named with half a letter", naming("a\udc80\ud800"), after=True),
    Case("a file named by a path", naming("/etc/shadow"), after=True),
    Case("a file named by a device", naming("/dev/zero"), after=True),
    Case("a file named like one above", naming("../../step-3/1.0.1/state.pt"), after=True),
    Case("a file named like the folder", naming(".."), after=True),
    Case("a file named without an end", naming("a" * 5000), after=True),
    Case("a file that is a FIFO", instead(RANK, os.mkfifo), after=True),
    Case("a file that leads to a device", instead(STATE, linked_to("/dev/zero")), after=True),
    Case("a file that leads to another's", instead(STATE, linked_to(f"../../{GOOD}/{STATE}")), after=True),
    Case("a folder that is a link", moved, after=True),
    Case("a step that is a link", moved_step, after=True),
    Case("another job's", lambda _: None, job="another"),
    Case("an empty manifest", written(MANIFEST, b""), after=True),
    Case("a manifest of nothing", written(MANIFEST, b"null"), after=True),
    Case("a manifest that is a list", written(MANIFEST, b"[]"), after=True),
    Case("a manifest that is no UTF-8", written(MANIFEST, b'{"step": "\xff"}'), after=True),
    Case(
        "a manifest that is a pickle",
        written(MANIFEST, lambda place: pickle.dumps(Gadget(place))),
        after=True,
    ),
    Case("a manifest that leads nowhere", instead(MANIFEST, linked_to("nowhere")), after=True),
    Case("a manifest of another epoch", manifest(epoch={"term": 9, "boot": 0, "n": 2}), after=True),
    Case("a step of 400 digits", manifest(step=10**400), after=True),
    Case("a step that is a text", manifest(step="1000"), after=True),
    Case("files that are no list", manifest(files={}), after=True),
    Case("a file without a name", naming(""), after=True),
    Case("a manifest that names no state", without(STATE), after=True),
    Case("a file named with a line's end", naming("a\nb"), after=True),
    Case("a file that is not there", lambda place: (place / RANK).unlink(), after=True),
    Case("a file that is a folder", instead(STATE, os.mkdir), after=True),
    Case("a file that is a socket", instead(STATE, a_socket), after=True),
    Case("a file that leads nowhere", instead(TENSORS, linked_to("nowhere")), after=True),
    Case("half a file", halved(TENSORS), after=True),
    Case("an altered file", written(RANK, b"x" * 100), after=True),
    Case("a .metadata that is a FIFO", instead(METADATA, os.mkfifo), after=True),
)
"""What its manifest and their hashes tell: the job goes on from the good one."""
MALFORMED = (
    Case("a global", written(METADATA, lambda place: pickle.dumps(Gadget(place), 0))),
    Case("a stack global", written(METADATA, lambda place: pickle.dumps(Gadget(place), 4))),
    Case("an instance", written(METADATA, gadget("(S'{}'\nios\nsystem\n."))),
    Case("an object", written(METADATA, gadget("(cos\nsystem\nS'{}'\no."))),
    Case("a persistent id", written(METADATA, gadget("P{}\n."))),
    Case("an extension", written(METADATA, b"\x80\x02\x82\x01.")),
    Case("getattr", written(METADATA, b"\x80\x02cbuiltins\ngetattr\n" + _CLASS + b"X\x04\0\0\0nope\x86R.")),
    Case("a file above the folder", pointing(relative_path="../../step-3/1.0.1/" + TENSORS)),
    Case("a file that no manifest names", pointing(relative_path="other.distcp")),
    Case("an end behind the file's", pointing(length=1 << 40)),
    Case("a begin before the file's", pointing(offset=-8)),
    Case("nothing", written(METADATA, b"")),
    Case("half of it", halved(METADATA)),
    Case("a builtin function", written(METADATA, gadget("cbuiltins\neval\n(S'{}'\ntR."))),
    Case("blocks without a shape", shaped()),
    Case("blocks that are too large", shaped(3, 4)),
    Case("state: half of it", halved(STATE)),
    Case("state: a list", saved(STATE, lambda _: [1, 2])),
    Case("state: without others", with_state(others=None)),
    Case("state: a position that is none", with_state(data={"epoch": "first"})),
    Case("state: a model that is none", with_state(models={"model": 3})),
    Case("state: an optimizer that is none", with_state(optimizers={"optimizer": {"groups": [{}]}})),
    Case("state: a gadget", saved(STATE, Gadget)),
    Case("state: a bare pickle", written(STATE, lambda place: pickle.dumps(Gadget(place)))),
    Case("state: in the old format", saved(STATE, Gadget, _use_new_zipfile_serialization=False)),
    Case("rank: a gadget", saved(RANK, Gadget)),
    Case("rank: no generators", saved(RANK, lambda _: {"rng": {}})),
    Case("tensors: a gadget", tensors(Gadget)),
    Case("tensors: none", tensors(lambda _: {})),
    Case("tensors: of another shape", tensors(lambda _: torch.ones(7))),
    Case("an empty .metadata", written(METADATA, b"")),
    Case("half a .metadata", halved(METADATA)),
    Case("eval", written(METADATA, gadget('cbuiltins\neval\n(S\'__import__("os").system("{}")\'\ntR.'))),
    Case("a file named by a number", pointing(relative_path=5)),
    Case("a begin that is a text", pointing(offset="0")),
    Case("state: empty", written(STATE, b"")),
    Case("state: a half", halved(STATE)),
    Case("rank: a bare pickle", written(RANK, lambda place: pickle.dumps(Gadget(place)))),
    Case("rank: a half", halved(RANK)),
    Case("tensors: a half", halved(TENSORS)),
)
"""What no script and no torch would read, whatever the hashes say: the job goes on from the good one."""
UNCLEAR = (
    Case("a method of a class", written(METADATA, b"\x80\x04\x8c\x08builtins\x8c\x0bint.__add__\x93.")),
    Case("a name of some torch", written(METADATA, b"\x80\x04\x8c\x05torch\x8c\x09os.system\x93.")),
    Case("state: a class of some script", saved(STATE, lambda _: OfAScript())),
    Case("tensors: a class of some script", tensors(lambda _: OfAScript())),
    Case("another model", of_another_model),
)
"""Perhaps the script or the image has changed, and an older checkpoint would be a loss: the job ends."""
