"""Read checkpoints: find them in a folder, verify one, load its files.

Promise: nothing is executed (weights_only, and an allow-list for `.metadata`); what the operating system only
fails to do proves nothing against a checkpoint. Limit: a file is read once for its hash, by one rank
(together.py), and once to be loaded, by each rank that needs something of it, whichever ranks wrote it.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ropeteam_trainer.checkpoint.manifest import (
    MANIFEST,
    METADATA,
    RUNS,
    Manifest,
    folder,
    run_folder,
)
from ropeteam_trainer.checkpoint.metadata import Chunk, Saved, parse
from ropeteam_trainer.checkpoint.pieces import Piece, overlap
from ropeteam_trainer.checkpoint.restore import Look
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.world import CheckpointRef, Epoch, ShardFile

_BLOCK = 4 << 20
_WRONG_KIND = (IsADirectoryError, NotADirectoryError)
"""What is there is not what was saved."""


def find(directory: Path) -> tuple[CheckpointRef, ...]:
    """All that look like checkpoints, unverified, without digest. Newest runs first, what is in no run last.
    Folders with other names are not ours. Raises OSError where the directory cannot be listed: that is no
    empty one."""
    names = sorted((path.name for path in _inside(directory / RUNS, "")), reverse=True)
    unnumbered = (path.name.removeprefix("run-") for path in _inside(directory, "run-"))
    runs = dict.fromkeys((*(name.partition(".")[2] for name in names), *unnumbered, ""))
    return tuple(ref for run in runs for ref in _find(directory, run))


def _find(directory: Path, run: str) -> Iterator[CheckpointRef]:
    for step in _inside(directory / run_folder(run), "step-"):
        for epoch in _inside(step, ""):
            try:
                number, world = int(step.name.removeprefix("step-")), Epoch.parse(epoch.name)
                (epoch / MANIFEST).stat()
            except (ValueError, FileNotFoundError, NotADirectoryError):
                continue
            yield CheckpointRef(number, world, run=run)


def _inside(directory: Path, prefix: str) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if path.name.startswith(prefix)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def locate(directory: Path, ref: CheckpointRef) -> CheckpointRef:
    """The same, with its run. A reference that was in status has none; its digest tells which it is."""
    if ref.run:
        return ref
    for path in (directory / folder(ref), *directory.glob(f"run-*/{folder(ref)}")):
        if ref.digest and _digest(path / MANIFEST) == ref.digest:
            run = path.relative_to(directory).parts[0].removeprefix("run-")
            return replace(ref, run="" if run.startswith("step-") else run)
    return ref


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def look(directory: Path, ref: CheckpointRef) -> Look:
    """A checkpoint's manifest, against the digest where that is known. Its files: see check()."""
    ref = locate(directory, ref)
    place = directory / folder(ref)
    try:
        text = (place / MANIFEST).read_bytes()
    except FileNotFoundError:
        return _without_manifest(directory, ref)
    except OSError as error:
        return Look(None, f"its manifest cannot be read: {error}", unsure=not isinstance(error, _WRONG_KIND))
    if ref.digest and hashlib.sha256(text).hexdigest() != ref.digest:
        return Look(None, "its manifest was altered (the hash differs from the committed one)")
    try:
        manifest = codec.decode(Manifest, text)
    except codec.DecodeError as error:
        return Look(None, f"its manifest is torn or altered ({error})")
    if (manifest.step, manifest.epoch) != (ref.step, ref.epoch):
        return Look(None, f"its manifest belongs to step {manifest.step} of epoch {manifest.epoch}")
    if METADATA not in {file.name for file in manifest.files}:
        return Look(manifest, "it has the format of an earlier Ropeteam, without .metadata")
    return Look(manifest, ref=replace(ref, digest=hashlib.sha256(text).hexdigest()))


def _without_manifest(directory: Path, ref: CheckpointRef) -> Look:
    """One that was committed, in a directory without any: that is a volume which is not mounted (yet)."""
    try:
        names = [path.name for path in directory.iterdir()]
    except OSError as error:
        return Look(None, f"{directory} cannot be listed: {error}", unsure=bool(ref.digest))
    if ref.digest and not any(name.startswith(("step-", "run-")) for name in names):
        return Look(None, f"{directory} is empty; is its volume mounted?", unsure=True)
    return Look(None, "it has no manifest, so it was never committed")


def check(place: Path, file: ShardFile, read: Callable[[int], None]) -> Look:
    """One file against the manifest. `read` is told of bytes as they are read."""
    try:
        size = (place / file.name).stat().st_size
        if size != file.size:
            return Look(None, f"{file.name} has {size} bytes instead of {file.size} (torn or truncated)")
        if _sha256(place / file.name, read) != file.sha256:
            return Look(None, f"{file.name} was altered (wrong hash)")
    except FileNotFoundError:
        return Look(None, f"{file.name} is missing", unsure=not _is_there(place / MANIFEST))
    except OSError as error:
        unsure = not isinstance(error, _WRONG_KIND)
        return Look(None, f"{file.name} cannot be read: {error}", unsure)
    return Look(None)


def _is_there(manifest: Path) -> bool:
    """It was just now: is one file gone, or are all?"""
    try:
        manifest.stat()
    except OSError:
        return False
    return True


def _sha256(path: Path, read: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            read(len(block))
    return digest.hexdigest()


def load(directory: Path, ref: CheckpointRef, name: str) -> Any:
    """One file of a checkpoint, on the CPU."""
    return torch.load(directory / folder(ref) / name, map_location="cpu", weights_only=True)


def load_metadata(directory: Path, ref: CheckpointRef) -> Saved:
    """Where its tensors are. Raises ValueError."""
    return parse((directory / folder(ref) / METADATA).read_bytes())


def fill(
    directory: Path, ref: CheckpointRef, saved: Saved, pieces: Mapping[str, Piece], beat: Callable[[], None]
) -> None:
    """Read each piece, by its name, from the blocks that it was saved in. `beat` is called after each."""
    by_file: dict[str, list[tuple[Chunk, Piece]]] = {}
    for name, piece in pieces.items():
        for chunk in saved[name].chunks:
            by_file.setdefault(chunk.file, []).append((chunk, piece))
    for file, wanted in by_file.items():
        with (directory / folder(ref) / file).open("rb") as stream:
            for chunk, piece in sorted(wanted, key=lambda pair: pair[0].begin):
                _copy(stream, chunk, piece)
                beat()


def _copy(stream: BinaryIO, chunk: Chunk, piece: Piece) -> None:
    common = overlap(chunk.offsets, chunk.sizes, piece.offsets, tuple(piece.local.shape))
    if common is not None:
        stream.seek(chunk.begin)
        content = io.BytesIO(stream.read(chunk.length))
        block = torch.load(content, map_location="cpu", weights_only=True)
        piece.local[common[1]].copy_(block[common[0]])
