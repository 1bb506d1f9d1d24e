"""Any observation at all, sensible or not: what `decide` must have an answer for."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from tests.builders import NOON, UID, Scene, a_job

from ropeteam.api.conditions import Condition, ConditionType
from ropeteam.api.defaults import Defaults, JobPolicy
from ropeteam.api.status import (
    ChargeStatus,
    CheckpointRefStatus,
    CheckpointStatus,
    CoordinatorStatus,
    FailuresStatus,
    IncidentStatus,
    JobStatus,
    ProgressStatus,
    RecoveryTimesStatus,
    SlotStatus,
)
from ropeteam.core.seen.observation import ContainerSeen, PodSeen, PolicySeen, Refusal, Role, ServiceSeen
from ropeteam_trainer.contract.desired import (
    Incident,
    JobReport,
    RecoveryTimes,
    ReplacementRequest,
    SlotReport,
    WorldPhase,
)
from ropeteam_trainer.contract.messages import Problem, Progress
from ropeteam_trainer.contract.world import Cause, CheckpointRef, FailReason, ProcessExit, WorldId

small = st.integers(0, 3)
times = st.none() | st.integers(-4000, 100).map(lambda seconds: NOON + timedelta(seconds=seconds))
moments = times.filter(lambda time: time is not None)
ages = st.sampled_from([0.0, 59.0, 60.0, 1e6])
uids = st.sampled_from(["", "uid-1", "uid-2", "uid-3", "uid-4"])
texts = st.sampled_from(["", "Evicted", "OOMKilled", "ImagePullBackOff", "CreateContainerError", "x" * 5000])
world_ids = st.builds(WorldId, small, small, small)
texts = st.sampled_from(["", "1.0.1", "1.0.2", "2.1.1", "nonsense", "pod-0-1", "pod-1-2"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)

valid_specs: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"workers": st.integers(1, 3), "command": st.just(["python", "train.py"]), "image": st.just("train:1")},
    optional={
        "suspend": st.sampled_from([False, False, True]),
        "restartedAt": st.sampled_from(["2026-11-20T10:00:00Z", "2026-11-20T11:00:00Z"]),
        "activeDeadlineSeconds": st.sampled_from([1, 60, 3600]),
        "ttlSecondsAfterFinished": st.sampled_from([0, 60]),
        "cleanPodPolicy": st.sampled_from(["Running", "All", "None"]),
        "gpusPerWorker": st.integers(0, 2),
        "resources": st.just({"limits": {"cpu": "1"}}) | anything,
        "template": st.just({"spec": {"containers": [{"name": "trainer"}]}}) | anything,
        "checkpoint": st.just({"volume": {"nfs": {"server": "s", "path": "/"}}}),
        "recovery": st.fixed_dictionaries(
            {"maxFailures": st.sampled_from([0, 9]), "noProgressLimit": st.integers(2, 3)}
        ),
    },
)
specs = valid_specs | st.dictionaries(st.sampled_from(["workers", "command", "extra"]), anything, max_size=3)

containers = st.builds(
    ContainerSeen,
    running=st.booleans(),
    waiting_reason=texts,
    exit_code=st.sampled_from([None] * 12 + [0, 1, 1, 137]),
    exit_reason=texts,
)


def _pod(role: Role, slot: int, incarnation: int, fields: dict[str, Any]) -> PodSeen:
    name = f"mnist-{slot}-{incarnation}" if role is Role.WORKER else f"mnist-coordinator-{incarnation}"
    place: dict[str, Any] = {"slot": slot, "incarnation": incarnation}
    if role is Role.COORDINATOR:
        place = {"term": incarnation}
    return PodSeen(name=name, role=role, **place, **fields)


fields_of_pods: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(["Pending", "Running", "Running", "Running", "Succeeded", "Failed", "Odd"]),
        "reason": texts,
        "node": st.sampled_from(["", "node-1"]),
        "node_lost": st.booleans(),
        "deleting": st.booleans(),
        "delete_at": times,
        "scheduled_message": st.sampled_from(["", "0/3 nodes", 'persistentvolumeclaim "c" not found']),
        "container": containers,
        "init": containers,
    },
)
mishaps: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {},
        {"deleting": True, "delete_at": NOON},
        {"deleting": True, "delete_at": NOON + timedelta(seconds=30)},
        {"node_lost": True},
        {"phase": "Failed", "container": ContainerSeen(exit_code=137, exit_reason="OOMKilled")},
        {
            "phase": "Failed",
            "container": ContainerSeen(exit_code=128, exit_reason="StartError", exit_message="x"),
        },
        {"phase": "Failed", "container": ContainerSeen(), "init": ContainerSeen(exit_code=1)},
        {"phase": "Failed", "reason": "Evicted", "container": ContainerSeen(exit_code=143)},
        {"phase": "Failed", "container": ContainerSeen()},
        {"phase": "Succeeded", "container": ContainerSeen(exit_code=0)},
        {"phase": "Pending", "node": "", "scheduled_message": "0/3 nodes", "container": ContainerSeen()},
        {"phase": "Pending", "container": ContainerSeen(waiting_reason="ContainerCreating")},
        {"phase": "Pending", "container": ContainerSeen(waiting_reason="ImagePullBackOff")},
        {"phase": "Pending", "container": ContainerSeen(waiting_reason="CreateContainerError")},
        {"container": ContainerSeen(waiting_reason="CrashLoopBackOff")},
    ]
)
pods = st.builds(
    _pod,
    st.sampled_from(Role),
    st.integers(-1, 3),
    small,
    st.builds(
        lambda fields, uid: fields | {"uid": uid},
        fields_of_pods,
        st.sampled_from(["uid-1", "uid-2", "uid-9"]),
    ),
)
foreign_pods = pods.map(lambda pod: pod.model_copy(update={"name": "a-stranger"}))
incidents = st.builds(
    IncidentStatus,
    id=texts,
    time=moments,
    cause=st.sampled_from([cause.value for cause in Cause]),
    charged=st.booleans(),
    slot=small,
    recovery_milliseconds=st.builds(RecoveryTimesStatus, planned=st.none() | small),
    final=st.booleans(),
)
slots = st.builds(
    SlotStatus,
    slot=small,
    incarnation=st.integers(1, 3),
    pod_uid=uids,
    replacement_time=times,
    previous_pod_uid=uids,
    previous_pod_fenced=st.booleans(),
    handover_pending=st.booleans(),
    avoid_node=st.sampled_from(["", "node-1"]),
    consecutive_failures=st.integers(0, 9),
)
conditions = st.builds(
    Condition,
    type=st.sampled_from(ConditionType),
    status=st.sampled_from(["True", "False", "Unknown"]),
    reason=st.just("Because"),
    lastTransitionTime=moments,  # the alias: what is required is drawn by its name in the signature
)
refs = st.builds(CheckpointRefStatus, step=small, world=texts)
statuses = st.builds(
    JobStatus,
    state=st.sampled_from(["", "Running", "Suspended", "Complete", "Odd"]),
    conditions=st.lists(conditions, max_size=4, unique_by=lambda each: each.type).map(tuple),
    attempt=small,
    coordinator=st.builds(
        CoordinatorStatus,
        term=small,
        pod_uid=uids,
        address=st.sampled_from(["", "10.0.0.1"]),
        start_time=times,
        consecutive_failures=small,
    ),
    start_time=times,
    completion_time=times,
    slots=st.lists(slots, max_size=3, unique_by=lambda slot: slot.slot).map(tuple),
    progress=st.none() | st.builds(ProgressStatus, step=small, total_steps=st.none() | small, time=times),
    checkpoint=st.none()
    | st.builds(CheckpointStatus, step=small, lineage=st.lists(refs, max_size=2).map(tuple)),
    failures=st.builds(
        FailuresStatus,
        charges=st.lists(st.builds(ChargeStatus, id=texts, time=moments), max_size=3).map(tuple),
        last_world=texts,
    ),
    incidents=st.lists(incidents, max_size=10, unique_by=lambda each: each.id).map(tuple),
    drained=st.booleans(),
    drain_start_time=times,
    observed_restarted_at=st.sampled_from(["", "2026-11-20T10:00:00+00:00"]),
    pod_spec_hash=st.sampled_from(["", "another"]),
    run_as_user=st.sampled_from([None, None, 1000]),
    coordinator_unreachable_start_time=times,
)
reported_incidents = st.builds(
    Incident,
    id=texts,
    cause=st.sampled_from(Cause),
    charged=st.booleans(),
    slot=st.integers(-1, 3),
    rank=st.none() | small,
    node=texts,
    message=texts,
    step=small,
    unix_ms=st.sampled_from([-1, 0, 10**12, 10**30]),
    recovery_milliseconds=st.builds(RecoveryTimes, planned=st.none() | small),
    exit=st.none() | st.just(ProcessExit(code=1, signal=None, last_lines=("Traceback", "ValueError: x"))),
)
reports = st.builds(
    JobReport,
    job_uid=st.sampled_from([UID, UID, UID, "other"]),
    term=small,
    boot=st.integers(-1, 2),
    phase=st.sampled_from([*WorldPhase, *[WorldPhase.RUNNING, WorldPhase.FORMING] * 4]),
    why=texts,
    slots=st.dictionaries(
        st.sampled_from(["0", "1", "x"]),
        st.builds(SlotReport, small, uids, registered=st.booleans()),
        max_size=3,
    ),
    feature_level=st.integers(-1, 9),
    launcher=texts,
    progress=st.builds(
        Progress,
        step=st.integers(-1, 5),
        total_steps=st.none() | st.integers(-1, 9),
        loss=texts,
        samples_per_second=st.floats(allow_nan=False, allow_infinity=False),
    ),
    lineage=st.lists(st.builds(CheckpointRef, st.integers(-1, 3), world_ids), max_size=12).map(tuple),
    incidents=st.lists(reported_incidents, max_size=4, unique_by=lambda each: each.id).map(tuple),
    replacement_requests=st.lists(
        st.builds(
            ReplacementRequest, st.integers(-1, 3), small, st.sampled_from(Cause), texts, st.booleans()
        ),
        max_size=2,
    ).map(tuple),
    replace_all=st.booleans(),
    failure=st.sampled_from([None] * 5 + [Problem(FailReason.EXIT_CODE, "it said 42")]),
    notice=st.none() | st.builds(Problem, st.sampled_from(FailReason), texts),
)
services = st.builds(
    ServiceSeen,
    name=st.just("mnist"),
    uid=st.just("uid-s"),
    cluster_ip=st.sampled_from(["", "10.0.0.1", "10.0.0.2"]),
    term=small,
)
metadata = st.builds(
    lambda **fields: a_job().metadata.model_copy(update=fields),
    name=st.sampled_from(["mnist", "mnist", "mnist", "4-bad-Name"]),
    deletion_timestamp=st.sampled_from([None, None, None, NOON]),
)
policies = st.sampled_from([PolicySeen(), PolicySeen(name="mnist-1"), PolicySeen(refusal="no")])
installations = st.sampled_from([Defaults(), Defaults(policy=JobPolicy(operator_from=({"ipBlock": {}},)))])
malformed_scenes: st.SearchStrategy[Scene] = st.builds(
    Scene,
    now=st.just(NOON),
    metadata=metadata,
    spec=specs,
    status=statuses,
    pods=st.lists(pods | foreign_pods, max_size=3, unique_by=lambda pod: pod.uid).map(tuple),
    service=st.none() | services,
    secret_exists=st.booleans(),
    policy=policies,
    defaults=installations,
    secret_age=ages,
    written_at=times,
    refusal=st.sampled_from([None, None, None, Refusal(message="no"), Refusal(message="no", user=1000)]),
    report=st.none() | reports,
    report_error=st.sampled_from(["", "no answer"]),
)


few_incidents = st.lists(incidents, max_size=2, unique_by=lambda each: each.id).map(tuple)
leaders = st.builds(CoordinatorStatus, term=st.just(1), pod_uid=st.just("uid-c"), address=st.just("10.0.0.1"))


@st.composite
def plausible_scenes(draw: st.DrawFn) -> Scene:
    """Of a job that is under way: pods and report mostly fit what status says."""
    places = tuple(
        draw(slots).model_copy(update={"slot": number}) for number in range(draw(st.sampled_from([1, 2])))
    )
    status = draw(statuses).model_copy(
        update={
            "attempt": 1,
            "conditions": draw(st.sampled_from([(), (_holding(ConditionType.RUNNING),)])),
            "slots": places,
            "coordinator": draw(leaders),
            "pod_spec_hash": "",
            "drain_start_time": draw(st.sampled_from([None, None, None, NOON])),
            "incidents": draw(few_incidents),
        }
    )
    fields: dict[str, Any] = {"node": "node-1", "phase": "Running", "container": ContainerSeen(running=True)}
    found = [_pod(Role.COORDINATOR, -1, 1, {"uid": "uid-c", **fields, **draw(mishaps)})]
    for place in places:
        fields["uid"] = place.pod_uid or f"uid-w{place.slot}"
        found.append(_pod(Role.WORKER, place.slot, place.incarnation, {**fields, **draw(mishaps)}))
    lost = draw(st.sampled_from([None, None, *found]))
    return a_job().but(
        spec=draw(valid_specs),
        status=status,
        pods=tuple(pod for pod in found if pod is not lost),
        service=ServiceSeen(
            name="mnist", uid="uid-s", cluster_ip="10.0.0.1", term=draw(st.sampled_from([0, 1, 1]))
        ),
        secret_exists=draw(st.booleans()),
        policy=draw(policies),
        defaults=draw(installations),
        secret_age=draw(ages),
        report=(draw(st.sampled_from([True, True, False])) and _report_of(draw, places)) or None,
        report_error=draw(st.sampled_from(["", "no answer"])),
    )


def _holding(kind: ConditionType) -> Condition:
    return Condition(type=kind, status="True", reason="Because", last_transition_time=NOON)


def _report_of(draw: st.DrawFn, places: tuple[SlotStatus, ...]) -> JobReport:
    reported = {
        str(slot.slot): SlotReport(
            slot.incarnation, slot.pod_uid, registered=draw(st.sampled_from([True, True, False]))
        )
        for slot in places
    }
    requested = [slot for slot in places if draw(st.sampled_from([False, False, True]))]
    requests = tuple(
        ReplacementRequest(
            slot.slot, slot.incarnation, draw(st.sampled_from(Cause)), "why", draw(st.booleans())
        )
        for slot in requested
    )
    return replace(draw(reports), job_uid=UID, term=1, slots=reported, replacement_requests=requests)


scenes = malformed_scenes | plausible_scenes() | plausible_scenes()
