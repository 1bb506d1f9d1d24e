"""Raw Kubernetes objects parsed into the values of an Observation. No I/O. Tolerant: missing fields get
their defaults. Labels of pods and Services are trusted only if a TrainingJob owns the object.

Limits: only fields that `core` may read are kept; an Observation is small enough to be pasted into an issue.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson

from ropeteam.api.conditions import ConditionType
from ropeteam.api.job import API_VERSION, GROUP, KIND
from ropeteam.controller.cache.informer import Key
from ropeteam.controller.client import boundedjson
from ropeteam.core.objects.manifests import TOKEN_VOLUME
from ropeteam.core.seen import names, unservedrequests
from ropeteam.core.seen.observation import ContainerSeen, PodSeen, Role, ServiceSeen
from ropeteam_trainer.contract import VERSION
from ropeteam_trainer.contract.config import CONFIG, TRAINER_CONTAINER

Object = dict[str, Any]

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
MANAGED = f"{names.MANAGED_BY}=ropeteam"
READ = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
)
"""Fields of metadata that are kept, beside some labels and annotations."""
_TYPE_META = {"apiVersion": API_VERSION, "kind": KIND}
_NUMBER = re.compile("[0-9]{1,9}")
_ADDRESS = re.compile("[0-9a-fA-F:.]{1,45}")
_LARGEST_SPEC = 256 << 10
_LONGEST_ANNOTATION = 64
"""Characters of a label or an annotation that are kept; a term is a number of a few digits."""
_MOST_ENTRIES = 8
"""Labels, annotations or gates that are kept of one object."""
_MOST_BYTES = 1 << 30
"""No object has as many: a spec that is such a number is no size from `boundedjson`."""
_DEEPEST_SPEC = 100
"""Levels, of objects and lists in each other."""


def own_key(obj: Object) -> Key:
    """The key of a job, or of a node, whose namespace is ""."""
    meta = obj["metadata"]
    return Key(meta.get("namespace", ""), meta["name"])


def job_key(obj: Object) -> Key | None:
    """The job that a pod or Service belongs to. None: no TrainingJob controls the object, or its labels name
    another job: anybody who creates pods can set labels."""
    owner = _owner(obj)
    labels = (label(obj, names.JOB), label(obj, names.JOB_UID))
    if not owner or labels != (owner.get("name"), owner.get("uid")):
        return None
    return Key(obj["metadata"]["namespace"], owner["name"])


def _owner(obj: Object) -> Object:
    """The reference to the TrainingJob that controls the object; empty: none does."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((each for each in owners if _is_controlling_job(each)), {})


def _is_controlling_job(owner: Object) -> bool:
    """Whether an owner reference names a TrainingJob, of any version, that controls the object."""
    group = str(owner.get("apiVersion")).partition("/")[0]
    return (group, owner.get("kind"), owner.get("controller")) == (GROUP, KIND, True)


def label(obj: Object, name: str) -> str:
    """The value of a label; "": the object has no such label."""
    return str((obj["metadata"].get("labels") or {}).get(name, ""))


class CachedJob(NamedTuple):
    """A TrainingJob as it is cached: as text, because parsed it can be ten times as large."""

    text: bytes
    """JSON with metadata, spec and status. Empty: the budget of the cache was used up (`budget.py`)."""
    version: str
    """resourceVersion, so that a changed job without a text differs as well."""
    state: str
    """`status.state`; Pending before it is set."""
    stalled: bool
    """Whether the condition Stalled is True."""
    spec_error: str
    """The error because of which its spec was left out, as text; "": it is there."""

    def parsed(self) -> Object:
        """The object in `text`, which must not be empty: metadata, spec and status are there."""
        return dict(orjson.loads(self.text))


def job_event(line: bytes) -> Object:
    """Parse an event of a watch of jobs, for `job`: a spec that is too large is its size. Raises
    orjson.JSONDecodeError, and TypeError or ValueError for JSON that is no object."""
    return dict(boundedjson.parse_object(line, _LARGEST_SPEC, b"}}"))


def job_text(text: bytes) -> Object:
    """Parse the API server's answer with one job, for `job`: a spec that is too large is its size. Raises as
    `job_event`."""
    return dict(boundedjson.parse_object(text, _LARGEST_SPEC))


def job(obj: Object) -> CachedJob:
    """The job to cache: the fields of metadata that we read, the status, and the spec, if within limits; an
    empty spec and its error otherwise. Of labels and annotations only those that `core` reads."""
    meta = {name: obj["metadata"][name] for name in READ if name in obj["metadata"]}
    note = (obj["metadata"].get("annotations") or {}).get(names.COORDINATORS_ENDED, "")
    meta["annotations"] = _unserved_requests(obj["metadata"].get("annotations"))
    if 0 < len(note) <= _LONGEST_ANNOTATION:
        meta["annotations"][names.COORDINATORS_ENDED] = note
    meta["labels"] = _unserved_requests(obj["metadata"].get("labels"))
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if fault := _spec_error(spec):
        spec = {}
    text = orjson.dumps({**_TYPE_META, "metadata": meta, "spec": spec, "status": status})
    return CachedJob(
        text=memoryview(text).tobytes(),  # a copy: what orjson returns holds kilobytes more than it shows
        version=obj["metadata"]["resourceVersion"],
        state=status.get("state") or "Pending",
        stalled=_condition(status, ConditionType.STALLED).get("status") == "True",
        spec_error=fault,
    )


def _unserved_requests(texts: Object | None) -> dict[str, str]:
    """The labels or annotations in `texts` that request a queue or gang scheduling: the first few by name,
    with long values truncated."""
    found = sorted(key for key in texts or () if unservedrequests.is_queue_or_gang_key(key))[:_MOST_ENTRIES]
    return {key: str((texts or {})[key])[:_LONGEST_ANNOTATION] for key in found}


def _spec_error(spec: object) -> str:
    """The error for which a spec is not cached, as text to its user; "": none. `spec` is its size in bytes
    where `boundedjson` has left it out. First error wins: size, then type, then depth, which takes far
    longer."""
    size = spec if isinstance(spec, int) and spec < _MOST_BYTES else _json_bytes(spec)
    if size is not None and size > _LARGEST_SPEC:
        return (
            f"spec: has {size >> 10} KiB, and at most {_LARGEST_SPEC >> 10} are accepted; "
            "put large data into a ConfigMap, a volume or the image"
        )
    if not isinstance(spec, dict):
        return "spec: is not a map of fields; set at least workers and command"
    if size is None or boundedjson.is_deeper(spec, _DEEPEST_SPEC):
        return f"spec: is nested more than {_DEEPEST_SPEC} levels deep; look for repeated parts"
    return ""


def _json_bytes(spec: object) -> int | None:
    """Number of bytes as JSON. None: it is nested too deep to be written."""
    try:
        return len(orjson.dumps(spec))
    except orjson.JSONEncodeError:
        return None


def pod(obj: Object) -> tuple[str, PodSeen]:
    """The pod, with the UID of its job: a previous job of the same name is another job. Labels that are
    missing or invalid become values that no pod of ours has: slot -1, incarnation 0, term 0; but role worker.
    """
    meta, status = obj["metadata"], obj.get("status") or {}
    role_label = label(obj, names.ROLE)
    role = Role(role_label) if role_label in list(Role) else Role.WORKER
    main = "coordinator" if role is Role.COORDINATOR else TRAINER_CONTAINER
    scheduled, spec = _condition(status, "PodScheduled"), obj.get("spec") or {}
    seen = PodSeen(
        name=meta["name"],
        uid=meta["uid"],
        role=role,
        slot=_parse_number(label(obj, names.SLOT), -1),
        incarnation=_parse_number(label(obj, names.INCARNATION), 0),
        term=_parse_number(label(obj, names.TERM), 0),
        phase=status.get("phase") or "Pending",
        reason=status.get("reason") or _condition(status, "DisruptionTarget").get("reason", ""),
        message=status.get("message") or "",
        node=spec.get("nodeName") or "",
        deleting="deletionTimestamp" in meta,
        delete_at=meta.get("deletionTimestamp"),
        init=_pending_init(status.get("initContainerStatuses") or []),
        created=meta.get("creationTimestamp"),
        scheduler=spec.get("schedulerName") or "",
        scheduled=scheduled.get("status", ""),
        gates=tuple(each["name"] for each in (spec.get("schedulingGates") or ())[:_MOST_ENTRIES]),
        queued=unservedrequests.MANAGED in (meta.get("labels") or {}),
        grouped=bool(spec.get("schedulingGroup") or spec.get("workloadRef")),
        scheduled_message=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
        container=_named_container(status.get("containerStatuses") or [], main),
        contract=_contract_version(spec) if role is Role.COORDINATOR else VERSION,
        key_id=_key_id(spec),
    )
    return label(obj, names.JOB_UID), seen


def _contract_version(spec: Object) -> int:
    """The contract version in a coordinator's config, an environment variable of its pod. An invalid or
    missing value counts as ours: requests are signed then."""
    variables = (each for container in spec.get("containers") or () for each in container.get("env") or ())
    try:
        value = orjson.loads(next(each["value"] for each in variables if each["name"] == CONFIG))["contract"]
    except (StopIteration, LookupError, TypeError, ValueError):
        return VERSION
    return value if type(value) is int else VERSION


def _key_id(spec: Object) -> str:
    """The id of the operator key, from the end of the name of the token Secret that a pod mounts; "": it
    mounts none."""
    volumes = (each for each in spec.get("volumes") or () if each.get("name") == TOKEN_VOLUME)
    volume: Object = next(volumes, {})
    secret = volume.get("secret") or {}
    return str(secret.get("secretName") or "").rpartition("-")[2]


def service(obj: Object) -> tuple[str, ServiceSeen]:
    """The Service, with the UID of its job. An address that is none (`None` of a headless Service) is ""; an
    invalid term is 0."""
    meta, spec = obj["metadata"], obj["spec"]
    term = _parse_number((spec.get("selector") or {}).get(names.TERM), 0)
    address = spec.get("clusterIP") or ""
    address = address if _ADDRESS.fullmatch(address) else ""
    seen = ServiceSeen(name=meta["name"], uid=meta["uid"], cluster_ip=address, term=term)
    return label(obj, names.JOB_UID), seen


class CachedNode(NamedTuple):
    """A node as it is cached. Without the times that its kubelet reports, so that most events are no
    change."""

    ready: bool
    """Whether the condition Ready is True: neither False nor Unknown."""
    out_of_service: bool
    """An administrator has set the taint which guarantees that nothing runs there."""


def node(obj: Object) -> CachedNode:
    """The node to cache."""
    taints = (obj.get("spec") or {}).get("taints") or ()
    ready = _condition(obj.get("status") or {}, "Ready").get("status") == "True"
    return CachedNode(ready, any(taint.get("key") == OUT_OF_SERVICE for taint in taints))


def _parse_number(text: str | None, default: int) -> int:
    """The number in a label. `default`: there is no label, or no number of up to nine digits in it."""
    return int(text) if text and _NUMBER.fullmatch(text) else default


def _condition(status: Object, kind: str) -> Object:
    """The condition of this type; empty: there is none."""
    return next((each for each in status.get("conditions") or () if each["type"] == kind), {})


def _named_container(statuses: list[Object], name: str) -> ContainerSeen:
    """The container of this name; one in no state: the kubelet has not reported it yet."""
    found: Object = next((each for each in statuses if each["name"] == name), {})
    return _container_seen(found)


def _pending_init(statuses: list[Object]) -> ContainerSeen:
    """The first init container that has not succeeded, with its name; an empty one: all have."""
    seen = ((each["name"], _container_seen(each)) for each in statuses)
    found = next(((name, each) for name, each in seen if each.exit_code != 0), None)
    return found[1].model_copy(update={"name": found[0]}) if found else ContainerSeen()


def _container_seen(container: Object) -> ContainerSeen:
    """A container as its status shows it, an entry of `containerStatuses` or `initContainerStatuses`; the
    name is left empty. `container` may be empty: a container in no state."""
    state = container.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    return ContainerSeen(
        running="running" in state,
        waiting_reason=waiting.get("reason") or "",
        waiting_message=waiting.get("message") or "",
        exit_code=ended.get("exitCode"),
        exit_reason=ended.get("reason") or "",
        exit_message=ended.get("message") or "",
        restarts=container.get("restartCount") or 0,
    )
