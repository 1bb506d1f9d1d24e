"""The chart's values: one text is type, default, limit and comment.

python -m tools.values            write values.yaml, values.schema.json and the CRD into helm/ropeteam
python -m tools.values --check    say what differs from what would be written; exit status 1 if anything
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from tools import generated

from ropeteam.api.crd import FILE
from ropeteam.api.defaults import JobDefaults

CHART = Path(__file__).resolve().parent.parent / "helm" / "ropeteam"
HEADER = "# Made by `make chart` from tools/values.py. Do not edit.\n"
Name = Field(default="", max_length=253)


class Values(BaseModel):
    """Field docstrings become comments and descriptions."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", use_attribute_docstrings=True
    )


class Image(Values):
    """Our image: the operator and the coordinators of jobs. Worker pods run the image of their users."""

    registry: str = "ghcr.io"
    """Registry of the image; a mirror in an air-gapped cluster."""
    repository: str = "ropeteam/ropeteam"
    """Name in that registry."""
    tag: str = ""
    """Empty: the chart's appVersion."""
    digest: str = Field(default="", pattern="^(sha256:[0-9a-f]{64})?$")
    """sha256:... Wins over the tag."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When nodes pull it."""
    pull_secrets: list[dict[str, str]] = []
    """For the operator's own pods, as in a pod: [{name: my-secret}]. For jobs see jobDefaults."""


class OperatorKey(Values):
    """The key that tokens of all jobs are derived from. Another key locks out every running job, unless the
    previous one is listed beside it (docs/install.md)."""

    existing_secret: str = Name
    """A Secret with the entry `key`, at least 64 hexadecimal digits (openssl rand -hex 48), and `previous` if
    that was changed: the keys before it, one a line. Empty: the chart makes one and preserves it. Name one if
    you render the chart without a cluster (GitOps): each render would make another."""


class Crds(Values):
    """The definition of TrainingJob."""

    enabled: bool = True
    """Install and upgrade it with the chart."""
    keep: bool = True
    """Leave it, and all jobs with it, when the chart is uninstalled."""


class Enabled(Values):
    enabled: bool = True
    """Make it."""


class NetworkPolicy(Values):
    """Traffic allowed to and from the operator, and to the pods of jobs."""

    enabled: bool = True
    """Make them."""
    jobs: bool = True
    """One for each job, too, made by the operator: the job's pods are reached by each other on every port, by
    the operator, and by Prometheus. Policies of your own add to it, for example for a port of your script."""
    api_server_ports: list[int] = [443, 6443]
    """Ports behind which the API server answers."""
    metrics_from: list[dict[str, Any]] = []
    """Peers that may reach the operator's port 8080 and ports 29402 and 29403 of jobs, as `from` of a
    NetworkPolicy; for example your Prometheus. Empty: everyone. The kubelets' probes need no entry: a node
    always reaches its own pods."""


class Off(Values):
    enabled: bool = False
    """Make it."""


class Metrics(Values):
    """Monitors, rules and dashboards for Prometheus and Grafana. The first three are kinds of the Prometheus
    Operator, which must be installed."""

    labels: dict[str, str] = {}
    """Of the monitors and rules, so that your Prometheus selects them; often release: <name of its
    release>."""
    interval: str = Field(default="15s", pattern="^[0-9]+(ms|s|m)$")
    """How often the monitors scrape."""
    service_monitor: Off = Field(default=Off(), description="A ServiceMonitor of the operators.")
    pod_monitor: Off = Field(
        default=Off(), description="PodMonitors of the coordinators and of the agents of all jobs."
    )
    prometheus_rule: Off = Field(
        default=Off(),
        description="A PrometheusRule with the alerts of docs/metrics.md. Needs both kinds of monitors.",
    )
    dashboards: Off = Field(
        default=Off(),
        description="ConfigMaps with two dashboards, found by Grafana's sidecar by the label"
        ' grafana_dashboard: "1".',
    )


class Rbac(Values):
    """Rights of the operator, and roles for people."""

    create: bool = True
    """Make them: a ClusterRole, or a Role in each of `namespaces`. Roles for people come with the definition,
    or where the operator has a ClusterRole."""


class Nodes(Values):
    """Assumptions about nodes."""

    deletion_proves_end: bool = False
    """A Node object is deleted only when its machine runs nothing any more, as cloud controllers do. Then a
    coordinator that was on it counts as ended; else a person, or the taint node.kubernetes.io/out-of-service,
    has to confirm it, for jobs whose scripts write their own checkpoints."""


class ServiceAccount(Values):
    """The operator's account at the API server."""

    create: bool = True
    """Make it."""
    name: str = Name
    """Empty: the release's name."""
    annotations: dict[str, str] = {}
    """Of the service account."""


class ChartValues(Values):
    """All values of the chart."""

    image: Image = Image()
    replicas: int = Field(default=2, ge=1, le=5)
    """Operators. One is the leader, the others are standby and take over within leaseSeconds."""
    namespaces: list[str] = []
    """Look after these namespaces only, with rights in these only. Empty: all. Without cluster-wide rights
    lost nodes are not seen; they are noticed by the silence of their agents."""
    operator_key: OperatorKey = OperatorKey()
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """How much the operator logs."""
    max_concurrent_reconciles: int = Field(default=32, ge=1, le=1000)
    """Jobs reconciled at the same time."""
    lease_seconds: int = Field(default=15, ge=3, le=300)
    """Another operator takes over after this silence of the one that acts."""
    job_defaults: JobDefaults = JobDefaults()
    crds: Crds = Crds()
    nodes: Nodes = Nodes()
    rbac: Rbac = Rbac()
    service_account: ServiceAccount = ServiceAccount()
    admission_policy: Enabled = Field(
        default=Enabled(),
        description="Refuse TrainingJobs of people who may not create pods in their namespace: the operator"
        " would make them for them.",
    )
    network_policy: NetworkPolicy = NetworkPolicy()
    pod_disruption_budget: Enabled = Field(
        default=Enabled(), description="Keep one operator while nodes are drained; with two replicas or more."
    )
    metrics: Metrics = Metrics()
    resources: dict[str, Any] = {
        "requests": {"cpu": "100m", "memory": "128Mi"},
        "limits": {"memory": "512Mi"},
    }
    """Of the operator. 1,000 jobs need some 250 MiB."""
    priority_class_name: str = Name
    """Of the operator, for example system-cluster-critical."""
    node_selector: dict[str, str] = {}
    """Of the operator."""
    tolerations: list[dict[str, Any]] = []
    """Of the operator."""
    affinity: dict[str, Any] = {}
    """Of the operator. Its replicas are spread over nodes in any case, where that is possible."""
    pod_labels: dict[str, str] = {}
    """Of the operator's pods."""
    pod_annotations: dict[str, str] = {}
    """Of the operator's pods."""
    extra_objects: list[dict[str, Any]] = []
    """More objects to install with the chart. Template expressions in them are rendered."""


def schema() -> dict[str, Any]:
    """values.schema.json. Helm adds `global` to every chart's values."""
    made = ChartValues.model_json_schema(by_alias=True)
    made["properties"]["global"] = {"type": "object", "description": "Helm's own: of a parent chart."}
    return {"$schema": "http://json-schema.org/draft-07/schema#", **made}


def values() -> str:
    """values.yaml, with a comment on each value."""
    return HEADER + "\n".join(_lines(ChartValues(), "")) + "\n"


def _lines(section: BaseModel, indent: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        text = field.description or type(value).__doc__ or ""
        yield from (f"{indent}# {line}" for line in textwrap.wrap(" ".join(text.split()), 108 - len(indent)))
        key = f"{indent}{to_camel(name)}:"
        if isinstance(value, BaseModel):
            yield key
            yield from _lines(value, indent + "  ")
        elif value and isinstance(value, dict):
            yield key
            yield textwrap.indent(yaml.safe_dump(value, sort_keys=False).rstrip(), indent + "  ")
        else:
            yield f"{key} {json.dumps(value)}"


def files() -> dict[Path, str]:
    crd = CHART.parent.parent / FILE
    return {
        CHART / "values.yaml": values(),
        CHART / "values.schema.json": json.dumps(schema(), indent=2) + "\n",
        CHART / "files" / "trainingjobs.yaml": crd.read_text(),
    }


if __name__ == "__main__":
    sys.exit(generated.main(files(), "tools/values.py", sys.argv[1:]))
