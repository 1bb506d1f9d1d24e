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
# VolumePath is used for one field only, so the text can name it.
_LINK = (
    "a part of spec.checkpoint.path, {}, is a link; links in the volume are not followed, for they may point "
    "out of it. Name the folder itself, or replace the link by it"
)


class UnexpectedFile(StorageError, OSError):
    """Error: an entry that is none of those that we write: no plain name, a link, no regular file, too large.
    Proof that the file is not the one that was saved; other OSErrors are none."""


def is_plain(name: str) -> bool:
    """Whether this is a name that we give to entries: letters, digits, `.`, `_`, `-`, and not `.` or `..`. No
    program takes such a name for a path."""
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
"""Path: links in it are followed. VolumePath: only those in the path of the volume are."""


class Folder:
    """An open folder. The caller closes it."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor, self.path = descriptor, path

    @classmethod
    def at(cls, where: Location, make: bool = False) -> Folder:
        """Open the folder at a path. `make`: create the missing folders of the path. Raises OSError; with
        ELOOP for a link in the path of a VolumePath."""
        if isinstance(where, VolumePath):
            here = cls.at(where.volume, make)
            for name in where.path.parts:
                with here:
                    here = here._open_volume_part(name, make)
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

    def open_folder(self, name: str, make: bool = False) -> Folder:
        """Open a folder in this one. `make`: create a missing one. Raises UnexpectedFile for a link or a
        file."""
        with self._checked(name):
            try:
                return self._open_or_make(name, make)
            except NotADirectoryError:
                raise UnexpectedFile(errno.ENOTDIR, "Not a directory, and links are not followed") from None

    def open_below(self, path: str) -> Folder:
        """Open a folder some levels below, `step-1/1.0.1`. "": this one, opened once more. Folders between
        are closed again."""
        here = Folder(os.dup(self._descriptor), self.path)
        for name in path.split("/") if path else ():
            with here:
                here = here.open_folder(name)
        return here

    def names(self) -> list[str]:
        """Plain names in it, sorted, of entries of any kind. Entries with other names are left out."""
        return sorted(name for name in self._entries() if is_plain(name))

    def has(self, name: str) -> bool:
        """Whether there is an entry of this name, of any kind."""
        with suppress(FileNotFoundError):
            return bool(self._stat(name))
        return False

    def is_folder(self, name: str) -> bool:
        """Whether there is a folder of this name. A link to one is none."""
        with suppress(FileNotFoundError):
            return stat.S_ISDIR(self._stat(name).st_mode)
        return False

    def size(self, name: str) -> int:
        """Size of a regular file in bytes. Raises UnexpectedFile for an entry of another kind."""
        with self._checked(name):
            status = self._stat(name)
            _require(stat.S_ISREG(status.st_mode), "is not a regular file")
            return status.st_size

    def open(self, name: str) -> BinaryIO:
        """Open a regular file for reading. The caller closes it. Raises UnexpectedFile for an entry of
        another kind."""
        self.size(name)  # raises for a device, which it could have an effect to open
        with self._checked(name):
            file = os.fdopen(os.open(name, _READ, dir_fd=self._descriptor), "rb")
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # replaced since size()
                file.close()
                raise UnexpectedFile(errno.EINVAL, "is not a regular file")
            os.set_blocking(file.fileno(), True)  # some file systems (FUSE, HSM) would answer EAGAIN
        return file

    def read(self, name: str, max_bytes: int) -> bytes:
        """Content of a regular file. Raises UnexpectedFile for a larger one, or an entry of another kind."""
        with self.open(name) as file, self._checked(name):
            content = file.read(max_bytes + 1)
            _require(len(content) <= max_bytes, f"is larger than {max_bytes} bytes")
        return content

    def open_new(self, name: str, buffering: int = -1) -> BinaryIO:
        """Create a file and open it for writing. A previous file of this name is removed first. `buffering`:
        as for open()."""
        self.remove(name)
        with self._checked(name):
            return os.fdopen(os.open(name, _NEW, 0o666, dir_fd=self._descriptor), "wb", buffering)

    def create(self, name: str) -> None:
        """Create an empty file, exclusively. Raises FileExistsError."""
        with self._checked(name):
            os.close(os.open(name, _NEW, 0o666, dir_fd=self._descriptor))

    def write(self, name: str, content: bytes) -> None:
        """Write a file, durably and atomically: at any time it has its previous content or all of the new
        one. Order: content -> fsync -> its name -> fsync of the folder."""
        temporary = f".{name}.tmp"
        with self.open_new(temporary) as file, self._checked(name):
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.rename(temporary, name)
        self.sync()

    def rename(self, name: str, to: str) -> None:
        """Rename an entry within this folder. A previous entry of the name `to` is replaced. Durable after
        sync()."""
        with self._checked(name):
            _require(is_plain(to), f"cannot be renamed to {to!r}, which is no plain name")
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
        """Remove a folder with its content, as far as possible: no error of the operating system is raised.
        Links in it are deleted themselves."""
        with self._checked(name):
            self._remove_tree(name, _DEEPEST)

    def sync(self) -> None:
        """Make changes of its entries durable: creations, renames and deletions."""
        os.fsync(self._descriptor)

    def _remove_tree(self, name: str, depth: int) -> None:
        """Delete the folder `name`, which may be any name, and folders to `depth` levels below it; deeper
        ones stay, and so do those above them. Errors are suppressed. Each level has an open descriptor."""
        with suppress(OSError):
            with self._open_or_make(name, make=False) as inner:
                for each in inner._entries():
                    with suppress(OSError):
                        if not inner.is_folder(each):
                            os.unlink(each, dir_fd=inner._descriptor)
                        elif depth:
                            inner._remove_tree(each, depth - 1)
            os.rmdir(name, dir_fd=self._descriptor)

    def _open_or_make(self, name: str, make: bool) -> Folder:
        """Open a folder; `make`: create it if it is missing. Raises NotADirectoryError for a link, too."""
        try:
            return Folder(os.open(name, _FOLDER, dir_fd=self._descriptor), f"{self.path}/{name}")
        except FileNotFoundError:  # open first: for an existing folder mkdir may fail with EACCES (NFS)
            if not make:
                raise
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=self._descriptor)
        return self._open_or_make(name, make=False)

    def _open_volume_part(self, name: str, make: bool) -> Folder:
        """Open one part of a VolumePath. The name comes from the job, so it need not be plain. Raises OSError
        (ELOOP) for a link, and not UnexpectedFile: checkpoints behind the link may be valid."""
        with self._checked(name, plain=False):
            try:
                return self._open_or_make(name, make)
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
        """Check that a name is plain, and run the block; put the whole path into each OSError. Raises
        UnexpectedFile for a name that is not plain."""
        try:
            _require(not plain or is_plain(name), "is not a plain name (A-Z, a-z, 0-9, '.', '_', '-')")
            yield
        except OSError as error:
            error.filename = f"{self.path}/{name}"
            raise


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise UnexpectedFile(errno.EINVAL, fault)
