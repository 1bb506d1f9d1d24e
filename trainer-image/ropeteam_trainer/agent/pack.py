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


def pack() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_entry("__main__.py"), _MAIN)
        for name, content in _sources(Path(str(ropeteam_trainer.__file__)).parent):
            archive.writestr(_entry(name), content)
    return buffer.getvalue()


def _sources(package: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(package.rglob("*.py")):
        yield str(path.relative_to(package.parent)), path.read_bytes()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EARLIEST)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry


if __name__ == "__main__":
    sys.stdout.buffer.write(pack())
