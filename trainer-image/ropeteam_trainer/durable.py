"""Files that are there after a power cut, whole. Standard library only. Raises OSError.

Order of a write: content -> fsync -> its name -> fsync of the folder. Promise: whoever reads finds the former
content or the new one, and after `write` has returned the new one. Limit: folders above that one have to be
durable already (`sync_folder` of theirs).
"""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """One writer of a path at a time."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable: those that were made, renamed and deleted."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
