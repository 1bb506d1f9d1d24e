"""Rules about checkpoints: where they are, and which one a job resumes from."""

from __future__ import annotations

from ropeteam.api.rule import Rule, Spec, at, spec_with
from ropeteam.api.schema.walker import matches

OUTSIDE = "(^/)|((^|/)[.][.](/|$))|(^([.]?/)*[.]?$)"
"""Matches a path that is absolute, has `..`, or is the volume itself, as `.`."""
_VOLUME: Spec = {"persistentVolumeClaim": {"claimName": "checkpoints"}}
_STEP: Spec = {"policy": "Step", "step": 100}

CHECKPOINT_RULES = (
    Rule(
        path="spec.resume",
        cel="self.policy != 'Step' || has(self.step)",
        holds=lambda resume: resume["policy"] != "Step" or "step" in resume,
        message="spec.resume.step: is missing; spec.resume.policy Step needs the step to resume from",
        valid=spec_with(resume=_STEP, checkpoint={"volume": _VOLUME}),
        invalid=spec_with(resume={"policy": "Step"}, checkpoint={"volume": _VOLUME}),
    ),
    Rule(
        path="spec.resume",
        cel="self.policy == 'Step' || !has(self.step)",
        holds=lambda resume: resume["policy"] == "Step" or "step" not in resume,
        message="spec.resume.step: needs spec.resume.policy Step; set that, or remove the step",
        valid=spec_with(resume={"policy": "Never"}),
        invalid=spec_with(resume={"policy": "Latest", "step": 100}),
    ),
    Rule(
        path="spec",
        cel="self.resume.policy != 'Step' || has(self.checkpoint)",
        holds=lambda spec: spec["resume"]["policy"] != "Step" or "checkpoint" in spec,
        message="spec.checkpoint: is missing; spec.resume.policy Step needs the volume with the checkpoints",
        valid=spec_with(resume=_STEP, checkpoint={"volume": _VOLUME}),
        invalid=spec_with(resume=_STEP),
    ),
    Rule(
        path="spec",
        cel="self.workers == 1 || !has(self.checkpoint) || !has(self.checkpoint.volume.emptyDir)",
        holds=lambda spec: spec["workers"] == 1 or at(spec, "checkpoint.volume.emptyDir") is None,
        message=(
            "spec.checkpoint.volume: emptyDir is one folder per pod, and all workers must share one; "
            "use a persistentVolumeClaim with ReadWriteMany, or nfs"
        ),
        valid=spec_with(checkpoint={"volume": _VOLUME}),
        invalid=spec_with(checkpoint={"volume": {"emptyDir": {}}}),
    ),
    Rule(
        path="spec.checkpoint",
        cel="!has(self.volume.name)",
        holds=lambda checkpoint: "name" not in checkpoint["volume"],
        message="spec.checkpoint.volume.name: is not used, the operator names the volume; remove it",
        valid=spec_with(checkpoint={"volume": _VOLUME}),
        invalid=spec_with(checkpoint={"volume": {"name": "checkpoints", **_VOLUME}}),
    ),
    Rule(
        path="spec.checkpoint",
        cel=f"!has(self.path) || !self.path.matches('{OUTSIDE}')",
        holds=lambda checkpoint: "path" not in checkpoint or not matches(OUTSIDE, checkpoint["path"]),
        message="spec.checkpoint.path: must be a folder in the volume; name one, relative and without '..'",
        valid=spec_with(checkpoint={"volume": _VOLUME, "path": "./runs/1"}),
        invalid=spec_with(checkpoint={"volume": _VOLUME, "path": "../other"}),
    ),
)
