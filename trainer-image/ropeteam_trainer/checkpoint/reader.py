"""Reader of checkpoints: find them in a folder, verify one, load its files.

A run is the folder of one job, `run-<job's UID>`; `run` is that UID, or "" for the directory itself, where
earlier releases saved (decisions/manifest.py).
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


def find_checkpoints(directory: Location) -> tuple[CheckpointRef, ...]:
    """References of all folders that have a manifest, unverified, without digest. Newest runs first, those in
    no run last; within a run in no special order. Folders with other names are ignored, and so are those
    without permission. A missing directory has none. Raises OSError where it cannot be listed."""
    try:
        root = Folder.at(directory)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    numbered: list[str] = []
    with root:
        with suppress(*_ABSENT), root.open_folder(RUNS) as runs:  # entries are called <number>.<UID>
            numbered = [name.partition(".")[2] for name in reversed(runs.names())]
        others = (name.removeprefix("run-") for name in root.names() if name.startswith("run-"))
        all_runs = dict.fromkeys((*numbered, *others, ""))  # each once: with a number, without, no run
        return tuple(ref for run in all_runs for ref in _checkpoints_of_run(root, run))


def _checkpoints_of_run(root: Folder, run: str) -> Iterator[CheckpointRef]:
    """References of the folders with a manifest in a run's folder; "": in the directory itself."""
    base = run_folder(run)
    for step in _names_below(root, base) if base else root.names():
        if not step.startswith("step-"):
            continue
        for world in _names_below(root, f"{base}/{step}" if base else step):
            ref = ref_at(run, step, world)
            if ref is not None and _has_manifest(root, ref):
                yield ref


def _names_below(root: Folder, path: str) -> list[str]:
    """Names in a folder; none if it is missing, no folder, or may not be read."""
    with suppress(*_ABSENT, PermissionError), root.open_below(path) as inner:
        return inner.names()
    return []


def _has_manifest(root: Folder, ref: CheckpointRef) -> bool:
    """Whether the checkpoint's folder has a manifest. False if it may not be entered. Raises other
    OSErrors."""
    with suppress(*_ABSENT, PermissionError), root.open_below(folder(ref)) as place:
        return place.has(MANIFEST)
    return False


def locate_checkpoint(directory: Location, ref: CheckpointRef) -> CheckpointRef:
    """`ref` with the job UID (`run`) in whose folder its manifest is found. A reference from status has none;
    its digest identifies the checkpoint. Unchanged if it has a UID or no digest, or is not found. Raises
    OSError."""
    if ref.run or not ref.digest:
        return ref
    with suppress(FileNotFoundError), Folder.at(directory) as root:
        runs = (name.removeprefix("run-") for name in root.names() if name.startswith("run-"))
        for each in (replace(ref, run=run) for run in ("", *runs)):
            if not _has_manifest(root, each):
                continue
            with suppress(*_ABSENT), root.open_below(folder(each)) as place:
                if _sha256_of(place.read(MANIFEST, MAX_BYTES)) == ref.digest:
                    return each
    return ref


def _sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def inspect_manifest(directory: Location, ref: CheckpointRef, keys: Keys = ()) -> Inspection:
    """Verify a checkpoint's manifest. Raises nothing: a fault is in the result. For its files see
    check_file().

    Order, the first fault counts: readable; its hash, if `ref` has a digest; well-formed; of this step and
    world, and without a digest of this run; plain names of files; the files that each checkpoint has.
    """
    try:
        ref = locate_checkpoint(directory, ref)
        text = _read_file(directory, ref, MANIFEST, MAX_BYTES)
    except FileNotFoundError:
        return _without_manifest(directory, ref)
    except OSError as error:
        return Inspection(
            None, f"its manifest cannot be read: {error}", unsure=not isinstance(error, _WRONG_KIND)
        )
    digest = _sha256_of(text)
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
    """Result for a missing manifest. With a digest the checkpoint was committed once. A directory that has no
    checkpoint then, or cannot be listed, may be a volume that is not mounted (yet): unsure."""
    try:
        with Folder.at(directory) as root:
            names = root.names()
    except OSError as error:
        return Inspection(None, f"{directory} cannot be listed: {error}", unsure=bool(ref.digest))
    if ref.digest and not any(name.startswith(("step-", "run-")) for name in names):
        return Inspection(None, f"{directory} is empty; is its volume mounted?", unsure=True)
    if ref.digest:
        return Inspection(
            None, "its manifest is missing: it was committed, and deleted since, or this is another volume"
        )
    return Inspection(None, "it has no manifest, so it was never committed")


def check_file(
    directory: Location, ref: CheckpointRef, file: ShardFile, on_read: Callable[[int], None]
) -> Inspection:
    """Verify size and hash of one file against the manifest. Raises nothing: a fault is in the result, and it
    is `unsure` unless it proves the file bad. `on_read` is called with the number of bytes of each read."""
    try:
        with Folder.at(directory) as root, root.open_below(folder(ref)) as place:
            try:
                size = place.size(file.name)
                if size != file.size:
                    fault = f"{file.name} has {size} bytes instead of {file.size} (torn or truncated)"
                    return Inspection(None, fault)
                if _sha256_of_file(place, file.name, on_read) != file.sha256:
                    return Inspection(None, f"{file.name} is damaged or altered (its SHA-256 differs)")
            except FileNotFoundError:
                # missing beside its manifest is proof; without the manifest, the mount may be stale
                return Inspection(None, f"{file.name} is missing", unsure=not place.has(MANIFEST))
    except FileNotFoundError:
        return Inspection(None, f"{file.name} is missing", unsure=True)  # the folder is missing
    except OSError as error:
        unsure = not isinstance(error, _WRONG_KIND)
        return Inspection(None, f"{file.name} cannot be read: {error}", unsure)
    return Inspection(None)


def validate_content(
    directory: Location,
    ref: CheckpointRef,
    files: Iterable[ShardFile],
    file: ShardFile,
    on_read: Callable[[int], None],
) -> Inspection:
    """Verify the content of a file whose hash is right, where status does not confirm the manifest: any
    process can write one. Parses the file as loading does, and drops the result.

    Raises nothing. A fault is proof, or `unsure` for an OSError. All other errors are no fault here: loading
    the file raises them again. `files`: all of the manifest. `on_read`: as for check_file(), for tensors
    only.
    """
    try:
        if file.name == METADATA:
            load_metadata(directory, ref, files)
        elif file.name == STATE:
            state = load_file(directory, ref, file)
            contents.check_shared_state(STATE, state)
            if (saved := _index_or_none(directory, ref, files)) is not None:
                contents.check_optimizer_tensors(STATE, state, saved)
        elif file.name.startswith("rank-"):
            contents.check_rank_state(file.name, load_file(directory, ref, file))
        else:
            _validate_tensors(directory, ref, files, file, on_read)
    except MalformedCheckpoint as error:
        return Inspection(None, f"{file.name} {RIGHT_HASH}: {error}")
    except OSError as error:
        return Inspection(None, f"{file.name} cannot be read: {error}", unsure=True)
    except Exception:  # too little memory, a class of the script: loading will raise it
        return Inspection(None)
    return Inspection(None)


def _validate_tensors(
    directory: Location,
    ref: CheckpointRef,
    files: Iterable[ShardFile],
    file: ShardFile,
    on_read: Callable[[int], None],
) -> None:
    """Load each block that `.metadata` places in this file, and drop it. Raises MalformedCheckpoint, OSError,
    and errors of torch."""
    saved = _index_or_none(directory, ref, files) or {}
    chunks = (chunk for tensor in saved.values() for chunk in tensor.chunks if chunk.file == file.name)
    with opened(directory, ref, file.name) as stream:
        for chunk in sorted(chunks, key=lambda chunk: chunk.begin):
            _read_block(stream, chunk)
            on_read(chunk.length)


def _index_or_none(directory: Location, ref: CheckpointRef, files: Iterable[ShardFile]) -> Saved | None:
    """Index of the tensors. None: it cannot be parsed. Raises OSError."""
    try:
        return load_metadata(directory, ref, files)
    except ValueError:
        return None  # the fault is reported for .metadata


def _sha256_of_file(place: Folder, name: str, on_read: Callable[[int], None]) -> str:
    """SHA-256 of a file, in hex, read in blocks of _BLOCK bytes. Raises OSError, and what `on_read`
    raises."""
    digest = hashlib.sha256()
    with place.open(name) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            on_read(len(block))
    return digest.hexdigest()


@contextmanager
def opened(directory: Location, ref: CheckpointRef, name: str) -> Iterator[BinaryIO]:
    """Open one file of a checkpoint for reading, for the time of the `with`. Raises OSError."""
    with (
        Folder.at(directory) as root,
        root.open_below(folder(ref)) as place,
        place.open(name) as stream,
    ):
        yield stream


def _read_file(directory: Location, ref: CheckpointRef, name: str, max_bytes: int) -> bytes:
    """Content of one file of a checkpoint. Raises OSError, also UnexpectedFile for a larger one."""
    with Folder.at(directory) as root, root.open_below(folder(ref)) as place:
        return place.read(name, max_bytes)


def _read_verified(directory: Location, ref: CheckpointRef, file: ShardFile) -> bytes:
    """Content of a file. Raises OSError, and ValueError if it is not the one of the manifest (any more)."""
    content = _read_file(directory, ref, file.name, file.size)
    if _sha256_of(content) != file.sha256:
        raise ValueError(f"{file.name} is damaged or altered (its SHA-256 differs)")
    return content


def load_file(directory: Location, ref: CheckpointRef, file: ShardFile) -> Any:
    """Load a file of plain values and tensors, on the CPU, after its hash is verified. Raises OSError;
    ValueError (MalformedCheckpoint, too) for a wrong hash or form; and errors of torch."""
    return contents.load(file.name, _read_verified(directory, ref, file))


def load_metadata(
    directory: Location, ref: CheckpointRef, files: Iterable[ShardFile], validated: bool = False
) -> Saved:
    """Load the index of the tensors, after its hash is verified. Raises OSError, and ValueError
    (MalformedCheckpoint, too). `files`: all of the manifest. `validated`: skip checks that take long, because
    validate_content() has done them, or the checkpoint is the job's own."""
    known = {file.name: file for file in files}
    saved = parse(_read_verified(directory, ref, known[METADATA]), validated)
    for tensor in saved.values():
        for chunk in tensor.chunks:
            file = known.get(chunk.file)
            if file is None or not 0 <= chunk.begin <= chunk.begin + chunk.length <= file.size:
                raise MalformedCheckpoint(f"{METADATA} points outside of the files of the checkpoint")
    return saved


def fill_shards(
    directory: Location,
    ref: CheckpointRef,
    saved: Saved,
    shards: Mapping[str, TensorShard],
    heartbeat: Callable[[], None],
) -> None:
    """Copy the saved values into each shard's tensor, in place. `shards`: by name, each of the shape in
    `saved`.

    Blocks are read in their order in the files; of those that overlap a shard in no element nothing is
    copied. `heartbeat` is called after each block. Hashes are not verified again. Raises OSError, ValueError
    (also MalformedCheckpoint), and KeyError for a name that is not in `saved`.
    """
    by_file: dict[str, list[tuple[Chunk, TensorShard]]] = {}
    for name, shard in shards.items():
        for chunk in saved[name].chunks:
            by_file.setdefault(chunk.file, []).append((chunk, shard))
    for file, wanted in by_file.items():
        with opened(directory, ref, file) as stream:
            for chunk, shard in sorted(wanted, key=lambda pair: pair[0].begin):
                _copy_overlap(stream, chunk, shard)
                heartbeat()


def _copy_overlap(stream: BinaryIO, chunk: Chunk, shard: TensorShard) -> None:
    """Copy the elements that a saved block and a shard have in common. Without any the block is not read."""
    common = overlap(chunk.offsets, chunk.sizes, shard.offsets, tuple(shard.local.shape))
    if common is not None:
        shard.local[common[1]].copy_(_read_block(stream, chunk)[common[0]])


def _read_block(stream: BinaryIO, chunk: Chunk) -> torch.Tensor:
    """Load one block from the open file that holds it. Raises OSError, MalformedCheckpoint, and errors of
    torch."""
    stream.seek(chunk.begin)
    return contents.load_block(chunk.file, stream.read(chunk.length), chunk.sizes, chunk.dtype)
