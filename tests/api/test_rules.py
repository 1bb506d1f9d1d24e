"""Both halves of every rule, CEL and Python, judge examples and generated specs alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.api.cel import as_job, cel_bool, cel_text

from ropeteam.api.rule import Change, Rule, Spec, at, template_with
from ropeteam.api.rules.rulebook import CHANGES, MAX_SLOTS, RULES
from ropeteam.api.rules.validate import validate, validate_name, validate_update
from ropeteam.api.status import JobStatus

SPEC_RULES = [rule for rule in RULES if rule.path]
NAME_RULES = [rule for rule in RULES if not rule.path]


def _id(row: Rule | Change) -> str:
    return row.message.split(";")[0][:60]


@pytest.mark.parametrize("rule", SPEC_RULES, ids=_id)
def test_examples_are_validated_alike_by_server_and_twin(rule: Rule) -> None:
    assert validate(rule.valid) == ()
    assert validate(rule.invalid) == (rule.message,)
    assert cel_bool(rule.cel, self=at(as_job(rule.valid), rule.path))
    assert not cel_bool(rule.cel, self=at(as_job(rule.invalid), rule.path))


@pytest.mark.parametrize(
    "name", ["a", "char-gpt", "a" * 40, "4-gpus", "a" * 41, "Big", "a-", "a.b", "", "a\n"]
)
def test_a_name_is_validated_alike_by_server_and_twin(name: str) -> None:
    (rule,) = NAME_RULES
    is_valid = name in ("a", "char-gpt", "a" * 40)
    assert validate_name(name) == (() if is_valid else (rule.message,))
    assert cel_bool(rule.cel, self={"metadata": {"name": name}}) == is_valid


@pytest.mark.parametrize(
    ("spec", "is_refused"),
    [
        ({"args": ["train.py"]}, True),
        ({"template": template_with(args=["train.py"])}, True),
        ({"args": ["train.py"], "template": template_with(command=["python"])}, False),
        ({"command": ["python"], "template": template_with(args=["train.py"])}, False),
    ],
)
def test_arguments_of_an_unknown_entrypoint_are_refused_with_how_to_find_it(
    spec: Spec, is_refused: bool
) -> None:
    messages = validate({"workers": 1, **spec})
    assert [
        each for each in messages if "docker inspect --format '{{json .Config.Entrypoint}}' IMAGE" in each
    ] == (list(messages))
    assert bool(messages) is is_refused


@pytest.mark.parametrize("rule", NAME_RULES, ids=_id)
def test_examples_of_whole_objects_are_validated_alike(rule: Rule) -> None:
    for example, is_valid in ((rule.valid, True), (rule.invalid, False)):
        assert rule.holds(example) == cel_bool(rule.cel, self=example) == is_valid


def _name(of: Any) -> str:
    return str(of["name"])


TEXTS = st.sampled_from(["a", "b"])
NAMES = st.sampled_from(["A", "B", "RANK", "ROPETEAM_SLOT", "ROPETEAM_TRACE"])
_VARIABLE: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"name": NAMES}, optional={"value": TEXTS}
)
ENV = st.lists(_VARIABLE, max_size=3, unique_by=_name)
CPU = st.fixed_dictionaries({}, optional={"cpu": st.integers(1, 2)})
GPU = st.fixed_dictionaries(
    {}, optional={"cpu": st.integers(1, 2), "nvidia.com/gpu": st.sampled_from([1, 2, "2"])}
)
"""In the short form only: cel-python, unlike a server, cannot compare a number with a text."""


def _resources(limits: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional={"limits": limits})


RUN: dict[str, st.SearchStrategy[Any]] = {
    "image": TEXTS,
    "command": st.lists(TEXTS, min_size=1, max_size=2),
    "args": st.lists(TEXTS, max_size=2),
}
MOUNT = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["a", "b", "ropeteam-checkpoint"]),
        "mountPath": st.sampled_from(
            ["/a", "/ropeteam", "/ropeteam-token/", "/ropeteam/a", "/checkpoints", "/ropeteam-signing"]
        ),
    }
)
CONTAINER: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"name": st.sampled_from(["trainer", "sidecar"])},
    optional={
        **RUN,
        "workingDir": TEXTS,
        "env": ENV,
        "resources": _resources(CPU),
        "volumeMounts": st.lists(MOUNT, max_size=2),
    },
)
POD = st.fixed_dictionaries(
    {},
    optional={
        "containers": st.lists(CONTAINER, max_size=2, unique_by=_name),
        "restartPolicy": st.sampled_from(["Never", "Always"]),
        "volumes": st.lists(st.fixed_dictionaries({"name": TEXTS}), max_size=2),
    },
)
CHECKPOINT = st.fixed_dictionaries(
    {"volume": st.sampled_from([{"emptyDir": {}}, {"name": "v", "nfs": {}}, {"nfs": {}}])},
    optional={
        "path": st.sampled_from(["a", "/a", "..", "a/../b", "a..b", "...", "a/.."]),
        "signing": st.just({"secretName": "keys"}),
    },
)
CODES = st.lists(st.integers(1, 4), min_size=1, max_size=3)
RECOVERY = st.fixed_dictionaries(
    {},
    optional={
        "lostSeconds": st.integers(9, 12),
        "fenceSeconds": st.integers(10, 12),
        "start": st.sampled_from(["Auto", "Fork"]),
        "exitCodes": st.lists(st.fixed_dictionaries({"codes": CODES, "action": st.just("Fail")}), max_size=3),
    },
)
RESUME = st.fixed_dictionaries(
    {}, optional={"policy": st.sampled_from(["Latest", "Step", "Never"]), "step": st.integers(0, 2)}
)
SPECS = st.fixed_dictionaries(
    {"workers": st.sampled_from([1, 2, 1024])},
    optional={
        **RUN,
        "env": ENV,
        "workingDir": TEXTS,
        "resources": _resources(GPU),
        "gpusPerWorker": st.integers(0, 3),
        "processesPerWorker": st.integers(1, 9),
        "launcher": st.sampled_from(["Auto", "PerPod"]),
        "template": st.fixed_dictionaries({}, optional={"spec": POD}),
        "checkpoint": CHECKPOINT,
        "recovery": RECOVERY,
        "resume": RESUME,
    },
)


TEMPLATES = st.fixed_dictionaries(
    {"workers": st.just(2), "template": st.fixed_dictionaries({"spec": POD})},
    optional={"checkpoint": CHECKPOINT},
)


@given(spec=SPECS | TEMPLATES)
def test_any_spec_is_validated_alike_by_server_and_twin(spec: Spec) -> None:
    job = as_job(spec)
    by_cel = tuple(
        rule.message
        for rule in SPEC_RULES
        if at(job, rule.path) is not None and not cel_bool(rule.cel, self=at(job, rule.path))
    )
    assert validate(spec) == by_cel


def _with(field: str, value: object) -> Spec:
    spec: Spec = {"workers": 2, "command": ["python", "train.py"]}
    *outer, last = field.split(".")
    inner = spec
    for name in outer:
        inner = inner.setdefault(name, {})
    inner.pop(last, None) if value is None else inner.update({last: value})
    return spec


@pytest.mark.parametrize("state", ["", "Running", "Suspended", "Invalid"])
@pytest.mark.parametrize("change", CHANGES.fields, ids=lambda each: each.field)
def test_a_change_is_validated_alike_by_server_and_twin(change: Change, state: str) -> None:
    first, second = (_with(change.field, value) for value in change.examples)
    idle = state in ("Suspended", "Invalid")
    status = {"status": {"state": state}} if state else {}
    for old, new, is_valid in ((first, second, idle), (second, first, idle), (first, first, True)):
        objects = {"self": {**as_job(new), **status}, "oldSelf": {**as_job(old), **status}}
        refusal = validate_update(old, new, idle)
        assert (refusal == ()) == cel_bool(CHANGES.cel, **objects) == is_valid
        assert is_valid or refusal == (cel_text(CHANGES.message_cel, **objects),)
        assert is_valid or refusal[0].startswith(f"spec.{change.field}: ")


def test_of_fields_that_changed_at_once_the_first_is_named() -> None:
    old, new = ({"workers": number, "command": [str(number)], "args": [str(number)]} for number in (1, 2))
    named = [message.partition(":")[0] for message in validate_update(old, new, suspended=False)]
    assert named == ["spec.workers"]


def test_a_field_that_shapes_no_pod_may_change_at_any_time() -> None:
    old: Spec = {"workers": 2, "command": ["a"]}
    new: Spec = {
        **old,
        "suspend": True,
        "restartedAt": "2030-01-31T12:00:00Z",
        "recovery": {"maxFailures": 3},
    }
    new |= {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 0, "cleanPodPolicy": "All"}
    assert validate_update(old, new, suspended=False) == ()


def test_a_default_written_out_is_no_change() -> None:
    old: Spec = {"workers": 2, "command": ["a"]}
    new: Spec = {**old, "launcher": "Auto", "recovery": {"lostSeconds": 5}}
    assert validate_update(old, new, suspended=False) == ()


def test_every_field_of_spec_decides_whether_it_may_change() -> None:
    """A new field must be put either among the CHANGES or here."""
    from ropeteam.api.job import Recovery, TrainingJobSpec

    free = {"suspend", "restartedAt", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "cleanPodPolicy"}
    free |= {"recovery", "recovery.maxFailures", "recovery.windowSeconds"}
    fields = {str(field.alias) for field in TrainingJobSpec.model_fields.values()}
    fields |= {f"recovery.{field.alias}" for field in Recovery.model_fields.values()}
    assert fields == free | {change.field for change in CHANGES.fields}


@pytest.mark.parametrize(
    ("limit", "fits"),
    [
        ("9Gi", True), ("8Gi", False), (9 * 2**30, True), ("9G", True), ("8.1Gi", True), ("9e9", True),
        ("8000000000000m", False), ("lots", False), ("1.2.3", False), ("9K", False),
    ],
)  # fmt: skip
def test_shared_memory_is_compared_with_a_limit_in_any_unit(limit: str | int, fits: bool) -> None:
    messages = validate({"workers": 1, "sharedMemory": "8Gi", "resources": {"limits": {"memory": limit}}})
    assert any("spec.sharedMemory" in each for each in messages) is not fits


def test_every_pod_that_a_job_may_have_fits_into_status() -> None:
    (limit,) = (
        part.max_length for part in JobStatus.model_fields["slots"].metadata if hasattr(part, "max_length")
    )
    assert limit == MAX_SLOTS
