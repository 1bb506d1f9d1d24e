"""Reader of checkpoints: find them in a folder, verify one, load its files.

Promise: nothing is executed (weights_only, and an allow-list for `.metadata`); only regular files below the
folder are opened; an error of the operating system proves nothing against a checkpoint.
Limits: a file is read once for its hash, by one rank (agreement.py), and once for loading, by each rank that
needs a part of it, whichever ranks wrote it. Files of tensors are not hashed again when they are loaded; all
others are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, BinaryIO

import torch

from ropeteam_trainer.checkpoint.decisions.manifest import (
    MANIFEST,
    MAX_BYTES,
    METADATA,
    RUNS,
    STATE,
    Manifest,
    folder,
    ref_at,
    run_folder,
)
from ropeteam_trainer.checkpoint.decisions.restore import RIGHT_HASH, Inspection
from ropeteam_trainer.checkpoint.format import contents
from ropeteam_trainer.checkpoint.format.contents import MalformedCheckpoint
from ropeteam_trainer.checkpoint.format.metadata import Chunk, Saved, parse
from ropeteam_trainer.checkpoint.objects.tensorshard import TensorShard, overlap
from ropeteam_trainer.contract import codec, seals
from ropeteam_trainer.contract.seals import Keys
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile
from ropeteam_trainer.system.folders import Folder, Location, UnexpectedFile, is_plain

_BLOCK = 4 << 20
_ABSENT = (FileNotFoundError, UnexpectedFile)
_WRONG_KIND = (UnexpectedFile, NotADirectoryError)
"""Errors that prove that the file is not the one that was saved."""


def find(directory: Location) -> tuple[CheckpointRef, ...]:
    """All folders that look like checkpoints, unverified, without digest. Newest runs first, those in no run
    last. Folders with other names are ignored, and so are those without permission. Raises OSError where the
    directory cannot be listed: that is not the same as an empty one."""
    try:
        root = Folder.at(directory)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    numbered: list[str] = []
    with root:
        with suppress(*_ABSENT), root.open_folder(RUNS) as runs:
            numbered = [name.partition(".")[2] for name in reversed(runs.names())]
        others = (name.removeprefix("run-") for name in root.names() if name.startswith("run-"))
        return tuple(ref for run in dict.fromkeys((*numbered, *others, "")) for ref in _find(root, run))


def _find(root: Folder, run: str) -> Iterator[CheckpointRef]:
    base = run_folder(run)
    for step in _names(root, base) if base else root.names():
        for world in _names(root, f"{base}/{step}" if base else step) if step.startswith("step-") else ():
            ref = ref_at(run, step, world)
            if ref is not None and _has_manifest(root, ref):
                yield ref


def _names(root: Folder, path: str) -> list[str]:
    with suppress(*_ABSENT, PermissionError), root.open_below(path) as inner:
        return inner.names()
    return []


def _has_manifest(root: Folder, ref: CheckpointRef) -> bool:
    with suppress(*_ABSENT, PermissionError), root.open_below(folder(ref)) as place:
        return place.has(MANIFEST)
    return False


def locate(directory: Location, ref: CheckpointRef) -> CheckpointRef:
    """`ref` with its run. A reference from status has none; the digest identifies the checkpoint."""
    if ref.run or not ref.digest:
        return ref
    with suppress(FileNotFoundError), Folder.at(directory) as root:
        runs = (name.removeprefix("run-") for name in root.names() if name.startswith("run-"))
        for each in (replace(ref, run=run) for run in ("", *runs)):
            if not _has_manifest(root, each):
                continue
            with suppress(*_ABSENT), root.open_below(folder(each)) as place:
                if _digest(place.read(MANIFEST, MAX_BYTES)) == ref.digest:
                    return each
    return ref


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def inspect(directory: Location, ref: CheckpointRef, keys: Keys = ()) -> Inspection:
    """Verify a checkpoint's manifest, against the digest where that is known. For its files see check()."""
    try:
        ref = locate(directory, ref)
        text = _read(directory, ref, MANIFEST, MAX_BYTES)
    except FileNotFoundError:
        return _without_manifest(directory, ref)
    except OSError as error:
        return Inspection(
            None, f"its manifest cannot be read: {error}", unsure=not isinstance(error, _WRONG_KIND)
        )
    digest = _digest(text)
    if ref.digest and digest != ref.digest:
        return Inspection(None, "its manifest was altered (the hash differs from the committed one)")
    try:
        manifest = codec.decode(Manifest, text)
    except codec.DecodeError as error:
        return Inspection(None, f"its manifest is torn or altered ({error})")
    if (manifest.step, manifest.world_id) != (ref.step, ref.world_id):
        return Inspection(None, f"its manifest belongs to step {manifest.step} of world {manifest.world_id}")
    if ref.run and not ref.digest and manifest.job_uid != ref.run:  # with a known hash it may be a copy
        return Inspection(None, f"its manifest belongs to the job with UID {ascii(manifest.job_uid)[:80]}")
    names = {file.name for file in manifest.files}
    if foreign := [name for name in names if not is_plain(name)]:
        return Inspection(
            None, f"its manifest was altered: {ascii(foreign[0])[:80]} is not a checkpoint file"
        )
    signed = seals.is_valid(MANIFEST, text, keys)
    if METADATA not in names:
        return Inspection(
            manifest, "it has the format of an earlier Ropeteam, without .metadata", signed=signed
        )
    if STATE not in names:
        return Inspection(manifest, f"its manifest was altered: it names no {STATE}", signed=signed)
    return Inspection(manifest, ref=replace(ref, digest=digest), signed=signed)


def _without_manifest(directory: Location, ref: CheckpointRef) -> Inspection:
    """Result for a missing manifest. A committed checkpoint in a directory without any: the volume is not
    mounted (yet)."""
    try:
        with Folder.at(directory) as root:
            names = root.names()
    except OSError as error:
        return Inspection(None, f"{directory} cannot be listed: {error}", unsure=bool(ref.digest))
    if ref.digest and not any(name.startswith(("step-", "run-")) for name in names):
        return Inspection(None, f"{directory} is empty; is its volume mounted?", unsure=True)
    return Inspection(None, "it has no manifest, so it was never committed")


def check(
    directory: Location, ref: CheckpointRef, file: ShardFile, read: Callable[[int], None]
) -> Inspection:
    """Verify one file against the manifest. `read` is called with the number of bytes of each read."""
    try:
        with Folder.at(directory) as root, root.open_below(folder(ref)) as place:
            try:
                size = place.size(file.name)
                if size != file.size:
                    fault = f"{file.name} has {size} bytes instead of {file.size} (torn or truncated)"
                    return Inspection(None, fault)
                if _sha256(place, file.name, read) != file.sha256:
                    return Inspection(None, f"{file.name} was altered (wrong hash)")
            except FileNotFoundError:
                return Inspection(None, f"{file.name} is missing", unsure=not place.has(MANIFEST))
    except FileNotFoundError:
        return Inspection(None, f"{file.name} is missing", unsure=True)  # is one file gone, or are all?
    except OSError as error:
        unsure = not isinstance(error, _WRONG_KIND)
        return Inspection(None, f"{file.name} cannot be read: {error}", unsure)
    return Inspection(None)


def validate(
    directory: Location,
    ref: CheckpointRef,
    files: Iterable[ShardFile],
    file: ShardFile,
    read: Callable[[int], None],
) -> Inspection:
    """Verify the content of a file whose hash is right, where nothing confirms the manifest: any process can
    write one. Parses the file as loading does, and drops the result. Only proof is a fault; all other errors
    are left to the loading. `files`: all of the manifest."""
    try:
        if file.name == METADATA:
            load_metadata(directory, ref, files)
        elif file.name == STATE:
            state = load(directory, ref, file)
            contents.check_state(STATE, state)
            if (saved := _readable(directory, ref, files)) is not None:
                contents.check_named(STATE, state, saved)
        elif file.name.startswith("rank-"):
            contents.check_own(file.name, load(directory, ref, file))
        else:
            _validate_tensors(directory, ref, files, file, read)
    except MalformedCheckpoint as error:
        return Inspection(None, f"{file.name} {RIGHT_HASH}: {error}")
    except OSError as error:
        return Inspection(None, f"{file.name} cannot be read: {error}", unsure=True)
    except Exception:
        return Inspection(None)
    return Inspection(None)


def _validate_tensors(
    directory: Location,
    ref: CheckpointRef,
    files: Iterable[ShardFile],
    file: ShardFile,
    read: Callable[[int], None],
) -> None:
    saved = _readable(directory, ref, files) or {}
    chunks = (chunk for tensor in saved.values() for chunk in tensor.chunks if chunk.file == file.name)
    with opened(directory, ref, file.name) as stream:
        for chunk in sorted(chunks, key=lambda chunk: chunk.begin):
            _block(stream, chunk)
            read(chunk.length)


def _readable(directory: Location, ref: CheckpointRef, files: Iterable[ShardFile]) -> Saved | None:
    try:
        return load_metadata(directory, ref, files)
    except ValueError:
        return None  # the fault is reported for .metadata


def _sha256(place: Folder, name: str, read: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with place.open(name) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            read(len(block))
    return digest.hexdigest()


@contextmanager
def opened(directory: Location, ref: CheckpointRef, name: str) -> Iterator[BinaryIO]:
    """Open one file of a checkpoint."""
    with (
        Folder.at(directory) as root,
        root.open_below(folder(ref)) as place,
        place.open(name) as stream,
    ):
        yield stream


def _read(directory: Location, ref: CheckpointRef, name: str, most: int) -> bytes:
    with Folder.at(directory) as root, root.open_below(folder(ref)) as place:
        return place.read(name, most)


def _verified(directory: Location, ref: CheckpointRef, file: ShardFile) -> bytes:
    """Content of a file. Raises OSError, and ValueError if it is not the one of the manifest (any more)."""
    content = _read(directory, ref, file.name, file.size)
    if _digest(content) != file.sha256:
        raise ValueError(f"{file.name} was altered (wrong hash)")
    return content


def load(directory: Location, ref: CheckpointRef, file: ShardFile) -> Any:
    """Load a file of plain values and tensors, on the CPU. Raises OSError, ValueError, and errors of
    torch."""
    return contents.load(file.name, _verified(directory, ref, file))


def load_metadata(
    directory: Location, ref: CheckpointRef, files: Iterable[ShardFile], validated: bool = False
) -> Saved:
    """Load the index of the tensors in `files`, those of the manifest. Raises OSError and ValueError.
    `validated`: validate() has verified it, on all ranks, or it is the job's own."""
    known = {file.name: file for file in files}
    saved = parse(_verified(directory, ref, known[METADATA]), validated)
    for tensor in saved.values():
        for chunk in tensor.chunks:
            file = known.get(chunk.file)
            if file is None or not 0 <= chunk.begin <= chunk.begin + chunk.length <= file.size:
                raise MalformedCheckpoint(f"{METADATA} points outside of the files of the checkpoint")
    return saved


def fill(
    directory: Location,
    ref: CheckpointRef,
    saved: Saved,
    shards: Mapping[str, TensorShard],
    heartbeat: Callable[[], None],
) -> None:
    """Read each shard, by its name, from the blocks that it was saved in. `heartbeat` is called each time."""
    by_file: dict[str, list[tuple[Chunk, TensorShard]]] = {}
    for name, shard in shards.items():
        for chunk in saved[name].chunks:
            by_file.setdefault(chunk.file, []).append((chunk, shard))
    for file, wanted in by_file.items():
        with opened(directory, ref, file) as stream:
            for chunk, shard in sorted(wanted, key=lambda pair: pair[0].begin):
                _copy(stream, chunk, shard)
                heartbeat()


def _copy(stream: BinaryIO, chunk: Chunk, shard: TensorShard) -> None:
    common = overlap(chunk.offsets, chunk.sizes, shard.offsets, tuple(shard.local.shape))
    if common is not None:
        shard.local[common[1]].copy_(_block(stream, chunk)[common[0]])


def _block(stream: BinaryIO, chunk: Chunk) -> torch.Tensor:
    stream.seek(chunk.begin)
    return contents.block(chunk.file, stream.read(chunk.length), chunk.sizes, chunk.dtype)
