"""PersistentVolumeClaims that a job names, each with its field. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ropeteam.api.rule import at


def claims(spec: Any) -> dict[str, str]:
    """Each claim's name, and the first field that names it. spec: as the API server has it. Total: what is no
    volume names no claim."""
    found: dict[str, str] = {}
    for field, volume in _volumes(spec):
        name = at(volume, "persistentVolumeClaim.claimName")
        if name and isinstance(name, str):
            found.setdefault(name, field)
    return found


def _volumes(spec: Any) -> Iterator[tuple[str, Any]]:
    yield "spec.checkpoint.volume", at(spec, "checkpoint.volume")
    volumes = at(spec, "template.spec.volumes")
    for number, volume in enumerate(volumes if isinstance(volumes, list) else ()):
        yield f"spec.template.spec.volumes[{number}]", volume
