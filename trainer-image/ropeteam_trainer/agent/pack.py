"""`python -m ropeteam_trainer.agent.pack > agent.pyz`: the agent as one file, for other images.

Contains all of ropeteam_trainer (the library for scripts too, which needs the image's torch) as source, so
that one file serves every Python from 3.10. The same sources give the same bytes.
"""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import ropeteam_trainer

_MAIN = """\
import sys
from ropeteam_trainer.agent.main import main
sys.exit(main())
"""
_EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold, for every file, so that equal sources give equal bytes."""


def pack() -> bytes:
    """Bytes of a zip that Python runs: main.py as its `__main__`, and the sources of our package."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_entry("__main__.py"), _MAIN)
        for name, content in _sources(Path(str(ropeteam_trainer.__file__)).parent):
            archive.writestr(_entry(name), content)
    return buffer.getvalue()


def _sources(package: Path) -> Iterator[tuple[str, bytes]]:
    """Path, relative to the package's parent, and content of each Python file, sorted."""
    for path in sorted(package.rglob("*.py")):
        yield str(path.relative_to(package.parent)), path.read_bytes()


def _entry(name: str) -> zipfile.ZipInfo:
    """Metadata of a file, the same on every machine: time, compression and mode 0644."""
    entry = zipfile.ZipInfo(name, _EARLIEST)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry


if __name__ == "__main__":
    sys.stdout.buffer.write(pack())
