"""Raw Kubernetes objects as the values of an Observation. Pure, and tolerant: what is missing has its
default.

Limits: only what `core` may know is kept; an Observation is small enough to be pasted into an issue.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ropeteam.controller.informer import Key
from ropeteam.core.observation import ContainerSeen, PodSeen, Role, ServiceSeen
from ropeteam_trainer.contract.config import TRAINER_CONTAINER

Object = dict[str, Any]

LABEL = "ropeteam.dev/"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
MANAGED = "app.kubernetes.io/managed-by=ropeteam"


def own_key(thing: Object) -> Key:
    meta = thing["metadata"]
    return Key(meta.get("namespace", ""), meta["name"])


def job_key(thing: Object) -> Key:
    """The job that a pod or Service says it belongs to."""
    return Key(thing["metadata"]["namespace"], label(thing, "job"))


def label(thing: Object, name: str) -> str:
    return str((thing["metadata"].get("labels") or {}).get(LABEL + name, ""))


def job(thing: Object) -> Object:
    """A TrainingJob without the server's bookkeeping."""
    meta = {name: value for name, value in thing["metadata"].items() if name != "managedFields"}
    return {**thing, "metadata": meta}


def pod(thing: Object) -> tuple[str, PodSeen]:
    """With the UID of its job: a former job of the same name has nothing to do with this one."""
    meta, status = thing["metadata"], thing.get("status") or {}
    told = label(thing, "role")
    role = Role(told) if told in list(Role) else Role.WORKER
    main = "coordinator" if role is Role.COORDINATOR else TRAINER_CONTAINER
    scheduled = _condition(status, "PodScheduled")
    seen = PodSeen(
        name=meta["name"],
        uid=meta["uid"],
        role=role,
        slot=_number(thing, "slot", -1),
        incarnation=_number(thing, "incarnation", 0),
        term=_number(thing, "term", 0),
        phase=status.get("phase") or "Pending",
        reason=status.get("reason") or _condition(status, "DisruptionTarget").get("reason", ""),
        message=status.get("message") or "",
        node=(thing.get("spec") or {}).get("nodeName") or "",
        deleting="deletionTimestamp" in meta,
        delete_at=meta.get("deletionTimestamp"),
        init=_pending_init(status.get("initContainerStatuses") or []),
        scheduled_message=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
        container=_container(status.get("containerStatuses") or [], main),
    )
    return label(thing, "job-uid"), seen


def service(thing: Object) -> tuple[str, ServiceSeen]:
    """With the UID of its job."""
    meta, spec = thing["metadata"], thing["spec"]
    term = (spec.get("selector") or {}).get(LABEL + "term", "0")
    seen = ServiceSeen(
        name=meta["name"], uid=meta["uid"], cluster_ip=spec.get("clusterIP", ""), term=int(term or 0)
    )
    return label(thing, "job-uid"), seen


class NodeSeen(NamedTuple):
    ready: bool
    out_of_service: bool
    """A person vouches by a taint that nothing runs there."""


def node(thing: Object) -> NodeSeen:
    taints = (thing.get("spec") or {}).get("taints") or ()
    ready = _condition(thing.get("status") or {}, "Ready").get("status") == "True"
    return NodeSeen(ready, any(taint.get("key") == OUT_OF_SERVICE for taint in taints))


def _number(thing: Object, name: str, default: int) -> int:
    text = label(thing, name)
    return int(text) if text.isdigit() else default


def _condition(status: Object, kind: str) -> Object:
    return next((each for each in status.get("conditions") or () if each["type"] == kind), {})


def _container(statuses: list[Object], name: str) -> ContainerSeen:
    found: Object = next((each for each in statuses if each["name"] == name), {})
    return _seen(found)


def _pending_init(statuses: list[Object]) -> ContainerSeen:
    """The first init container that has not succeeded."""
    seen = (_seen(each) for each in statuses)
    return next((each for each in seen if each.exit_code != 0), ContainerSeen())


def _seen(container: Object) -> ContainerSeen:
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
