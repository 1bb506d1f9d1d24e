"""Rules about volume mounts in the pod template. An API server refuses pods that break them; as rules of the
job they are reported when it is applied, before the operator creates a pod."""

from __future__ import annotations

from ropeteam.api.rule import Rule, Spec, at, cel_trainer_has, spec_with, template_with, trainer_container

OURS = ["/ropeteam", "/ropeteam-token"]
"""Where the agent and the job's token are mounted. A list, no pattern: CEL estimates a higher cost for
patterns."""
CHECKPOINTS = ["/checkpoints"]
SIGNING = ["/ropeteam-signing"]
OWN_VOLUMES = "ropeteam-"
"""Prefix of volumes that the operator adds to the pod: the template may mount them without defining them."""
_CLAIM: Spec = {"persistentVolumeClaim": {"claimName": "data"}}
_SIGNED: Spec = {"volume": _CLAIM, "signing": {"secretName": "keys"}}


def _trainer_mounts_at(paths: list[str], spec: Spec) -> bool:
    """Whether the container `trainer` mounts a volume at exactly one of `paths`."""
    return any(each["mountPath"] in paths for each in trainer_container(spec).get("volumeMounts", ()))


def _cel_trainer_mounts_at(paths: list[str]) -> str:
    """CEL expression of `_trainer_mounts_at`."""
    return cel_trainer_has(f"has(c.volumeMounts) && c.volumeMounts.exists(m, m.mountPath in {paths})")


def _mounts_exist(spec: Spec) -> bool:
    """Whether each volume that a container mounts is in the template, or may be one that the operator
    adds."""
    names = {each["name"] for each in at(spec, "template.spec.volumes") or ()}
    containers = at(spec, "template.spec.containers") or ()
    mounted = (mount["name"] for each in containers for mount in each.get("volumeMounts", ()))
    return all(name in names or name.startswith(OWN_VOLUMES) for name in mounted)


def _template_mounting_data(mount: str, path: str) -> Spec:
    """An example: a template with a volume `data`, whose container `trainer` mounts the volume `mount` at
    `path`."""
    template = template_with(volumeMounts=[{"name": mount, "mountPath": path}])
    template["spec"]["volumes"] = [{"name": "data", **_CLAIM}]
    return template


MOUNT_RULES = (
    Rule(
        path="spec",
        cel=(
            "!has(self.template) || !has(self.template.spec) || !has(self.template.spec.containers) || "
            "self.template.spec.containers.all(c, !has(c.volumeMounts) || c.volumeMounts.all(m, "
            f"m.name.startsWith('{OWN_VOLUMES}') || (has(self.template.spec.volumes) && "
            "self.template.spec.volumes.exists(v, v.name == m.name))))"
        ),
        holds=_mounts_exist,
        message=(
            "spec.template: a container mounts a volume that spec.template.spec.volumes does not have; "
            "correct the name in volumeMounts, or add the volume"
        ),
        valid=spec_with(template=_template_mounting_data("data", "/data")),
        invalid=spec_with(template=_template_mounting_data("date", "/data")),
    ),
    Rule(
        path="spec",
        cel=f"!{_cel_trainer_mounts_at(OURS)}",
        holds=lambda spec: not _trainer_mounts_at(OURS, spec),
        message=(
            "spec.template: container trainer mounts a volume at /ropeteam or /ropeteam-token, "
            "which Ropeteam uses; use another mountPath"
        ),
        valid=spec_with(template=_template_mounting_data("data", "/ropeteam-data")),
        invalid=spec_with(template=_template_mounting_data("data", "/ropeteam")),
    ),
    Rule(
        path="spec",
        cel=f"!has(self.checkpoint) || !{_cel_trainer_mounts_at(CHECKPOINTS)}",
        holds=lambda spec: "checkpoint" not in spec or not _trainer_mounts_at(CHECKPOINTS, spec),
        message=(
            "spec.template: container trainer mounts a volume at /checkpoints, the mountPath of "
            "spec.checkpoint.volume; use another mountPath, or remove spec.checkpoint"
        ),
        valid=spec_with(template=_template_mounting_data("data", "/checkpoints")),
        invalid=spec_with(
            template=_template_mounting_data("data", "/checkpoints"), checkpoint={"volume": _CLAIM}
        ),
    ),
    Rule(
        path="spec",
        cel=f"!has(self.checkpoint) || !has(self.checkpoint.signing) || !{_cel_trainer_mounts_at(SIGNING)}",
        holds=lambda spec: at(spec, "checkpoint.signing") is None or not _trainer_mounts_at(SIGNING, spec),
        message=(
            "spec.template: container trainer mounts a volume at /ropeteam-signing, where the Secret of "
            "spec.checkpoint.signing is mounted; use another mountPath"
        ),
        valid=spec_with(template=_template_mounting_data("data", "/signing"), checkpoint=_SIGNED),
        invalid=spec_with(template=_template_mounting_data("data", "/ropeteam-signing"), checkpoint=_SIGNED),
    ),
)
