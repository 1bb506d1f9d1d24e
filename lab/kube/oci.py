"""Images between buildah and containerd: one OCI layout for all, and archives of what containerd has not yet.

Layers of torch are gigabytes and change rarely; pushed and imported whole they took a minute and a half for
each line of code that had changed. Source: the OCI image layout specification 1.1.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

Object = dict[str, Any]
_NAME = "org.opencontainers.image.ref.name"


class Layout:
    """A folder with images by name. `buildah push IMAGE oci:FOLDER:IMAGE` adds one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def blobs_of(self, name: str) -> list[str]:
        """Digests of its manifest, configuration and layers. Empty: it is not here, or not all of it."""
        entry = self._entry(name)
        if entry is None or not self._blob(entry["digest"]).exists():
            return []
        manifest = json.loads(self._blob(entry["digest"]).read_bytes())
        digests = [
            entry["digest"],
            manifest["config"]["digest"],
            *(each["digest"] for each in manifest["layers"]),
        ]
        return digests if all(self._blob(digest).exists() for digest in digests) else []

    def export(self, name: str, without: set[str], destination: Path) -> None:
        """An OCI archive of image `name` without the blobs `without`."""
        index = {"schemaVersion": 2, "manifests": [self._entry(name)]}
        with tarfile.open(destination, "w") as archive:
            _add(archive, "oci-layout", {"imageLayoutVersion": "1.0.0"})
            _add(archive, "index.json", index)
            for digest in sorted(set(self.blobs_of(name)) - without):
                archive.add(self._blob(digest), f"blobs/{digest.replace(':', '/')}")

    def prune(self) -> None:
        """Delete what no image of the index needs."""
        names = [_name(each) for each in self._index()]
        wanted = {self._blob(digest) for name in names if name for digest in self.blobs_of(name)}
        for path in (self.folder / "blobs" / "sha256").iterdir():
            if path not in wanted:
                path.unlink()

    def _index(self) -> list[Object]:
        file = self.folder / "index.json"
        return list(json.loads(file.read_text())["manifests"]) if file.exists() else []

    def _entry(self, name: str) -> Object | None:
        return next((each for each in self._index() if _name(each) == name), None)

    def _blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.replace(":", "/")


def _name(entry: Object) -> str:
    """Empty for an image whose name another one has taken."""
    return str(entry.get("annotations", {}).get(_NAME, ""))


def _add(archive: tarfile.TarFile, name: str, content: Object) -> None:
    data = json.dumps(content).encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))
