"""Read checkpoints: find them in a folder, verify one, load its files.

Promise: nothing is executed (weights_only, and an allow-list for `.metadata`), and a file is loaded only
after its size and hash were found right. Limit: hashes are checked by one rank, the others trust it and the
volume. Each rank reads, by itself, what it has to have, whichever ranks wrote it.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ropeteam_trainer.checkpoint.manifest import MANIFEST, METADATA, Manifest, folder
from ropeteam_trainer.checkpoint.metadata import Chunk, Saved, parse
from ropeteam_trainer.checkpoint.pieces import Piece, overlap
from ropeteam_trainer.checkpoint.restore import Look
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.world import CheckpointRef, Epoch, ShardFile


def find(directory: Path) -> tuple[CheckpointRef, ...]:
    """All that look like checkpoints, unverified, without digest. Folders with other names are not ours."""
    return tuple(_find(directory))


def _find(directory: Path) -> Iterator[CheckpointRef]:
    for path in directory.glob(f"step-*/*/{MANIFEST}"):
        try:
            yield CheckpointRef(int(path.parts[-3].removeprefix("step-")), Epoch.parse(path.parts[-2]))
        except ValueError:
            continue


def look(directory: Path, ref: CheckpointRef) -> Look:
    """Verify one checkpoint: manifest against digest (where known), files against manifest."""
    place = directory / folder(ref)
    try:
        text = (place / MANIFEST).read_bytes()
    except FileNotFoundError:
        return Look(None, "it has no manifest, so it was never committed")
    except OSError as error:
        return Look(None, f"its manifest cannot be read: {error}")
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
    faults = (_fault(place / file.name, file) for file in manifest.files)
    return Look(manifest, next((fault for fault in faults if fault), ""))


def _fault(path: Path, file: ShardFile) -> str:
    try:
        size = path.stat().st_size
        if size != file.size:
            return f"{file.name} has {size} bytes instead of {file.size} (torn or truncated)"
        if _sha256(path) != file.sha256:
            return f"{file.name} was altered (wrong hash)"
    except FileNotFoundError:
        return f"{file.name} is missing"
    except OSError as error:
        return f"{file.name} cannot be read: {error}"
    return ""


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def load(directory: Path, ref: CheckpointRef, name: str) -> Any:
    """One file of a checkpoint, on the CPU."""
    return torch.load(directory / folder(ref) / name, map_location="cpu", weights_only=True)


def load_metadata(directory: Path, ref: CheckpointRef) -> Saved:
    """Where its tensors are. Raises ValueError."""
    return parse((directory / folder(ref) / METADATA).read_bytes())


def fill(directory: Path, ref: CheckpointRef, saved: Saved, pieces: Mapping[str, Piece]) -> None:
    """Read each piece, by its name, from the blocks that it was saved in."""
    by_file: dict[str, list[tuple[Chunk, Piece]]] = {}
    for name, piece in pieces.items():
        for chunk in saved[name].chunks:
            by_file.setdefault(chunk.file, []).append((chunk, piece))
    for file, wanted in by_file.items():
        with (directory / folder(ref) / file).open("rb") as stream:
            for chunk, piece in sorted(wanted, key=lambda pair: pair[0].begin):
                _copy(stream, chunk, piece)


def _copy(stream: BinaryIO, chunk: Chunk, piece: Piece) -> None:
    common = overlap(chunk.offsets, chunk.sizes, piece.offsets, tuple(piece.local.shape))
    if common is not None:
        stream.seek(chunk.begin)
        content = io.BytesIO(stream.read(chunk.length))
        block = torch.load(content, map_location="cpu", weights_only=True)
        piece.local[common[1]].copy_(block[common[0]])
