"""Folders that others can write to, too: no name in them leads anywhere else. Standard library only.

Whoever can write to a volume can put a link, a FIFO or a device where a file of ours should be. So everything
below a folder that was opened is reached by one name at a time, through the open folder (`dir_fd`).
Promises: links are neither followed nor deleted through; what is no regular file is never read or written,
and nothing waits for it; what `write` has returned from is there whole after a power cut, and before that its
former content is. Limits: links on the way to the first folder, or to its volume, are followed, for that is
how people mount things; so is a hard link, to be read; one writer of a name at a time. Raises OSError.
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

_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,255}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_DEEPEST = 16
"""Folders in folders that are deleted."""
_LINK = (
    "a part of spec.checkpoint.path, {}, is a link; links in the volume are not followed, for they may lead "
    "out of it. Name the folder itself, or put it in the place of the link"
)


class NotOurs(OSError):
    """What has this name is nothing that we write: no plain name, a link, no regular file, too large."""


def is_plain(name: str) -> bool:
    """It names something in a folder, for anybody who reads it."""
    return _PLAIN.fullmatch(name) is not None and name not in (".", "..")


@dataclass(frozen=True)
class VolumePath:
    """A folder in a volume. No part of `path` may be a link: whoever can write the volume can make one."""

    volume: Path
    path: Path
    """Relative to the volume."""

    def __str__(self) -> str:
        return str(self.volume / self.path)


Location = Path | VolumePath


def location(directory: str, volume: str) -> Location:
    """Of the folder of checkpoints, as a CheckpointConfig tells it. Not in the volume it may be on a local
    cluster, where the template mounts something else there."""
    path = Path(directory)
    if not volume or not path.is_relative_to(volume):
        return path
    return VolumePath(Path(volume), path.relative_to(volume))


class Folder:
    """An open folder. To be closed."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor, self.path = descriptor, path

    @classmethod
    def at(cls, where: Location, make: bool = False) -> Folder:
        """Where a path leads."""
        if isinstance(where, VolumePath):
            here = cls.at(where.volume, make)
            for name in where.path.parts:
                with here:
                    here = here._part(name, make)
            return here
        if make:
            with suppress(FileExistsError):  # it is a file: to open it says more
                where.mkdir(parents=True, exist_ok=True)
        return cls(os.open(where, os.O_RDONLY | os.O_DIRECTORY), str(where))

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)

    def folder(self, name: str, make: bool = False) -> Folder:
        with self._telling(name):
            try:
                return self._enter(name, make)
            except NotADirectoryError:
                raise NotOurs(errno.ENOTDIR, "Not a directory, and links are not followed") from None

    def down(self, path: str) -> Folder:
        """Some levels below, `step-1/1.0.1`. "": this one, opened once more."""
        here = Folder(os.dup(self._descriptor), self.path)
        for name in path.split("/") if path else ():
            with here:
                here = here.folder(name)
        return here

    def names(self) -> list[str]:
        """Plain ones, of whatever they are."""
        return sorted(name for name in self._all() if is_plain(name))

    def has(self, name: str) -> bool:
        """Whatever it is."""
        with suppress(FileNotFoundError):
            return bool(self._about(name))
        return False

    def is_folder(self, name: str) -> bool:
        with suppress(FileNotFoundError):
            return stat.S_ISDIR(self._about(name).st_mode)
        return False

    def size(self, name: str) -> int:
        """In bytes, of a regular file."""
        with self._telling(name):
            about = self._about(name)
            _demand(stat.S_ISREG(about.st_mode), "is no regular file")
            return about.st_size

    def open(self, name: str) -> BinaryIO:
        """A regular file, to be read."""
        self.size(name)  # to open a device may have an effect
        with self._telling(name):
            file = os.fdopen(os.open(name, _READ, dir_fd=self._descriptor), "rb")
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                file.close()
                raise NotOurs(errno.EINVAL, "is no regular file")
            os.set_blocking(file.fileno(), True)  # some file systems (FUSE, HSM) would answer EAGAIN
        return file

    def read(self, name: str, most: int) -> bytes:
        """All of a regular file that has so many bytes at most."""
        with self.open(name) as file, self._telling(name):
            content = file.read(most + 1)
            _demand(len(content) <= most, f"is larger than {most} bytes")
        return content

    def new(self, name: str, buffering: int = -1) -> BinaryIO:
        """A file that is made now, to be written. What had the name before is gone."""
        self.remove(name)
        with self._telling(name):
            return os.fdopen(os.open(name, _NEW, 0o666, dir_fd=self._descriptor), "wb", buffering)

    def create(self, name: str) -> None:
        """An empty file, exclusively. Raises FileExistsError."""
        with self._telling(name):
            os.close(os.open(name, _NEW, 0o666, dir_fd=self._descriptor))

    def write(self, name: str, content: bytes) -> None:
        """Durable. Order: content -> fsync -> its name -> fsync of the folder."""
        temporary = f".{name}.tmp"
        with self.new(temporary) as file, self._telling(name):
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.rename(temporary, name)
        self.sync()

    def rename(self, name: str, to: str) -> None:
        """Whatever had the other name is gone."""
        with self._telling(name):
            _demand(is_plain(to), "cannot have that name")
            os.replace(name, to, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """A file, or a link itself. That there is none is no error."""
        with self._telling(name), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def remove_folder(self, name: str) -> None:
        """An empty one."""
        with self._telling(name):
            os.rmdir(name, dir_fd=self._descriptor)

    def remove_tree(self, name: str) -> None:
        """A folder with all that is in it, as far as that is possible. Links in it are deleted themselves."""
        with self._telling(name):
            self._remove_tree(name, _DEEPEST)

    def sync(self) -> None:
        """Make its names durable: those that were made, renamed and deleted."""
        os.fsync(self._descriptor)

    def _remove_tree(self, name: str, depth: int) -> None:
        with suppress(OSError):
            with self._enter(name) as inner:
                for each in inner._all():
                    with suppress(OSError):
                        if not inner.is_folder(each):
                            os.unlink(each, dir_fd=inner._descriptor)
                        elif depth:
                            inner._remove_tree(each, depth - 1)
            os.rmdir(name, dir_fd=self._descriptor)

    def _enter(self, name: str, make: bool = False) -> Folder:
        try:
            return Folder(os.open(name, _FOLDER, dir_fd=self._descriptor), f"{self.path}/{name}")
        except FileNotFoundError:  # first, for where it is there mkdir may say EACCES (NFS)
            if not make:
                raise
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=self._descriptor)
        return self._enter(name)

    def _part(self, name: str, make: bool) -> Folder:
        """Of a VolumePath: the job says it, so it need not be plain. That it is a link proves nothing against
        what lies behind it, so it is not NotOurs."""
        with self._telling(name, plain=False):
            try:
                return self._enter(name, make)
            except NotADirectoryError:
                if not stat.S_ISLNK(self._about(name).st_mode):
                    raise
            raise OSError(errno.ELOOP, _LINK.format(name))

    def _all(self) -> list[str]:
        """Opened anew: that is when a client of NFS asks the server whether its listing still holds."""
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._descriptor)
        try:
            return os.listdir(descriptor)  # noqa: PTH208 (it has no path)
        finally:
            os.close(descriptor)

    def _about(self, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)

    @contextmanager
    def _telling(self, name: str, plain: bool = True) -> Iterator[None]:
        """Refuse a name that is not plain; let errors tell the whole path."""
        try:
            _demand(not plain or is_plain(name), "is no plain name")
            yield
        except OSError as error:
            error.filename = f"{self.path}/{name}"
            raise


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise NotOurs(errno.EINVAL, otherwise)
