"""A checkpoint seen whole by one process: its manifest, then each of its files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ropeteam_trainer.checkpoint import reader
from ropeteam_trainer.checkpoint.decisions.restore import Inspection
from ropeteam_trainer.contract.world import CheckpointRef


def seen(directory: Path, ref: CheckpointRef) -> Inspection:
    found = reader.inspect_manifest(directory, ref)
    files = found.manifest.files if found.manifest and not found.fault else ()
    looks = (reader.check_file(directory, ref, file, lambda _: None) for file in files)
    return next((replace(look, manifest=found.manifest) for look in looks if look.fault), found)
