"""A snapshot is shown to others: what may be secret is not in it, and what would be decided is the same."""

from __future__ import annotations

import base64
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import Scene, a_job, a_running_job

from ropeteam.cli.show import inspect
from ropeteam.cli.show.redaction import masked_observation
from ropeteam.core.questions.gang import pod_spec_hash
from ropeteam.core.seen.view import build_view

CANARY = "s3cr3t"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--token", CANARY],
        ["--token", "-" + CANARY],
        ["--token=-" + CANARY],
        ["--hub-token=" + CANARY],
        ["-password", CANARY],
        ["--wandb.api_key", CANARY, "--lr", "0.1"],
        ["--key=" + CANARY],
        ["--pw=" + CANARY],
        ["PASS=" + CANARY],
        ["GITHUB_PAT=" + CANARY],
        [f"WANDB_API_KEY={CANARY}", "python"],
        [f'TOKEN="a b {CANARY}"'],
        [f'--config={{"api_key": "a {CANARY}"}}'],
        ["sh", "-c", f"export HF_TOKEN='{CANARY}' && exec python train.py"],
        ["sh", "-c", f"KEY='it'\\''s {CANARY}' python train.py"],
        ["python", "-c", f"login('me', token = '{CANARY}')"],
        ["curl", "-H", f"Authorization: {CANARY}"],
        ["curl", "-H", f"Authorization: Bearer {CANARY}"],
        ["sh", "-c", f"curl -H 'Authorization: Bearer {CANARY}' host"],
        [f"--data=https://me:{CANARY}@host/x"],
        [f"--data=https://me:{CANARY},key=x@host/x"],
        [f"https://me:p@{CANARY}@host/"],
    ],
)
def test_what_follows_a_secrets_name_is_masked(arguments: list[str]) -> None:
    job = a_job(command=["python", *arguments], template={"spec": {"initContainers": [{"args": arguments}]}})
    seen = masked_observation(job)
    assert CANARY not in seen.model_dump_json()
    again = seen.spec["template"]["spec"]["initContainers"][0]["args"]
    assert seen.spec["command"] == ["python", *again], "equal texts have equal marks"


@pytest.mark.parametrize(
    "arguments",
    [
        ["python", "/opt/secrets/train.py", "--path", "a", "--lr=0.1", "-x"],
        ["python", "author.py", "--lr", "0.1"],
        ["--data", "https://host/a@b", "user@host"],
        ["sh", "-c", "cd /work && python train.py"],
    ],
)
def test_what_describes_the_work_is_not_masked(arguments: list[str]) -> None:
    assert masked_observation(a_job(command=arguments)).spec["command"] == arguments


names = st.sampled_from(["--token", "-H Authorization", "PASS", "GITHUB_PAT", "my-key", "pw", '"api_key"'])
between = st.sampled_from(["=", " ", ": ", " = ", "='", '="', ": Bearer ", "=\\'", "=a b ", "('"])
around = st.text("ab/+=-.@:'\" \n", max_size=6)


@settings(deadline=None)
@given(before=around, name=names, then=between, filler=around, after=around)
def test_a_canary_never_appears(before: str, name: str, then: str, filler: str, after: str) -> None:
    text = f"{before} {name}{then}{filler}{CANARY}{after}"
    user = re.sub(r"[/\s]", "", filler)
    url = f"{before}https://{user}{CANARY}@{after}"
    arguments = [text, "sh", url, "--token", filler + CANARY, "--key=", CANARY]
    assert CANARY not in masked_observation(a_job(command=arguments)).model_dump_json()


def test_a_megabyte_of_base64_is_read_to_its_end() -> None:
    noise = random.Random(0).randbytes(750_000)
    for text in (base64.b64encode(noise), base64.urlsafe_b64encode(noise), b"token%" * 170_000):
        assert (
            CANARY
            not in masked_observation(a_job(args=[text.decode() + f" --token={CANARY}"])).model_dump_json()
        )


def test_values_attributes_and_foreign_annotations_are_masked_and_ours_are_not() -> None:
    env = [{"name": "PIN", "value": CANARY}]
    probe = {"httpGet": {"httpHeaders": [{"name": "X", "value": CANARY}]}}
    notes = {LAST_APPLIED: CANARY, "ropeteam.dev/coordinators-ended": "1"}
    claim = {"volumeClaimTemplate": {"metadata": {"annotations": notes}}}
    spec = {
        "containers": [{"name": "trainer", "env": env, "livenessProbe": probe}],
        "tolerations": [{"key": "gpu", "value": "a100"}],
        "volumes": [
            {"csi": {"driver": "d", "volumeAttributes": {"x": CANARY}}},
            {"flexVolume": {"driver": "d", "options": {"x": CANARY}}},
            {"ephemeral": claim},
        ],
    }
    template = {"metadata": {"annotations": notes}, "spec": spec}
    job = a_job(command=["python"], env=[{"name": "A", "value": CANARY}], template=template)
    job = job.but(metadata=job.metadata.model_copy(update={"annotations": notes}))
    seen = masked_observation(job)
    template = seen.spec["template"]
    assert CANARY not in seen.model_dump_json()
    assert template["spec"]["tolerations"] == spec["tolerations"]
    assert [each.get("csi", {}).get("driver") for each in template["spec"]["volumes"]] == ["d", None, None]
    again = template["spec"]["volumes"][2]["ephemeral"]["volumeClaimTemplate"]["metadata"]["annotations"]
    hidden = {LAST_APPLIED: "***1", "ropeteam.dev/coordinators-ended": "1"}
    assert seen.metadata.annotations == template["metadata"]["annotations"] == again == hidden


def replays(true: Scene) -> bool:
    first, again = (
        list(inspect.explanation(each.model_dump_json().encode(), "x"))
        for each in (true, masked_observation(true))
    )
    return first == again


values = st.sampled_from(["", "a", "b", 1, None])
arguments = st.lists(
    st.sampled_from(["--token", "a", "b", "TOKEN=a", "TOKEN=b c", "--key=", "-x", "//a@b", 1]), max_size=3
)


@given(rows=st.lists(values, max_size=2), short=arguments, own=arguments, note=values)
@settings(max_examples=50, deadline=None)
def test_what_is_masked_replays_as_what_was_seen(rows: Any, short: Any, own: Any, note: Any) -> None:
    env = [{"name": f"A{number}", "value": value} for number, value in enumerate(rows)]
    container = {"name": "trainer", "env": env, "args": own}
    template = {"metadata": {"annotations": {"a": note}}, "spec": {"containers": [container]}}
    assert replays(a_job(args=short, env=env[1:], template=template))


def test_a_job_that_runs_has_not_changed_by_being_masked() -> None:
    job = a_running_job(env=[{"name": "A", "value": CANARY}])
    assert replays(job)
    assert masked_observation(job).status.pod_spec_hash not in ("", job.status.pod_spec_hash), (
        "a digest tells of a short secret"
    )


def test_a_job_that_was_changed_while_it_runs_still_is() -> None:
    job = a_running_job(env=[{"name": "A", "value": "b"}])
    changed = job.but(spec=job.spec | {"env": [{"name": "A", "value": CANARY}]})
    assert replays(changed)
    seen = masked_observation(changed)
    assert seen.status.pod_spec_hash not in (job.status.pod_spec_hash, pod_spec_hash(build_view(seen).spec))


@pytest.mark.parametrize("length", [16_378, 16_384, 16_385])
def test_what_is_too_long_stays_so(length: int) -> None:
    job = a_job(env=[{"name": "A", "value": "x" * length}], args=["TOKEN=" + "x" * length])
    assert replays(job)
    assert "xxx" not in masked_observation(job).model_dump_json()


def test_what_is_not_too_long_stays_so() -> None:
    text = "x" * 16_376 + " TOKEN=a"
    job = a_job(args=[text], template={"spec": {"containers": [{"name": "trainer", "args": [text]}]}})
    assert replays(job)
