"""PersistentVolumeClaims that a job names, each with its field. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ropeteam.api.rule import at


def claims(spec: Any) -> dict[str, str]:
    """Claim name to the first field that names it, as in `spec.checkpoint.volume`. `spec`: any JSON value,
    also an invalid spec; a malformed volume is skipped."""
    found: dict[str, str] = {}
    for field, volume in _volumes_by_field(spec):
        name = at(volume, "persistentVolumeClaim.claimName")
        if name and isinstance(name, str):
            found.setdefault(name, field)
    return found


def _volumes_by_field(spec: Any) -> Iterator[tuple[str, Any]]:
    """Field and value of each volume; a value may be None or malformed."""
    yield "spec.checkpoint.volume", at(spec, "checkpoint.volume")
    volumes = at(spec, "template.spec.volumes")
    for number, volume in enumerate(volumes if isinstance(volumes, list) else ()):
        yield f"spec.template.spec.volumes[{number}]", volume
