"""PersistentVolumeClaims that a job names, each with its field. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ropeteam.api.rule import at

if TYPE_CHECKING:
    from ropeteam.api.job import TrainingJobSpec


def claims(spec: TrainingJobSpec) -> dict[str, str]:
    """A claim's name to the field that wants it; the first, where several do."""
    found: dict[str, str] = {}
    for field, volume in _volumes(spec):
        name = at(volume, "persistentVolumeClaim.claimName")
        if isinstance(name, str):
            found.setdefault(name, field)
    return found


def _volumes(spec: TrainingJobSpec) -> Iterator[tuple[str, Any]]:
    if spec.checkpoint:
        yield "spec.checkpoint.volume", spec.checkpoint.volume
    for number, volume in enumerate(at(spec.template, "spec.volumes") or ()):
        yield f"spec.template.spec.volumes[{number}]", volume
