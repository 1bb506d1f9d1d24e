"""Keep files of slow storage on a local disk, for all processes of a node.

    cache = ShardCache()                                  # of the TrainingJob: spec.shardCache
    cache = ShardCache("/scratch/shards", 200 * 10**9)    # anywhere
    with cache.open("/datasets/shard-0007.npy") as file:
        samples = numpy.load(file)

Promises: of all processes that ask for a file, one fetches it and the others wait; what is found under its
final name is whole, whoever was killed and when; the files never take more than `max_bytes`; a file that is
open is not removed; and where the cache cannot help, its disk being full for instance, files are read where
they are, and one message says so.

How: a shard is copied into KEY.part and renamed to KEY.shard. Whoever copies holds a lock on KEY.fetching,
whoever reads a shared lock on the shard, and both locks end with the process (flock): nothing is ever left
locked, and a part whose KEY.fetching nobody holds is a leftover. Limits: the directory must be on a local
file system; whoever waits for a fetch waits as long as the source takes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ropeteam_trainer.contract import config

_CHUNK_BYTES = 4 << 20
_SHARD, _PART = ".shard", ".part"
Source = str | os.PathLike[str]


class _CannotCache(Exception):
    """Read the source instead. Says why."""


class ShardCache:
    """A directory of copies. Make one in each process that reads; they find each other by the directory."""

    def __init__(self, directory: Source | None = None, max_bytes: int | None = None) -> None:
        """Makes the directory. All processes should give the same max_bytes: each keeps to its own. What is
        not given is that of spec.shardCache; ValueError where there is none.
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
        self._complained = False

    def open(self, source: Source, version: str | None = None) -> BinaryIO:
        """The file `source`, open for reading, from the cache if possible. It stays there until closed.

        version: what distinguishes contents of the same path; default: size and time of change, for which the
        source is looked at each time. Raises OSError only if the source itself cannot be read.
        """
        path = Path(source).absolute()
        try:
            return self._cached(path, _key(path, version))
        except _CannotCache as why:
            if not self._complained:
                self._complained = True
                print(f"ropeteam: {why}. It is read from where it is.", file=sys.stderr, flush=True)
            return path.open("rb")

    @contextmanager
    def path(self, source: Source, version: str | None = None) -> Iterator[Path]:
        """For readers that want a name: valid inside of the `with`. See open()."""
        with self.open(source, version) as file:
            yield Path(file.name)

    def _cached(self, source: Path, key: str) -> BinaryIO:
        whole, fetching = self._directory / f"{key}{_SHARD}", self._directory / f"{key}.fetching"
        while True:
            with self._using():
                file = _leased(whole)
            if file is not None:
                return file
            if not self._fetches:
                raise _CannotCache(f"{source} is not in the cache")
            with self._using():
                lock = fetching.open("ab")
            with lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be at it, or have been
                if _is_at(lock, fetching):
                    try:
                        if not whole.exists():
                            self._fetch(source, whole)
                    finally:
                        fetching.unlink()

    def _fetch(self, source: Path, whole: Path) -> None:
        """Copy `source` to a part, and give it its name when it is whole. Nobody else is at it."""
        part_path = whole.with_suffix(_PART)
        with self._using():
            part = part_path.open("wb")
        try:
            with part:
                self._copy(source, part)
            with self._alone():  # a look at all files must find it under one name
                part_path.rename(whole)
        except BaseException:
            part_path.unlink()
            raise

    def _copy(self, source: Path, part: BinaryIO) -> None:
        before = source.stat()
        self._make_room(before.st_size, part)
        with source.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                with self._using():
                    part.write(chunk)
        with self._using():
            part.flush()
            os.fsync(part.fileno())
        after = source.stat()
        if (part.tell(), after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise _CannotCache(f"{source} changed while it was copied to the cache")

    def _make_room(self, size: int, part: BinaryIO) -> None:
        """Remove leftovers, and what was not used for longest; reserve `size` bytes for the empty `part`."""
        with self._alone():
            for fetching in self._directory.glob("*.fetching"):
                _remove_unless_held(fetching, fetching.with_suffix(_PART))
            files = self._files()
            free = self._max_bytes - sum(stat.st_size for stat in files.values())
            for path in sorted(files, key=lambda path: files[path].st_mtime_ns):
                if free < size and path.suffix == _SHARD and _remove_unless_held(path):
                    free += files[path].st_size
            if free < size:
                raise _CannotCache(f"the cache {self._directory} has no room for a shard of {size} bytes")
            part.truncate(size)

    def _files(self) -> dict[Path, os.stat_result]:
        found = {}
        for path in self._directory.iterdir():
            with suppress(FileNotFoundError):
                found[path] = path.stat()
        return found

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process names or removes files meanwhile."""
        with self._using(), (self._directory / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _using(self) -> Iterator[None]:
        """A disk that is full or broken is not written again by this process."""
        try:
            yield
        except OSError as error:
            self._fetches = False
            raise _CannotCache(f"the cache {self._directory} cannot be used: {error}") from error


def _key(source: Path, version: str | None) -> str:
    if version is None:
        stat = source.stat()
        version = f"{stat.st_size} {stat.st_mtime_ns}"
    return hashlib.sha256(f"{source}\0{version}".encode()).hexdigest()[:40]


def _leased(path: Path) -> BinaryIO | None:
    """Open for reading, and marked as used now; nobody removes it until it is closed. None: not there."""
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
    """Remove `first`, then `path`, unless a process holds a lock on `path`. Is it gone?"""
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
    """Is the open file still what the name stands for?"""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
