"""Folders that other processes can write to, too: no name in them leads anywhere else. Standard library only.

A process that can write to a volume can put a link, a FIFO or a device where a file of ours should be. So
everything below a folder that was opened is reached by one name at a time, through the open folder
(`dir_fd`).
Promises: links are neither followed nor deleted through; only regular files are read or written, and nothing
blocks on others; once `write` has returned, the new content is there whole after a power cut, before that the
previous content is. Limits: links on the way to the first folder, or to its volume, are followed, because
people mount volumes that way; so are hard links, for reading; one writer of a name at a time. Raises OSError.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ropeteam_trainer.contract.errors import StorageError

_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,255}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_DEEPEST = 16
"""Deepest nesting of folders that remove_tree() deletes."""
_LINK = (
    "a part of spec.checkpoint.path, {}, is a link; links in the volume are not followed, for they may point "
    "out of it. Name the folder itself, or replace the link by it"
)


class UnexpectedFile(StorageError, OSError):
    """File that is not one that we write: no plain name, a link, no regular file, too large."""


def is_plain(name: str) -> bool:
    """Whether this is the name of an entry in a folder, and nothing else to any program."""
    return _PLAIN.fullmatch(name) is not None and name not in (".", "..")


@dataclass(frozen=True)
class VolumePath:
    """A folder in a volume. No part of `path` may be a link: any process that writes to the volume can make
    one."""

    volume: Path
    path: Path
    """Relative to the volume."""

    def __str__(self) -> str:
        return str(self.volume / self.path)


Location = Path | VolumePath


def location(directory: str, volume: str) -> Location:
    """Location of the checkpoint folder of a CheckpointConfig. It may be outside the volume on a local
    cluster, where the template mounts another volume there."""
    path = Path(directory)
    if not volume or not path.is_relative_to(volume):
        return path
    return VolumePath(Path(volume), path.relative_to(volume))


class Folder:
    """An open folder. The caller closes it."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor, self.path = descriptor, path

    @classmethod
    def at(cls, where: Location, make: bool = False) -> Folder:
        """Open the folder at a path."""
        if isinstance(where, VolumePath):
            here = cls.at(where.volume, make)
            for name in where.path.parts:
                with here:
                    here = here._part(name, make)
            return here
        if make:
            with suppress(FileExistsError):  # it is a file: the error of open() is clearer
                where.mkdir(parents=True, exist_ok=True)
        return cls(os.open(where, os.O_RDONLY | os.O_DIRECTORY), str(where))

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)

    def folder(self, name: str, make: bool = False) -> Folder:
        with self._checked(name):
            try:
                return self._enter(name, make)
            except NotADirectoryError:
                raise UnexpectedFile(errno.ENOTDIR, "Not a directory, and links are not followed") from None

    def down(self, path: str) -> Folder:
        """Open a folder some levels below, `step-1/1.0.1`. "": this one, opened once more."""
        here = Folder(os.dup(self._descriptor), self.path)
        for name in path.split("/") if path else ():
            with here:
                here = here.folder(name)
        return here

    def names(self) -> list[str]:
        """Plain names in it, of entries of any kind."""
        return sorted(name for name in self._entries() if is_plain(name))

    def has(self, name: str) -> bool:
        """Whether there is an entry of this name, of any kind."""
        with suppress(FileNotFoundError):
            return bool(self._stat(name))
        return False

    def is_folder(self, name: str) -> bool:
        with suppress(FileNotFoundError):
            return stat.S_ISDIR(self._stat(name).st_mode)
        return False

    def size(self, name: str) -> int:
        """Size of a regular file in bytes."""
        with self._checked(name):
            status = self._stat(name)
            _require(stat.S_ISREG(status.st_mode), "is not a regular file")
            return status.st_size

    def open(self, name: str) -> BinaryIO:
        """Open a regular file for reading."""
        self.size(name)  # to open a device may have an effect
        with self._checked(name):
            file = os.fdopen(os.open(name, _READ, dir_fd=self._descriptor), "rb")
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                file.close()
                raise UnexpectedFile(errno.EINVAL, "is not a regular file")
            os.set_blocking(file.fileno(), True)  # some file systems (FUSE, HSM) would answer EAGAIN
        return file

    def read(self, name: str, most: int) -> bytes:
        """Content of a regular file that has at most `most` bytes."""
        with self.open(name) as file, self._checked(name):
            content = file.read(most + 1)
            _require(len(content) <= most, f"is larger than {most} bytes")
        return content

    def new(self, name: str, buffering: int = -1) -> BinaryIO:
        """Create a file and open it for writing. A previous file of this name is removed."""
        self.remove(name)
        with self._checked(name):
            return os.fdopen(os.open(name, _NEW, 0o666, dir_fd=self._descriptor), "wb", buffering)

    def create(self, name: str) -> None:
        """Create an empty file, exclusively. Raises FileExistsError."""
        with self._checked(name):
            os.close(os.open(name, _NEW, 0o666, dir_fd=self._descriptor))

    def write(self, name: str, content: bytes) -> None:
        """Write a file, durably. Order: content -> fsync -> its name -> fsync of the folder."""
        temporary = f".{name}.tmp"
        with self.new(temporary) as file, self._checked(name):
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.rename(temporary, name)
        self.sync()

    def rename(self, name: str, to: str) -> None:
        """Rename an entry. A previous entry of the name `to` is replaced."""
        with self._checked(name):
            _require(is_plain(to), "cannot have that name")
            os.replace(name, to, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, or a link itself. A missing one is no error."""
        with self._checked(name), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def remove_folder(self, name: str) -> None:
        """Remove an empty folder."""
        with self._checked(name):
            os.rmdir(name, dir_fd=self._descriptor)

    def remove_tree(self, name: str) -> None:
        """Remove a folder with its content, as far as possible. Links in it are deleted themselves."""
        with self._checked(name):
            self._remove_tree(name, _DEEPEST)

    def sync(self) -> None:
        """Make changes of its entries durable: creations, renames and deletions."""
        os.fsync(self._descriptor)

    def _remove_tree(self, name: str, depth: int) -> None:
        with suppress(OSError):
            with self._enter(name) as inner:
                for each in inner._entries():
                    with suppress(OSError):
                        if not inner.is_folder(each):
                            os.unlink(each, dir_fd=inner._descriptor)
                        elif depth:
                            inner._remove_tree(each, depth - 1)
            os.rmdir(name, dir_fd=self._descriptor)

    def _enter(self, name: str, make: bool = False) -> Folder:
        try:
            return Folder(os.open(name, _FOLDER, dir_fd=self._descriptor), f"{self.path}/{name}")
        except FileNotFoundError:  # open first: for an existing folder mkdir may fail with EACCES (NFS)
            if not make:
                raise
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=self._descriptor)
        return self._enter(name)

    def _part(self, name: str, make: bool) -> Folder:
        """Open one part of a VolumePath. It comes from the job, so it need not be plain. A link proves
        nothing against the files behind it, so the error is not UnexpectedFile."""
        with self._checked(name, plain=False):
            try:
                return self._enter(name, make)
            except NotADirectoryError:
                if not stat.S_ISLNK(self._stat(name).st_mode):
                    raise
            raise OSError(errno.ELOOP, _LINK.format(name))

    def _entries(self) -> list[str]:
        """Names of all entries. The folder is opened again: then an NFS client revalidates its listing at the
        server."""
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._descriptor)
        try:
            return os.listdir(descriptor)  # noqa: PTH208 (it has no path)
        finally:
            os.close(descriptor)

    def _stat(self, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)

    @contextmanager
    def _checked(self, name: str, plain: bool = True) -> Iterator[None]:
        """Refuse a name that is not plain; put the whole path into errors."""
        try:
            _require(not plain or is_plain(name), "is not a plain name")
            yield
        except OSError as error:
            error.filename = f"{self.path}/{name}"
            raise


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise UnexpectedFile(errno.EINVAL, otherwise)
