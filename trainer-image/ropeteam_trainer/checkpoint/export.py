"""Export of a checkpoint as one file of plain PyTorch, which needs nothing of this library:

    python -m ropeteam_trainer.checkpoint.export /checkpoints/run-5eed/step-400/1.0.3 model.pt

    saved = torch.load("model.pt", weights_only=True)      # {"step": 400, "model": ..., "optimizer": ...}
    model.load_state_dict(saved["model"])

Each object is under the name that it had in the call of restore(). Names of parameters are those of the model
as it was written, whatever wrapped, sharded or split it. The state of an optimizer uses these names, too:
`torch.distributed.checkpoint.state_dict.set_optimizer_state_dict` accepts it. A folder of checkpoints in
place of one means its newest. All files are verified against the manifest's hashes.
Limits: the whole checkpoint is in memory at once. Signatures are not verified: that needs keys.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from ropeteam_trainer.checkpoint import reader
from ropeteam_trainer.checkpoint.decisions.manifest import STATE, Manifest, ref_at
from ropeteam_trainer.checkpoint.format import contents, names
from ropeteam_trainer.checkpoint.objects.stateful import TrainingState
from ropeteam_trainer.checkpoint.objects.tensorshard import TensorShard
from ropeteam_trainer.contract.errors import UserError
from ropeteam_trainer.contract.world import CheckpointRef


class ExportError(UserError, ValueError):
    """Checkpoint that is missing or damaged. The text describes the fault."""


def export(folder: Path) -> dict[str, Any]:
    """Content of a checkpoint, in the form that the module's docstring shows. All files are verified first.
    Raises ExportError, OSError, and ValueError for content that cannot be loaded."""
    directory, ref = _resolve(folder.absolute())
    inspection = reader.inspect_manifest(directory, ref)
    manifest = inspection.manifest
    if manifest is None or inspection.ref is None:
        raise ExportError(f"{folder} is not a usable checkpoint: {inspection.fault}")
    for file in manifest.files:
        found = reader.check_file(directory, ref, file, lambda _: None)
        if found.fault:
            raise ExportError(f"{folder} is damaged: {found.fault}")
    return _load(directory, ref, manifest)


def _resolve(folder: Path) -> tuple[Path, CheckpointRef]:
    """Directory and reference of the checkpoint `<directory>[/run-<UID>]/step-<n>/<world>`; or, for any other
    folder, of the newest checkpoint in it: of the newest run, the highest step. Raises ExportError if it has
    none."""
    parent = folder.parent.parent
    run = parent.name.removeprefix("run-") if parent.name.startswith("run-") else ""
    if (ref := ref_at(run, folder.parent.name, folder.name)) is not None:
        return (parent.parent if run else parent), ref
    refs = reader.find_checkpoints(folder)
    if not refs:
        raise ExportError(f"{folder} holds no checkpoint; name one, as status.checkpoint.location does")
    newest = max((ref for ref in refs if ref.run == refs[0].run), key=lambda ref: (ref.step, ref.world_id))
    return folder, newest


def _load(directory: Path, ref: CheckpointRef, manifest: Manifest) -> dict[str, Any]:
    """Load all tensors whole, and put each object together: its tensors by plain name, and its other
    state."""
    saved = reader.load_metadata(directory, ref, manifest.files)
    tensors = {name: torch.empty(each.shape, dtype=each.dtype) for name, each in saved.items()}
    whole = {name: TensorShard(each, tuple(each.shape), (0,) * each.dim()) for name, each in tensors.items()}
    reader.fill_shards(directory, ref, saved, whole, lambda: None)
    files = {file.name: file for file in manifest.files}
    state = reader.load_file(directory, ref, files[STATE])
    contents.check_shared_state(STATE, state)
    shared = {kind: state[kind] for kind in TrainingState().shared}
    result = {"step": ref.step, **state["others"]}
    for name, extra in shared["models"].items():
        mine = {
            key.removeprefix(f"{name}."): each for key, each in tensors.items() if key.startswith(f"{name}.")
        }
        result[name] = {**mine, **extra}
    for name, part in shared["optimizers"].items():
        result[name] = _optimizer_state(name, part, tensors)
    return result


def _optimizer_state(name: str, part: dict[str, Any], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """State of an optimizer as state_dict() returns it, with names of parameters in the place of numbers."""
    parameters = [each for group in part["groups"] for each in group["names"]]
    state = {
        each: {key: tensors[names.state_name(name, each, key)] for key in part["tensors"].get(each, ())}
        | part["values"].get(each, {})
        for each in parameters
    }
    groups = [{"params": list(group["names"]), **group["values"]} for group in part["groups"]]
    return {"state": state, "param_groups": groups}


def main() -> int:
    """Export as the command line says. Returns the exit code: 2 for wrong arguments or an error."""
    if len(sys.argv) != 3:
        print("usage: python -m ropeteam_trainer.checkpoint.export CHECKPOINT FILE", file=sys.stderr)
        return 2
    try:
        found = export(Path(sys.argv[1]))
        torch.save(found, sys.argv[2])
    except (ExportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    held = ", ".join(name for name in found if name != "step")
    print(f"wrote {sys.argv[2]}: step {found['step']}, with {held}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
