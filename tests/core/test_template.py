"""Templates with fields that the API does not know: a pod of ours is built, or the job is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import UID, a_job
from tests.core.observations import anything

from ropeteam.api.rules import validate as rules
from ropeteam.core.decide import decide
from ropeteam.core.objects.workerpod import dry_run_pod
from ropeteam.core.seen.view import build_view


def built(template: dict[str, Any]) -> dict[str, Any]:
    seen = a_job(template=template)
    return dry_run_pod(seen, build_view(seen).spec)


rows = st.lists(
    st.dictionaries(st.sampled_from(["name", "containerPort", "mountPath"]), anything), max_size=2
)
malformed = rows | anything
in_metadata = ("labels", "annotations", "name")
in_spec = ("volumes", "affinity", "securityContext", "nodeSelector", "tolerations", "imagePullSecrets")
in_container = ("ports", "volumeMounts", "securityContext", "envFrom", "resources", "env", "command", "more")


def some(names: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), malformed, max_size=2)


@given(some(in_metadata), some((*in_spec, "hostNetwork", "more")), some(in_container))
@settings(max_examples=300)
def test_a_template_that_is_not_refused_builds_a_pod(metadata: Any, spec: Any, container: Any) -> None:
    containers = [{"name": "trainer", **container}]
    seen = a_job(template={"metadata": metadata, "spec": {**spec, "containers": containers}})
    assert decide(seen).why
    if not rules.validate(seen.spec):
        labels = dry_run_pod(seen, build_view(seen).spec)["metadata"]["labels"]
        assert labels["ropeteam.dev/job-uid"] == UID


@pytest.mark.parametrize(
    "port", [{"name": {}}, {"containerPort": []}, {"name": "metrics", "containerPort": {}}]
)
def test_a_port_of_another_shape_is_left_to_the_dry_run(port: dict[str, Any]) -> None:
    made = built({"spec": {"containers": [{"name": "trainer", "ports": [port]}]}})
    assert port in made["spec"]["containers"][0]["ports"]


def test_labels_and_annotations_under_our_own_name_are_not_the_users() -> None:
    texts = {"team": "vision", "ropeteam.dev/term": "1", "ropeteam.dev/note": "x", "our.ropeteam.dev/x": "y"}
    metadata = built({"metadata": {"labels": texts, "annotations": texts}})["metadata"]
    for ours in (metadata["labels"], metadata["annotations"]):
        assert ours["team"] == "vision"
        assert ours["our.ropeteam.dev/x"] == "y"
        assert not ours.keys() & {"ropeteam.dev/term", "ropeteam.dev/note"}


def test_where_we_mount_what_is_ours_the_template_may_not() -> None:
    seen = a_job(checkpoint={"volume": {"nfs": {}}})
    (trainer,) = dry_run_pod(seen, build_view(seen).spec)["spec"]["containers"]
    ours = {each["mountPath"] for each in trainer["volumeMounts"]} - {
        "/dev/shm"
    }  # which may be the template's
    assert ours == {"/ropeteam", "/ropeteam-token", "/checkpoints"}
    for path in ours:
        mine = {"name": "trainer", "volumeMounts": [{"name": "mine", "mountPath": path}]}
        template = {"spec": {"containers": [mine], "volumes": [{"name": "mine", "emptyDir": {}}]}}
        (message,) = rules.validate({**seen.spec, "template": template})
        assert "use another mountPath" in message
