"""Where Pod Security allows no root: all pods of an attempt run as one user of ours, and the job says so."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders import Scene, a_job, a_running_job, edited, force_deleted, refused, saved, written
from tests.core.fake_cluster import FakeCluster

from ropeteam.api.conditions import Condition, ConditionType
from ropeteam.api.status import JobStatus
from ropeteam.core.decide import decide
from ropeteam.core.objects import nonroot
from ropeteam.core.objects.actions import CreatePod
from ropeteam.core.objects.workerpod import dry_run_pod
from ropeteam.core.questions.acceptance import reported_refusal
from ropeteam.core.seen.observation import Refusal
from ropeteam.core.seen.view import build_view

REFUSAL = 'pods "mnist-0-1" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'
AS_USER = Refusal(message=REFUSAL, user=1000)


def accepted(scene: Scene) -> Condition:
    found = decide(scene).status.condition(ConditionType.ACCEPTED)
    assert found is not None
    return found


def in_template(security: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    more = {"securityContext": security} if security else {}
    return {"spec": {"containers": [{"name": "trainer", **container}], **more}}


def made(user: int = 1000, **spec: Any) -> dict[str, Any]:
    seen = a_job(**spec)
    return dry_run_pod(seen, build_view(seen).spec, user)


def test_the_container_is_a_user_that_is_not_root_and_volumes_are_its_groups() -> None:
    spec = made()["spec"]
    assert spec["securityContext"] == {
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsNonRoot": True,
        "fsGroup": 1000,
        "fsGroupChangePolicy": "OnRootMismatch",
    }
    (trainer,) = spec["containers"]
    own = trainer["securityContext"]
    assert (own["runAsUser"], own["runAsGroup"], own["capabilities"]) == (1000, 1000, {"drop": ["ALL"]})


def test_it_has_a_home_that_it_can_write_and_a_name() -> None:
    pod = made(user=2000)
    (trainer,) = pod["spec"]["containers"]
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    mounts = {each["mountPath"]: each for each in trainer["volumeMounts"]}
    assert {"name": "HOME", "value": "/ropeteam-home"} in trainer["env"]
    assert volumes[mounts["/ropeteam-home"]["name"]]["emptyDir"] == {}
    assert mounts["/etc/passwd"]["subPath"] == "passwd"
    (file,) = volumes[mounts["/etc/passwd"]["name"]]["downwardAPI"]["items"]
    assert file["fieldRef"] == {"fieldPath": "metadata.annotations['ropeteam.dev/passwd']"}
    assert (
        "trainer:x:2000:2000::/ropeteam-home:/bin/sh\n"
        in pod["metadata"]["annotations"]["ropeteam.dev/passwd"]
    )


def test_what_the_template_sets_of_users_homes_and_names_is_preserved() -> None:
    mine = [{"name": "mine", "mountPath": path} for path in ("/etc/passwd", "/ropeteam-home")]
    security = {"runAsUser": 5, "runAsGroup": 6, "fsGroup": 7, "runAsNonRoot": False}
    template = in_template(security, volumeMounts=mine, env=[{"name": "HOME", "value": "/mine"}])
    template["spec"]["volumes"] = [{"name": "mine", "emptyDir": {}}]
    pod = made(user=5, template=template)
    (trainer,) = pod["spec"]["containers"]
    assert security.items() <= pod["spec"]["securityContext"].items()
    assert not {"runAsUser", "runAsGroup"} & set(trainer["securityContext"])
    assert [each["value"] for each in trainer["env"] if each["name"] == "HOME"] == ["/mine"]
    assert not {"ropeteam-home", "ropeteam-passwd"} & {each["name"] for each in pod["spec"]["volumes"]}


@pytest.mark.parametrize(
    ("template", "user"),
    [
        (in_template(), 1000),
        (in_template({"runAsUser": 0}), 1000),
        (in_template({"runAsUser": "me"}), 1000),
        (in_template({"runAsUser": 5}), 5),
        (in_template({"runAsUser": 5}, securityContext={"runAsUser": 6}), 6),
    ],
)
def test_it_is_the_templates_user_if_that_names_one(template: dict[str, Any], user: int) -> None:
    seen = a_job(template=template)
    assert nonroot.user_of(dry_run_pod(seen, build_view(seen).spec)) == user


def test_a_job_that_is_taken_as_such_a_user_starts_and_reports_it() -> None:
    decision = decide(a_job().but(refusal=AS_USER))
    assert (decision.status.attempt, decision.status.run_as_user) == (1, 1000)
    condition = decision.status.condition(ConditionType.ACCEPTED)
    assert condition is not None
    assert (condition.holds, condition.reason) == (True, "RunsAsNonRoot")
    assert "as user 1000" in condition.message
    assert "runAsNonRoot to true" in condition.message
    assert ("RunsAsNonRoot", condition.message) in [
        (each.reason, each.message) for each in decision.announcements
    ]


def test_a_job_runs_as_such_a_user_to_its_end() -> None:
    cluster = FakeCluster(a_job().but(refusal=AS_USER))
    cluster.play(until=lambda seen: seen.status.state == "Running")
    assert accepted(cluster.observe()).reason == "RunsAsNonRoot"


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize(
    "refusal",
    [Refusal(message="no such field"), Refusal(message=REFUSAL), AS_USER],
    ids=lambda each: each.user,
)
def test_the_decision_is_the_same_with_the_refusal_that_status_reports(
    refusal: Refusal, running: bool
) -> None:
    scene = (a_running_job(2) if running else a_job()).but(refusal=refusal).after(written)
    generation = scene.metadata.generation
    known = reported_refusal(scene.status, generation)
    if refusal is AS_USER and not running:
        assert known is None, "it is accepted"
        return
    assert accepted(scene).reason == "PodRefused"
    assert decide(scene.but(refusal=known)) == decide(scene)
    assert reported_refusal(scene.status, generation + 1) is None, "of another spec nothing is known"


def test_all_pods_of_an_attempt_run_as_one_user_whatever_the_server_answers_meanwhile() -> None:
    """Not requested again yet after the operator has restarted, or the namespace's level was lowered."""
    running = a_running_job(2).after(force_deleted(0))
    status = running.status.model_copy(update={"run_as_user": 1234})
    scene = running.but(refusal=None, status=status).after(written)
    (pod,) = [action.manifest for action in decide(scene).actions if isinstance(action, CreatePod)]
    assert pod["spec"]["containers"][0]["securityContext"]["runAsUser"] == 1234
    assert accepted(scene).reason == "RunsAsNonRoot"


def test_a_job_that_runs_as_written_continues_and_shows_how_to_continue_as_a_user() -> None:
    scene = a_running_job(2).but(refusal=AS_USER).after(force_deleted(0), written)
    (pod,) = [action.manifest for action in decide(scene).actions if isinstance(action, CreatePod)]
    assert "runAsUser" not in pod["spec"]["containers"][0]["securityContext"]
    condition = accepted(scene)
    assert (condition.holds, condition.reason) == (False, "PodRefused")
    assert REFUSAL in condition.message
    assert "To continue as user 1000, set spec.suspend to true and then to false" in condition.message


def test_the_next_attempt_runs_as_the_server_answers_then() -> None:
    running = a_running_job(2).but(refusal=AS_USER, pods=(), report=None)
    stopped = running.after(edited(suspend=True), written)
    assert stopped.status.state == "Suspended"
    assert accepted(stopped).reason == "Accepted"
    resumed = stopped.after(edited(suspend=False))
    assert decide(resumed).status.run_as_user == 1000
    assert accepted(resumed.after(saved(decide(resumed)))).reason == "RunsAsNonRoot"
    assert decide(stopped.but(refusal=None).after(edited(suspend=False))).status.run_as_user is None


def test_what_is_refused_as_a_user_too_is_reported_in_the_servers_first_message() -> None:
    decision = decide(a_job().after(refused(REFUSAL)))
    assert (decision.status.state, decision.status.attempt) == ("Invalid", 0)
    assert f"{REFUSAL}. It is refused as a non-root user too: change spec.template" in decision.why


def test_a_status_of_an_earlier_release_names_no_user() -> None:
    assert JobStatus.model_validate({"attempt": 1}).run_as_user is None
