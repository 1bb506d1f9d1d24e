"""The chart, rendered by the real Helm: what each value does, and that wrong values are refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab.kube import programs
from lab.kube.site import CHART, ROOT
from tests.metrics.prometheus import ENDPOINTS, scrape
from tests.metrics.test_names import ALERTS
from tools.dashboards import files
from tools.release import Release
from tools.values import schema

from ropeteam.api.defaults import JobDefaults, JobPolicy

Object = dict[str, Any]


def helm(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(programs.folder() / "helm"), *argv], text=True, capture_output=True)


def render(values: Object | None = None, chart: Path = CHART) -> list[Object]:
    """All objects of the chart with these values."""
    done = subprocess.run(
        [str(programs.folder() / "helm"), "template", "ropeteam", str(chart), "-n", "sys", "-f", "-"],
        input=json.dumps(values or {}), text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def of_kind(kind: str, values: Object | None = None) -> list[Object]:
    return [each for each in render(values) if each["kind"] == kind]


def pod(values: Object | None = None) -> Object:
    (deployment,) = of_kind("Deployment", values)
    spec: Object = deployment["spec"]["template"]["spec"]
    return spec


def arguments(values: Object | None = None) -> dict[str, str]:
    argv = pod(values)["containers"][0]["args"]
    return dict(flag.removeprefix("--").split("=", 1) for flag in argv)


def test_helm_lint_finds_nothing() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def test_the_chart_of_a_release_is_this_one(tmp_path: Path) -> None:
    release = Release("9", "", 0, tmp_path)
    release.chart()
    on = {"enabled": True}
    values = {
        "metrics": {"prometheusRule": on, "dashboards": on},
        "operatorKey": {"existingSecret": "not drawn"},
    }
    assert render(values, tmp_path / "ropeteam-9.tgz") == render(values)


def leaves(
    node: Object, root: Object, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Object]]:
    for name, each in node.get("properties", {}).items():
        if name == "global":
            continue
        target = root["$defs"][each["$ref"].rpartition("/")[2]] if "$ref" in each else each
        yield (*path, name), {**target, **each}
        yield from leaves(target, root, (*path, name))


def test_every_value_is_described_and_a_typo_in_any_section_is_refused() -> None:
    made = schema()
    every = list(leaves(made, made))
    assert len(every) > 40
    assert [path for path, each in every if not each.get("description")] == []
    sections = [path for path, each in every if each.get("properties")]
    for path in [(), *sections]:
        wrong: Object = {"typo": 1}
        for name in reversed(path):
            wrong = {name: wrong}
        done = subprocess.run(
            [str(programs.folder() / "helm"), "template", "r", str(CHART), "-f", "-"],
            input=json.dumps(wrong), text=True, capture_output=True,
        )  # fmt: skip
        assert done.returncode != 0, path
        assert "typo" in done.stderr


@pytest.mark.parametrize(
    "values",
    [
        {"replicas": 0},
        {"leaseSeconds": 1},
        {"logLevel": "LOUD"},
        {"image": {"digest": "latest"}},
        {"image": {"pullPolicy": "Sometimes"}},
        {"namespaces": "all"},
        {"maxConcurrentReconciles": "many"},
        {"metrics": {"interval": "often"}},
    ],
)
def test_a_value_that_cannot_work_is_refused(values: Object) -> None:
    argv = [str(programs.folder() / "helm"), "template", "r", str(CHART), "-f", "-"]
    done = subprocess.run(argv, input=json.dumps(values), text=True, capture_output=True)
    assert done.returncode != 0
    assert next(iter(values)) in done.stderr


def test_the_image_is_the_operators_and_what_it_gives_to_jobs() -> None:
    image = {"registry": "mirror.example:5000", "repository": "a/b", "tag": "9", "pullPolicy": "Always"}
    spec = pod({"image": {**image, "pullSecrets": [{"name": "s"}]}})
    assert spec["containers"][0]["image"] == "mirror.example:5000/a/b:9"
    assert spec["imagePullSecrets"] == [{"name": "s"}]
    assert arguments({"image": image})["image"] == "mirror.example:5000/a/b:9"
    assert (
        arguments({"image": image})["image-pull-policy"]
        == spec["containers"][0]["imagePullPolicy"]
        == "Always"
    )
    digest = "sha256:" + "0" * 64
    assert arguments({"image": {"digest": digest}})["image"] == f"ghcr.io/ropeteam/ropeteam@{digest}"
    assert arguments({"image": {"registry": ""}})["image"].startswith("ropeteam/ropeteam:")


def test_settings_reach_the_operator() -> None:
    given = arguments(
        {"logLevel": "DEBUG", "maxConcurrentReconciles": 7, "leaseSeconds": 30, "namespaces": ["a", "b"]}
    )
    expected = {
        "log-level": "DEBUG",
        "max-concurrent-reconciles": "7",
        "lease-seconds": "30",
        "namespaces": "a,b",
    }
    assert expected.items() <= given.items()
    assert given["lease"] == "sys/ropeteam"
    assert "namespace" not in arguments()


def test_defaults_for_jobs_are_what_the_operator_reads() -> None:
    jobs = {
        "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
        "imagePullSecrets": ["s"],
        "priorityClassName": "p",
    }
    (config,) = of_kind("ConfigMap", {"jobDefaults": jobs})
    read = JobDefaults.model_validate_json(config["data"]["defaults.json"])
    assert read == JobDefaults.model_validate(jobs)
    (plain,) = of_kind("ConfigMap")
    assert JobDefaults.model_validate_json(plain["data"]["defaults.json"]) == JobDefaults()


def test_who_may_reach_jobs_is_what_the_operator_reads() -> None:
    prometheus = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    values = {"networkPolicy": {"metricsFrom": prometheus}}
    (config,), (deployment,) = of_kind("ConfigMap", values), of_kind("Deployment", values)
    read = JobPolicy.model_validate_json(config["data"]["policy.json"])
    (peer,) = read.operator_from
    assert peer["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "sys"}}
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    assert list(read.metrics_from) == prometheus
    assert arguments(values)["job-policy"] == "/etc/ropeteam/jobs/policy.json"


@pytest.mark.parametrize("off", ["enabled", "jobs"])
def test_without_policies_for_jobs_there_is_no_right_to_make_them(off: str) -> None:
    assert "networkpolicies" in json.dumps(of_kind("ClusterRole"))
    values = {"networkPolicy": {off: False}}
    assert "networkpolicies" not in json.dumps(of_kind("ClusterRole", values))
    assert "job-policy" not in arguments(values)
    (config,) = of_kind("ConfigMap", values)
    assert set(config["data"]) == {"defaults.json"}


def test_rights_are_in_the_whole_cluster_or_in_the_named_namespaces() -> None:
    names = {each["metadata"]["name"] for each in of_kind("ClusterRole")}
    assert names == {"ropeteam", "ropeteam-edit", "ropeteam-view"}
    values = {"namespaces": ["a", "b"]}
    assert "ropeteam" not in {each["metadata"]["name"] for each in of_kind("ClusterRole", values)}
    places = {each["metadata"]["namespace"] for each in of_kind("Role", values)}
    assert places == {"a", "b", "sys"}
    assert of_kind("ClusterRoleBinding", values) == []
    assert not {"ClusterRole", "Role", "RoleBinding"} & {
        e["kind"] for e in render({"rbac": {"create": False}})
    }


def test_in_named_namespaces_without_the_definition_nothing_is_cluster_wide() -> None:
    off = {"enabled": False}
    values = {"namespaces": ["a"], "crds": off, "admissionPolicy": off}
    places = {each["metadata"].get("namespace", each["kind"]) for each in render(values)}
    assert places == {"a", "sys"}
    assert len(of_kind("ClusterRole", values | {"crds": {"enabled": True}})) == 2
    assert len(of_kind("ClusterRole", {"crds": off})) == 3


def test_the_definition_and_the_roles_of_people_can_be_installed_alone() -> None:
    parts = ("--show-only", "templates/crds.yaml", "--show-only", "templates/people.yaml")
    done = helm("template", "ropeteam", str(CHART), *parts)
    assert done.returncode == 0, done.stderr
    found = {each["metadata"]["name"] for each in yaml.safe_load_all(done.stdout)}
    assert found == {"trainingjobs.ropeteam.dev", "ropeteam-edit", "ropeteam-view"}
    assert " ".join(parts) in (ROOT / "docs" / "install.md").read_text()


def test_the_operator_has_no_more_than_24_rights() -> None:
    roles = [each for each in of_kind("ClusterRole") if each["metadata"]["name"] == "ropeteam"] + of_kind(
        "Role"
    )
    rules = [rule for role in roles for rule in role["rules"]]
    triples = {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert len(triples) <= 24
    assert not any("*" in triple for triple in triples)
    assert {verb for _, resource, verb in triples if resource == "secrets"} == {"create"}


def test_the_definition_is_installed_and_outlives_the_release_by_default() -> None:
    (definition,) = of_kind("CustomResourceDefinition")
    assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    (loose,) = of_kind("CustomResourceDefinition", {"crds": {"keep": False}})
    assert "annotations" not in loose["metadata"]
    assert of_kind("CustomResourceDefinition", {"crds": {"enabled": False}}) == []


def test_the_key_survives_upgrades_and_may_be_ones_own() -> None:
    (secret,) = of_kind("Secret")
    assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    own = {"operatorKey": {"existingSecret": "mine"}}
    assert of_kind("Secret", own) == []
    assert {"secretName": "mine"}.items() <= pod(own)["volumes"][0]["secret"].items()


def test_previous_keys_are_beside_the_key() -> None:
    (operator,) = pod()["containers"]
    (mounted,) = (each["mountPath"] for each in operator["volumeMounts"] if each["name"] == "key")
    assert f"--key-file={mounted}/key" in operator["args"]
    assert f"--previous-key-file={mounted}/previous" in operator["args"]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("admissionPolicy", "ValidatingAdmissionPolicy"),
        ("networkPolicy", "NetworkPolicy"),
        ("podDisruptionBudget", "PodDisruptionBudget"),
    ],
)
def test_parts_that_may_be_left_out(value: str, kind: str) -> None:
    assert len(of_kind(kind)) == 1
    assert of_kind(kind, {value: {"enabled": False}}) == []


MONITORING = {
    "serviceMonitor": ["ropeteam"],
    "podMonitor": ["ropeteam-coordinators", "ropeteam-servers", "ropeteam-workers"],
    "prometheusRule": ["ropeteam"],
    "dashboards": ["ropeteam-dashboard-jobs", "ropeteam-dashboard-operator"],
}
KINDS = {"serviceMonitor": "ServiceMonitor", "podMonitor": "PodMonitor", "prometheusRule": "PrometheusRule"}


@pytest.mark.parametrize("value", MONITORING)
def test_monitors_rules_and_dashboards_are_made_when_enabled(value: str) -> None:
    plain = {(each["kind"], each["metadata"]["name"]) for each in render()}
    values = {"metrics": {value: {"enabled": True}, "labels": {"release": "kps"}}}
    made = [each for each in render(values) if (each["kind"], each["metadata"]["name"]) not in plain]
    assert sorted(each["metadata"]["name"] for each in made) == MONITORING[value]
    assert {each["kind"] for each in made} == {KINDS.get(value, "ConfigMap")}
    label = ("grafana_dashboard", "1") if value == "dashboards" else ("release", "kps")
    assert all(label in each["metadata"]["labels"].items() for each in made)


def test_the_monitor_of_the_operators_finds_their_service_and_the_policy_lets_it_in() -> None:
    values = {"metrics": {"serviceMonitor": {"enabled": True}, "interval": "1m"}}
    (monitor,), (service,) = of_kind("ServiceMonitor", values), of_kind("Service", values)
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"] == [{"port": "http", "path": "/metrics", "interval": "1m"}]
    assert service["spec"]["ports"][0]["name"] == "http"
    (policy,) = of_kind("NetworkPolicy", values)
    everyone = {"ports": [{"port": "http", "protocol": "TCP"}]}
    assert policy["spec"]["ingress"] == [everyone]
    prometheus = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    (policy,) = of_kind("NetworkPolicy", {"networkPolicy": {"metricsFrom": prometheus}})
    assert policy["spec"]["ingress"] == [everyone | {"from": prometheus}]


@pytest.mark.parametrize(
    ("role", "other"),
    [("coordinator", {"any": True}), ("worker", {"matchNames": ["a"]}), ("server", {"any": True})],
)
def test_the_monitors_of_pods_are_those_that_the_end_to_end_tests_use(role: str, other: Object) -> None:
    values = {"metrics": {"podMonitor": {"enabled": True}}, "namespaces": other.get("matchNames", [])}
    (spec,) = [e["spec"] for e in of_kind("PodMonitor", values) if role in e["metadata"]["name"]]
    (endpoint,) = spec["podMetricsEndpoints"]
    expected, port = scrape(role, {}), ENDPOINTS[role].port
    assert (endpoint["port"], endpoint["honorLabels"], spec["namespaceSelector"]) == (port, False, other)
    assert spec["selector"]["matchLabels"]["ropeteam.dev/role"] == role
    assert spec["sampleLimit"] == expected["sample_limit"]

    def plain(rules: list[Object]) -> list[Object]:
        names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
        return [{names.get(key, key): value for key, value in rule.items()} for rule in rules]

    # The Prometheus Operator itself keeps pods by their labels, and ports by their names.
    assert plain(endpoint["relabelings"]) == expected["relabel_configs"][2:]
    assert plain(endpoint["metricRelabelings"]) == expected["metric_relabel_configs"]


def test_rules_and_dashboards_are_the_files_that_are_tested() -> None:
    on = {"enabled": True}
    values = {"metrics": {"prometheusRule": on, "dashboards": on}}
    (rule,) = of_kind("PrometheusRule", values)
    assert rule["spec"] == yaml.safe_load(ALERTS.read_text())
    maps = [e["data"] for e in of_kind("ConfigMap", values) if "dashboard" in e["metadata"]["name"]]
    rendered = {name: json.loads(text) for data in maps for name, text in data.items()}
    assert rendered == {f"ropeteam-{path.name}": json.loads(text) for path, text in files().items()}


def test_one_replica_needs_no_disruption_budget() -> None:
    assert of_kind("PodDisruptionBudget", {"replicas": 1}) == []


def test_the_service_account_is_made_or_named() -> None:
    named = {"serviceAccount": {"name": "me", "annotations": {"a": "b"}}}
    (account,) = of_kind("ServiceAccount", named)
    assert (account["metadata"]["name"], account["metadata"]["annotations"]) == ("me", {"a": "b"})
    assert pod(named)["serviceAccountName"] == "me"
    assert of_kind("ServiceAccount", {"serviceAccount": {"create": False}}) == []


def test_where_and_how_the_operator_runs() -> None:
    placed = {
        "replicas": 3,
        "nodeSelector": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "resources": {"limits": {"memory": "1Gi"}},
    }
    spec = pod(placed)
    for name in ("nodeSelector", "tolerations", "affinity", "priorityClassName"):
        assert spec[name] == placed[name]
    assert spec["containers"][0]["resources"]["limits"]["memory"] == "1Gi"
    (deployment,) = of_kind("Deployment", {**placed, "podLabels": {"x": "y"}, "podAnnotations": {"n": "m"}})
    assert deployment["spec"]["replicas"] == 3
    metadata = deployment["spec"]["template"]["metadata"]
    assert (metadata["labels"]["x"], metadata["annotations"]["n"]) == ("y", "m")


def test_api_server_ports_and_extra_objects() -> None:
    (policy,) = of_kind("NetworkPolicy", {"networkPolicy": {"apiServerPorts": [16443]}})
    assert {"port": 16443, "protocol": "TCP"} in policy["spec"]["egress"][0]["ports"]
    extra = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-x"}}
    names = [each["metadata"]["name"] for each in of_kind("ConfigMap", {"extraObjects": [extra]})]
    assert "ropeteam-x" in names


def test_no_hook_no_webhook_no_certificate() -> None:
    text = json.dumps(render())
    assert '"kind": "Deployment"' in text
    assert "helm.sh/hook" not in text
    assert "WebhookConfiguration" not in text
    assert "Certificate" not in text


def test_the_operators_pod_is_restricted() -> None:
    spec = pod()
    assert spec["securityContext"]["runAsNonRoot"] is True
    for container in spec["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_an_operator_that_has_not_yet_listed_everything_is_not_ended() -> None:
    """Startup takes as long as the API server does, and would begin again each time."""
    container = pod()["containers"][0]
    ends = {container[kind]["httpGet"]["path"] for kind in ("startupProbe", "livenessProbe")}
    assert ends == {"/healthz"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
