"""Cache of files of slow storage on a local disk, for all processes of a node.

    cache = ShardCache()                                  # of the TrainingJob: spec.shardCache
    cache = ShardCache("/scratch/shards", 200 * 10**9)    # anywhere
    with cache.open("/datasets/shard-0007.npy") as file:
        samples = numpy.load(file)

Promises: of all processes that open a file, one fetches it and the others wait; a file under its final name
is whole, whichever process was killed and when; the files never take more than `max_bytes`; a file that is
open is not removed; and where the cache fails, for example because its disk is full, files are read from the
source, and one message reports it.

How: a shard is copied into KEY.part and renamed to KEY.shard. The process that copies holds a lock on
KEY.fetching, a reader a shared lock on the shard, and both locks end with the process (flock): nothing is
ever left locked, and a part whose KEY.fetching is not locked is a leftover. Limits: the directory must be on
a local file system; a process that waits for a fetch waits as long as the source takes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ropeteam_trainer.contract import config
from ropeteam_trainer.system.notice import notice

_CHUNK_BYTES = 4 << 20
_SHARD, _PART = ".shard", ".part"
Source = str | os.PathLike[str]


class _CannotCache(Exception):
    """Error of the cache: read the source instead. The text is the reason."""


class ShardCache:
    """Directory of copies. Create one object in each process that reads; they share the directory."""

    def __init__(self, directory: Source | None = None, max_bytes: int | None = None) -> None:
        """Create the directory. All processes should give the same max_bytes: each enforces its own. The
        default of both is that of spec.shardCache; ValueError where there is none.
        """
        directory = directory or os.environ.get(config.SHARD_CACHE)
        max_bytes = max_bytes or int(os.environ.get(config.SHARD_CACHE_BYTES, 0))
        if not directory or not max_bytes:
            raise ValueError(
                "ShardCache needs a directory and max_bytes; in a TrainingJob spec.shardCache gives both"
            )
        self._directory, self._max_bytes = Path(directory), max_bytes
        self._directory.mkdir(parents=True, exist_ok=True)
        self._fetches = True
        """Whether this process still writes to the cache: not after an error of its disk."""
        self._complained = False
        """Whether the one message was printed."""

    def open(self, source: Source, version: str | None = None) -> BinaryIO:
        """Open the file `source` for reading, from the cache if possible: a missing shard is copied first, or
        awaited if another process copies it. The copy stays in the cache until the file is closed.

        version: distinguishes contents of the same path; default: size and time of change, for which the
        source is examined each time. Raises OSError only if the source itself cannot be read.
        """
        path = Path(source).absolute()
        try:
            return self._cached(path, _key(path, version))
        except _CannotCache as why:
            if not self._complained:
                self._complained = True
                notice(f"{why}. The file is read from its source; later files may be, without a message.")
            return path.open("rb")

    @contextmanager
    def path(self, source: Source, version: str | None = None) -> Iterator[Path]:
        """Path of the file, for readers that need a name: valid inside of the `with`. See open()."""
        with self.open(source, version) as file:
            yield Path(file.name)

    def _cached(self, source: Path, key: str) -> BinaryIO:
        """Shard open for reading; fetched by this process or another one, if it is missing. Raises
        _CannotCache, and OSError of the source.

        Each turn of the loop: open the shard -> wait for the lock of its fetch -> fetch it, if it is still
        missing. The lock's file is removed after a fetch, so another turn follows where the locked file is
        not the one there.
        """
        whole, fetching = self._directory / f"{key}{_SHARD}", self._directory / f"{key}.fetching"
        while True:
            with self._disk_errors():
                file = _open_locked(whole)
            if file is not None:
                return file
            if not self._fetches:
                raise _CannotCache(f"{source} is not in the cache")
            with self._disk_errors():
                lock = fetching.open("ab")
            with lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be fetching it, or has
                if _is_at(lock, fetching):
                    try:
                        if not whole.exists():  # else the process that held the lock has fetched it
                            self._fetch(source, whole)
                    finally:
                        fetching.unlink()

    def _fetch(self, source: Path, whole: Path) -> None:
        """Copy `source` to a part, and rename it when it is whole; an error removes the part. The caller
        holds the lock of the fetch. Raises _CannotCache, and OSError of the source."""
        part_path = whole.with_suffix(_PART)
        with self._disk_errors():
            part = part_path.open("wb")
        try:
            with part:
                self._copy(source, part)
            with self._locked():  # a listing of all files must contain it under one name
                part_path.rename(whole)
        except BaseException:
            part_path.unlink()
            raise

    def _copy(self, source: Path, part: BinaryIO) -> None:
        """Reserve space, copy, and sync. Raises _CannotCache also for a source that changed meanwhile: the
        key of the shard is of its first state."""
        before = source.stat()
        self._free_space(before.st_size, part)
        with source.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                with self._disk_errors():
                    part.write(chunk)
        with self._disk_errors():
            part.flush()
            os.fsync(part.fileno())
        after = source.stat()
        if (part.tell(), after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise _CannotCache(f"{source} changed while it was copied to the cache")

    def _free_space(self, size: int, part: BinaryIO) -> None:
        """Remove leftovers of killed processes, and the least recently used shards that no process reads,
        until `size` bytes are free; reserve these for the empty `part`. Raises _CannotCache if too few
        are."""
        with self._locked():
            for fetching in self._directory.glob("*.fetching"):
                _remove_unless_held(fetching, fetching.with_suffix(_PART))
            files = self._files()
            free = self._max_bytes - sum(stat.st_size for stat in files.values())
            for path in sorted(files, key=lambda path: files[path].st_mtime_ns):
                if free < size and path.suffix == _SHARD and _remove_unless_held(path):
                    free += files[path].st_size
            if free < size:
                raise _CannotCache(
                    f"the cache {self._directory} has no space for a shard of {size} bytes: its limit is "
                    f"{self._max_bytes} bytes, and the shards that it has are in use"
                )
            part.truncate(size)

    def _files(self) -> dict[Path, os.stat_result]:
        """All files of the directory; those that are removed meanwhile are left out."""
        found = {}
        for path in self._directory.iterdir():
            with suppress(FileNotFoundError):
                found[path] = path.stat()
        return found

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the directory for the `with`: no other process renames or removes shards meanwhile. Blocks
        until then."""
        with self._disk_errors(), (self._directory / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Turn an OSError in the `with`, which is one of the cache's disk, into _CannotCache, and stop
        writing to the cache in this process."""
        try:
            yield
        except OSError as error:
            self._fetches = False
            raise _CannotCache(f"the cache {self._directory} cannot be used: {error}") from error


def _key(source: Path, version: str | None) -> str:
    """Name of a shard in the cache: a hash of path and version. Raises OSError if the source cannot be
    examined."""
    if version is None:
        stat = source.stat()
        version = f"{stat.st_size} {stat.st_mtime_ns}"
    return hashlib.sha256(f"{source}\0{version}".encode()).hexdigest()[:40]


def _open_locked(path: Path) -> BinaryIO | None:
    """Shard open for reading, and marked as used now; no process removes it until it is closed. None: it does
    not exist."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    fcntl.flock(file, fcntl.LOCK_SH)
    if not _is_at(file, path):  # removed before it was locked
        file.close()
        return None
    with suppress(OSError):
        os.utime(file.fileno())
    return file


def _remove_unless_held(path: Path, *first: Path) -> bool:
    """Remove `first`, then `path`, unless a process holds a lock on `path`. Return whether it is gone."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):
                for each in (*first, path):
                    each.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        pass
    return True


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether the open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
