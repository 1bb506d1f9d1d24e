"""Defaults of the installation for pods; a job's own setting wins."""

from __future__ import annotations

from typing import Any

from tests.builders import a_running_job, force_deleted, written

from ropeteam.api.defaults import NO_PROXIES, Defaults, JobDefaults
from ropeteam.core.decide import decide
from ropeteam.core.objects.actions import CreatePod
from ropeteam.core.objects.manifests import coordinator_pod
from ropeteam.core.seen.view import build_view

GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def worker(jobs: JobDefaults, **spec: Any) -> dict[str, Any]:
    defaults = Defaults(image_pull_policy="Never", jobs=jobs)
    seen = a_running_job(2, **spec).after(force_deleted(0), written).but(defaults=defaults)
    (made,) = [action.manifest for action in decide(seen).actions if isinstance(action, CreatePod)]
    return made


def coordinator(jobs: JobDefaults) -> dict[str, Any]:
    seen = a_running_job(2).but(defaults=Defaults(image_pull_policy="Never", jobs=jobs))
    return coordinator_pod(seen, build_view(seen).spec)


def environment(pod: dict[str, Any]) -> dict[str, str]:
    (trainer,) = pod["spec"]["containers"]
    return {each["name"]: each.get("value", "") for each in trainer["env"]}


def test_nothing_is_added_but_that_proxies_stay_out() -> None:
    for pod in (worker(JobDefaults()), coordinator(JobDefaults())):
        assert pod["metadata"]["annotations"] == NO_PROXIES
        assert not {"tolerations", "imagePullSecrets", "nodeSelector", "priorityClassName"} & set(pod["spec"])


def test_our_containers_are_pulled_as_the_installation_sets() -> None:
    (container,) = coordinator(JobDefaults())["spec"]["containers"]
    assert container["imagePullPolicy"] == "Never"


def test_both_kinds_of_pods_get_what_lets_them_run() -> None:
    defaults = JobDefaults(
        tolerations=(GPU_TAINT,),
        node_selector={"pool": "gpu"},
        image_pull_secrets=("ours",),
        labels={"team": "ml"},
        annotations={"note": "x"},
    )
    for pod in (worker(defaults), coordinator(defaults)):
        assert pod["spec"]["tolerations"] == [GPU_TAINT]
        assert pod["spec"]["nodeSelector"] == {"pool": "gpu"}
        assert pod["spec"]["imagePullSecrets"] == [{"name": "ours"}]
        assert pod["metadata"]["annotations"] == {"note": "x"}
        assert pod["metadata"]["labels"]["team"] == "ml"
        assert pod["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "ropeteam"


def test_environment_and_priority_are_the_workers() -> None:
    defaults = JobDefaults(env=({"name": "NCCL_DEBUG", "value": "WARN"},), priority_class_name="training")
    pod = worker(defaults)
    assert (environment(pod)["NCCL_DEBUG"], pod["spec"]["priorityClassName"]) == ("WARN", "training")
    assert "NCCL_DEBUG" not in environment(coordinator(defaults))
    assert "priorityClassName" not in coordinator(defaults)["spec"]


def test_the_jobs_own_setting_wins() -> None:
    defaults = JobDefaults(
        env=({"name": "NCCL_DEBUG", "value": "WARN"},),
        tolerations=(GPU_TAINT,),
        node_selector={"pool": "gpu", "zone": "a"},
        image_pull_secrets=("ours", "theirs"),
        priority_class_name="training",
        labels={"team": "ml"},
    )
    template = {
        "metadata": {"labels": {"team": "vision"}},
        "spec": {
            "nodeSelector": {"pool": "cpu"},
            "imagePullSecrets": [{"name": "theirs"}],
            "priorityClassName": "urgent",
            "tolerations": [GPU_TAINT],
        },
    }
    pod = worker(defaults, env=[{"name": "NCCL_DEBUG", "value": "INFO"}], template=template)
    assert environment(pod)["NCCL_DEBUG"] == "INFO"
    assert pod["spec"]["nodeSelector"] == {"pool": "cpu", "zone": "a"}
    assert pod["spec"]["imagePullSecrets"] == [{"name": "theirs"}, {"name": "ours"}]
    assert pod["spec"]["priorityClassName"] == "urgent"
    assert pod["spec"]["tolerations"] == [GPU_TAINT]
    assert pod["metadata"]["labels"]["team"] == "vision"


def test_what_is_of_another_type_is_replaced() -> None:
    defaults = JobDefaults(tolerations=(GPU_TAINT,), node_selector={"pool": "gpu"})
    pod = worker(defaults, template={"spec": {"tolerations": "all", "nodeSelector": 3}})
    assert (pod["spec"]["tolerations"], pod["spec"]["nodeSelector"]) == ([GPU_TAINT], {"pool": "gpu"})


def of_coordinator(jobs: JobDefaults, workers: int = 2) -> dict[str, Any]:
    seen = a_running_job(workers).but(defaults=Defaults(jobs=jobs))
    (container,) = coordinator_pod(seen, build_view(seen).spec)["spec"]["containers"]
    resources: dict[str, Any] = container["resources"]
    return resources


def test_no_coordinator_takes_its_node_with_it() -> None:
    small, large = (of_coordinator(JobDefaults(), workers)["limits"] for workers in (2, 64))
    assert (small, large) == ({"memory": "256Mi"}, {"memory": "264Mi"})


def test_requests_and_limits_of_coordinators_are_the_installations_each_for_itself() -> None:
    ours = of_coordinator(JobDefaults())
    own = {"memory": "1Gi", "cpu": "1"}
    assert of_coordinator(JobDefaults(coordinator_resources={"limits": own})) == ours | {"limits": own}
    assert of_coordinator(JobDefaults(coordinator_resources={"limits": {}, "requests": own})) == {
        "limits": {},
        "requests": own,
    }
