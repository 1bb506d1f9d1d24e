"""Rules that the schema of one field cannot express. Tests run their examples through CEL and Python.

An entry of `RULES` is about one value; if several fail, the user reads all of their messages. `CHANGES` lists
the fields that may not change while pods run, as in batch/Job; Kueue changes them while a job is suspended.
Lists and texts that CEL reads have a maximum in the schema: the server refuses rules that may cost too much.
"""

from __future__ import annotations

from typing import Any

from ropeteam.api.commands import MAX_RANKS
from ropeteam.api.job import GPU
from ropeteam.api.quantity import parse_quantity
from ropeteam.api.rule import (
    Change,
    Changes,
    Rule,
    Spec,
    at,
    cel_trainer_has,
    spec_with,
    template_with,
    trainer_container,
)
from ropeteam.api.rules.checkpoint import CHECKPOINT_RULES
from ropeteam.api.rules.command import COMMAND_RULES
from ropeteam.api.rules.elastic import ELASTIC_RULES
from ropeteam.api.rules.mounts import MOUNT_RULES
from ropeteam.api.schema.walker import matches
from ropeteam_trainer.contract import config
from ropeteam_trainer.contract.strategy import SyncType

MAX_NAME, MAX_SLOTS = 40, 4096
NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""A DNS-1035 label, as names of Services have to be."""
_VOLUME: Spec = {"persistentVolumeClaim": {"claimName": "checkpoints"}}
_CEL_SERVERS = (
    "(has(self.strategy) && self.strategy.sync.type == 'ParameterServer' ? "
    "self.strategy.sync.parameterServer.servers : 0)"
)


def _strategy_with_servers(servers: int) -> Spec:
    """An example of spec.strategy."""
    return {"sync": {"type": "ParameterServer", "parameterServer": {"servers": servers}}}


def _is_env_set_once(spec: Spec) -> bool:
    """Whether no variable is set both in spec.env and in the container `trainer`."""
    short = {each["name"] for each in spec.get("env", ())}
    return not any(each["name"] in short for each in trainer_container(spec).get("env", ()))


def _is_reserved_variable(name: str) -> bool:
    return name in config.RESERVED_ENV or (name.startswith("ROPETEAM_") and name not in config.USER_ENV)


def _has_no_reserved_variable(container: Spec) -> bool:
    return not any(_is_reserved_variable(each["name"]) for each in container.get("env", ()))


_RESERVED = (
    f"(e.name in {list(config.RESERVED_ENV)} || "
    f"(e.name.startsWith('ROPETEAM_') && !(e.name in {list(config.USER_ENV)})))"
)
_RESERVED_MESSAGE = (
    "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and similar variables, and ROPETEAM_*, are set by Ropeteam "
    "for each rank; remove them"
)


def _is_gpu_count_consistent(spec: Spec) -> bool:
    """Whether gpusPerWorker and the limit, if both are set, are the same number. The texts are compared, as
    in CEL, where the limit may be a text or a number."""
    limit = (at(spec, "resources.limits") or {}).get(GPU)
    return spec["gpusPerWorker"] == 0 or limit is None or str(limit) == str(spec["gpusPerWorker"])


def _rank_count(spec: Spec) -> int:
    """Number of ranks, as CEL can know it: without a number in the command, which `commands` limits."""
    per_worker = spec.get("processesPerWorker") or spec["gpusPerWorker"] or 1
    return int(spec["workers"] * per_worker) + _server_count(spec)


def _server_count(spec: Spec) -> int:
    """Number of parameter servers; 0 with another type of sync."""
    serves = at(spec, "strategy.sync.type") == SyncType.PARAMETER_SERVER
    return int(at(spec, "strategy.sync.parameterServer.servers")) if serves else 0


def _is_shared_memory_below_limit(spec: Spec) -> bool:
    """Also True if either is not set. A limit that is no quantity breaks the rule, as in CEL."""
    limits = spec.get("resources", {}).get("limits", {})
    if "sharedMemory" not in spec or "memory" not in limits:
        return True
    limit, wanted = parse_quantity(limits["memory"]), parse_quantity(spec["sharedMemory"])
    return limit is not None and wanted is not None and wanted < limit


def _has_unique_codes(recovery: Spec) -> bool:
    codes = [code for rule in recovery["exitCodes"] for code in rule["codes"]]
    return len(codes) == len(set(codes))


def _may_have_trainer(spec: Spec) -> bool:
    """Whether the template has a container `trainer`, or no containers: then the operator adds it."""
    return at(spec, "template.spec.containers") is None or bool(trainer_container(spec))


RULES: tuple[Rule, ...] = (
    Rule(
        path="",
        cel=f"self.metadata.name.size() <= {MAX_NAME} && self.metadata.name.matches('{NAME}')",
        holds=lambda job: len(job["metadata"]["name"]) <= MAX_NAME and matches(NAME, job["metadata"]["name"]),
        message=(
            f"metadata.name: use at most {MAX_NAME} lower-case letters, digits and '-', beginning with a "
            "letter and not ending with '-'; pods and the Service are named after it"
        ),
        valid={"metadata": {"name": "char-gpt"}},
        invalid={"metadata": {"name": "4-gpus"}},
    ),
    *COMMAND_RULES,
    Rule(
        path="spec",
        cel=(
            "!has(self.template) || !has(self.template.spec) || !has(self.template.spec.containers) || "
            "self.template.spec.containers.exists(c, c.name == 'trainer')"
        ),
        holds=_may_have_trainer,
        message="spec.template: no container is named trainer; give that name to the one that trains",
        valid=spec_with(template=template_with(image="train:1")),
        invalid=spec_with(template={"spec": {"containers": [{"name": "pytorch"}]}}),
    ),
    Rule(
        path="spec",
        cel=(
            "!has(self.template) || !has(self.template.spec) || !has(self.template.spec.restartPolicy) || "
            "self.template.spec.restartPolicy == 'Never'"
        ),
        holds=lambda spec: at(spec, "template.spec.restartPolicy") in (None, "Never"),
        message="spec.template: restartPolicy must be Never, ranks are restarted inside pods; leave it out",
        valid=spec_with(template={"spec": {"restartPolicy": "Never"}}),
        invalid=spec_with(template={"spec": {"restartPolicy": "OnFailure"}}),
    ),
    # To CEL the two are of different types, which it cannot compare: so not even the same value twice.
    Rule(
        path="spec",
        cel=f"!has(self.resources) || !{cel_trainer_has('has(c.resources)')}",
        holds=lambda spec: "resources" not in spec or "resources" not in trainer_container(spec),
        message="spec.resources: spec.template sets resources of container trainer too; keep one of the two",
        valid=spec_with(resources={"limits": {"cpu": 1}}, template=template_with(image="train:1")),
        invalid=spec_with(
            resources={"limits": {"cpu": 1}}, template=template_with(resources={"limits": {"cpu": 1}})
        ),
    ),
    Rule(
        path="spec",
        cel=(
            "!has(self.env) || "
            f"!{cel_trainer_has('has(c.env) && c.env.exists(t, self.env.exists(e, e.name == t.name))')}"
        ),
        holds=_is_env_set_once,
        message="spec.env: spec.template sets a variable of the same name in container trainer; keep one",
        valid=spec_with(
            env=[{"name": "A", "value": "1"}], template=template_with(env=[{"name": "B", "value": "2"}])
        ),
        invalid=spec_with(
            env=[{"name": "A", "value": "1"}], template=template_with(env=[{"name": "A", "value": "2"}])
        ),
    ),
    Rule(
        path="spec",
        cel=f"!has(self.env) || !self.env.exists(e, {_RESERVED})",
        holds=_has_no_reserved_variable,
        message=f"spec.env: {_RESERVED_MESSAGE}",
        valid=spec_with(
            env=[{"name": "OMP_NUM_THREADS", "value": "4"}, {"name": config.TRACE, "value": "/tmp/t"}]
        ),
        invalid=spec_with(env=[{"name": "MASTER_PORT", "value": "29500"}]),
    ),
    Rule(
        path="spec",
        cel=f"!{cel_trainer_has(f'has(c.env) && c.env.exists(e, {_RESERVED})')}",
        holds=lambda spec: _has_no_reserved_variable(trainer_container(spec)),
        message=f"spec.template: env of container trainer: {_RESERVED_MESSAGE}",
        valid=spec_with(template=template_with(env=[{"name": "SEED", "value": "1"}])),
        invalid=spec_with(template=template_with(env=[{"name": "ROPETEAM_SLOT", "value": "1"}])),
    ),
    Rule(
        path="spec",
        cel=(
            "self.gpusPerWorker == 0 || !has(self.resources) || !has(self.resources.limits) || "
            f"!('{GPU}' in self.resources.limits) || "
            f"string(self.resources.limits['{GPU}']) == string(self.gpusPerWorker)"
        ),
        holds=_is_gpu_count_consistent,
        message=f"spec.gpusPerWorker: spec.resources.limits has another number of {GPU}; keep one of the two",
        valid=spec_with(gpusPerWorker=2, resources={"limits": {GPU: "2"}}),
        invalid=spec_with(gpusPerWorker=2, resources={"limits": {GPU: 4}}),
    ),
    Rule(
        path="spec",
        cel=(
            "self.gpusPerWorker == 0 || !has(self.processesPerWorker) || "
            "self.processesPerWorker <= self.gpusPerWorker"
        ),
        holds=lambda spec: (
            spec["gpusPerWorker"] == 0
            or "processesPerWorker" not in spec
            or spec["processesPerWorker"] <= spec["gpusPerWorker"]
        ),
        message=(
            "spec.processesPerWorker: is above spec.gpusPerWorker, and two ranks cannot share a GPU; "
            "lower it, or leave it out to get one rank for each GPU"
        ),
        valid=spec_with(gpusPerWorker=8, processesPerWorker=4),
        invalid=spec_with(gpusPerWorker=1, processesPerWorker=2),
    ),
    Rule(
        path="spec",
        cel=(
            "!has(self.sharedMemory) || !has(self.resources) || !has(self.resources.limits) || "
            "!('memory' in self.resources.limits) || "
            "(isQuantity(string(self.resources.limits['memory'])) && quantity(self.sharedMemory)"
            ".isLessThan(quantity(string(self.resources.limits['memory']))))"
        ),
        holds=_is_shared_memory_below_limit,
        message=(
            "spec.sharedMemory: is part of the container's memory and must be below "
            "spec.resources.limits.memory; lower it, or raise the limit by as much"
        ),
        valid=spec_with(sharedMemory="8Gi", resources={"limits": {"memory": "64Gi"}}),
        invalid=spec_with(sharedMemory="8Gi", resources={"limits": {"memory": "8192Mi"}}),
    ),
    Rule(
        path="spec",
        cel=(
            "self.workers * (has(self.processesPerWorker) ? self.processesPerWorker : "
            f"(self.gpusPerWorker > 0 ? self.gpusPerWorker : 1)) + {_CEL_SERVERS} <= {MAX_RANKS}"
        ),
        holds=lambda spec: _rank_count(spec) <= MAX_RANKS,
        message=(
            "spec.workers: workers times spec.processesPerWorker, plus parameter servers, is above "
            f"{MAX_RANKS} ranks; lower one of them"
        ),
        valid=spec_with(workers=1024, gpusPerWorker=8),
        invalid=spec_with(workers=1024, processesPerWorker=9),
    ),
    Rule(
        path="spec",
        cel=f"self.workers + {_CEL_SERVERS} <= {MAX_SLOTS}",
        holds=lambda spec: spec["workers"] + _server_count(spec) <= MAX_SLOTS,
        message=(
            f"spec.workers: workers and parameter servers together are above {MAX_SLOTS} pods, the limit of "
            "status; lower one of them"
        ),
        valid=spec_with(workers=3072, strategy=_strategy_with_servers(servers=1024)),
        invalid=spec_with(workers=3073, strategy=_strategy_with_servers(servers=1024)),
    ),
    Rule(
        path="spec",
        cel="self.launcher != 'PerPod' || self.recovery.start != 'Fork'",
        holds=lambda spec: spec["launcher"] != "PerPod" or spec["recovery"]["start"] != "Fork",
        message="spec.recovery.start: with spec.launcher PerPod nothing can be forked; use Auto or Exec",
        valid=spec_with(launcher="PerPod"),
        invalid=spec_with(launcher="PerPod", recovery={"start": "Fork"}),
    ),
    Rule(
        path="spec",
        cel="self.worlds != 'PerPod' || !has(self.checkpoint)",
        holds=lambda spec: spec.get("worlds") != "PerPod" or not spec.get("checkpoint"),
        message=(
            "spec.checkpoint: is for one world, and with spec.worlds PerPod each pod is a world; remove it, "
            "and save checkpoints in the script"
        ),
        valid=spec_with(worlds="PerPod"),
        invalid=spec_with(worlds="PerPod", checkpoint={"volume": {"nfs": {}}}),
    ),
    Rule(
        path="spec.recovery",
        cel="self.fenceSeconds > self.lostSeconds",
        holds=lambda recovery: recovery["fenceSeconds"] > recovery["lostSeconds"],
        message=(
            "spec.recovery.fenceSeconds: must be above spec.recovery.lostSeconds, or a worker would kill its "
            "ranks before it counts as lost; raise it"
        ),
        valid=spec_with(recovery={"fenceSeconds": 30, "lostSeconds": 29}),
        invalid=spec_with(recovery={"fenceSeconds": 30, "lostSeconds": 30}),
    ),
    Rule(
        path="spec.recovery",
        cel=(
            "self.exitCodes.all(a, a.codes.all(code, a.codes.exists_one(same, same == code) && "
            "self.exitCodes.exists_one(b, code in b.codes)))"
        ),
        holds=_has_unique_codes,
        message="spec.recovery.exitCodes: a code is listed twice, its action is unclear; list each code once",
        valid=spec_with(recovery={"exitCodes": [{"codes": [2, 42], "action": "Fail"}]}),
        invalid=spec_with(
            recovery={
                "exitCodes": [{"codes": [2], "action": "Fail"}, {"codes": [75, 2], "action": "RetryFree"}]
            }
        ),
    ),
    *CHECKPOINT_RULES,
    *ELASTIC_RULES,
    *MOUNT_RULES,
)

_RECOVERY_CHANGES: dict[str, tuple[Any, Any]] = {
    "startSeconds": (600, 60),
    "hangSeconds": (None, 5),
    "lostSeconds": (5, 10),
    "fenceSeconds": (120, 60),
    "selfFence": (False, True),
    "drainSeconds": (60, 30),
    "noProgressLimit": (3, 2),
    "start": ("Auto", "Exec"),
    "exitCodes": ([], [{"codes": [75], "action": "RetryFree"}]),
}
_SHAPE = (
    Change("workers", (2, 3)),
    Change("image", ("train:1", "train:2")),
    Change("command", (["python", "a.py"], ["python", "b.py"])),
    Change("args", (["--a"], None)),
    Change("env", ([{"name": "A", "value": "1"}], [{"name": "A", "value": "2"}])),
    Change("workingDir", (None, "/work")),
    Change("resources", ({"limits": {"cpu": 1}}, {"limits": {"cpu": 2}})),
    Change("gpusPerWorker", (0, 1)),
    Change("processesPerWorker", (None, 2)),
    Change("launcher", ("Auto", "PerPod")),
    Change("worlds", ("One", "PerPod")),
    Change("agentPython", (None, "/opt/conda/bin/python3")),
    Change("sharedMemory", ("1Gi", "8Gi")),
    Change("shardCache", (None, "8Gi")),
    Change("template", (template_with(image="train:1"), template_with(image="train:2"))),
    Change("checkpoint", ({"volume": _VOLUME}, {"volume": _VOLUME, "path": "other"})),
    Change("elastic", (None, {"minWorkers": 1})),
    Change("strategy", (None, {"parallelism": {"shard": 2}})),
    Change("resume", ({"policy": "Latest"}, {"policy": "Never"})),
    *(Change(f"recovery.{name}", values) for name, values in _RECOVERY_CHANGES.items()),
)
CHANGES = Changes(
    _SHAPE,
    "can change only while the job is suspended; set spec.suspend to true, wait for condition Suspended, "
    "then change it",
)
"""All fields that define pods or their worlds. The others may change at any time: suspend, restartedAt,
activeDeadlineSeconds, ttlSecondsAfterFinished, cleanPodPolicy, recovery.maxFailures,
recovery.windowSeconds."""
