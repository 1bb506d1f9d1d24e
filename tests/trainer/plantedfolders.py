"""Planted folders and manifests of checkpoints: wrong hashes show them, or they are no checkpoint.

Most cases act on the manifest once it is there (`after`); right hashes save none of them.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import socket
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.trainer.planted import PLANTED, RANK, STATE, TENSORS, VALID, Case, Gadget, halved, written

from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST, METADATA, RUNS


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


def retold(pattern: str, text: str) -> Callable[[Path], None]:
    """The first of its words that are so, in other words, which json.dumps might not write."""

    def act(place: Path) -> None:
        before = (place / MANIFEST).read_text()
        changed = re.sub(pattern, lambda _: text, before, count=1)
        assert changed != before
        (place / MANIFEST).write_text(changed)

    return act


def sized(number: str) -> Callable[[Path], None]:
    """A file, of so many bytes."""
    return retold(r'"size":\d+', f'"size":{number}')


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


def called(*names: str) -> Callable[[Path], None]:
    """The folder of its step has these names, and no other."""

    def act(place: Path) -> None:
        for name in names:
            shutil.copytree(place.parent, place.parent.with_name(name))
        shutil.rmtree(place.parent)

    return act


def a_copy_of_the_valid_one(place: Path) -> None:
    (place / MANIFEST).unlink()
    (place / MANIFEST).hardlink_to(place.parent.parent / VALID / MANIFEST)


def a_fifo_for_a_folder(place: Path) -> None:
    shutil.rmtree(place)
    os.mkfifo(place)


def only_in(run: str, make: Callable[[Path], None]) -> Callable[[Path], None]:
    """Move the checkpoint away, and create something else below the checkpoint folder by `make`."""

    def act(place: Path) -> None:
        make(place.parent.parent / run)
        shutil.rmtree(place.parent)

    return act


def in_a_run(path: Path) -> None:
    shutil.copytree(path.parent / PLANTED, path / PLANTED)


def moved(place: Path) -> None:
    """The whole folder is elsewhere, and a link leads there."""
    place.rename(place.parent.parent / "elsewhere")
    place.symlink_to(place.parent.parent / "elsewhere")


def moved_step(place: Path) -> None:
    place.parent.rename(place.parent.parent / "elsewhere")
    place.parent.symlink_to(place.parent.parent / "elsewhere")


_ELSEWHERE = {"step": 3, "epoch": {"term": 1, "boot": 0, "n": 1}, "digest": "", "run": "/../../elsewhere"}
_ITSELF = {"step": 1000, "epoch": {"term": 9, "boot": 0, "n": 1}, "digest": "", "run": ""}
_UNUSUAL = (
    *(unicodedata.normalize(form, "step-1000\u00e9") for form in ("NFC", "NFD")),
    "step-\u202e0001",  # read from the right
    "step-1000\n",
)
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
    Case("a file that leads to another's", instead(STATE, linked_to(f"../../{VALID}/{STATE}")), after=True),
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
    Case("a manifest of another world", manifest(epoch={"term": 9, "boot": 0, "n": 2}), after=True),
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
    Case("a size below zero", sized("-1"), after=True),
    Case("a size of 64 bits and one", sized(str(1 << 63)), after=True),
    Case("a size beyond all floats", sized("1e999"), after=True),
    Case("a size that is true", sized("true"), after=True),
    Case("a size that is no JSON", sized("NaN"), after=True),
    Case("a size of 5,000 digits", sized("9" * 5000), after=True),
    Case("a size in lists", sized("[[[1]]]"), after=True),
    Case("a hash that is none", retold(r'"sha256":"\w+"', '"sha256":null'), after=True),
    Case("a step told twice", retold(r'"step":1000', '"step":1000,"step":3'), after=True),
    Case("a file named twice", naming(STATE), after=True),
    Case("a manifest that names itself", naming(MANIFEST), after=True),
    Case("a manifest that is its own parent", manifest(parent=_ITSELF), after=True, job="another"),
    Case("a manifest that is the good one's, too", a_copy_of_the_valid_one, after=True),
    Case("a world that is a FIFO", a_fifo_for_a_folder, after=True),
    Case("an order of runs that is a FIFO", only_in(RUNS, os.mkfifo), after=True),
    Case("a run that leads to its own folder", only_in("run-other", linked_to(".")), after=True),
    Case("another run's", only_in("run-other", in_a_run), after=True),
    Case("a step with an underscore", called("step-1_000"), after=True),
    Case("a step in digits of another script", called("step-\u0661\u0660\u0660\u0660"), after=True),
    Case("a step with odd letters", called(*_UNUSUAL), after=True),
)
"""Faults that manifest and hashes show: the job resumes from the valid one."""
