"""Defaults of an installation for the pods of all jobs: the chart's values `jobDefaults` have this shape."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ropeteam.api.model import ApiModel

NO_PROXIES = {"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}


class JobDefaults(ApiModel):
    """For the pods of every job, where the job itself sets nothing else."""

    env: tuple[dict[str, Any], ...] = ()
    """Environment of the container that trains, as in a pod: NCCL settings, proxies. A job's own variable of
    the same name wins."""
    tolerations: tuple[dict[str, Any], ...] = ()
    """Tolerations, as in a pod, added to those of the job. Coordinators get them too."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Node labels that pods need. A job's own value for the same label wins."""
    image_pull_secrets: tuple[str, ...] = ()
    """Names of Secrets in the job's namespace, added to those of the job: for our image and for theirs."""
    priority_class_name: str = ""
    """Priority class of worker pods that name none."""
    coordinator_resources: dict[str, Any] = Field(default_factory=dict)
    """`requests` and `limits` of coordinators, as in a container; each replaces ours, which grow with the
    job. Our limit of memory is 256Mi and 128Ki for each of its pods."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of all pods. A job's own, and ours, win."""
    annotations: dict[str, str] = Field(default_factory=lambda: dict(NO_PROXIES))
    """Annotations of all pods; a job's own win. Proxies are kept out by default: they would stand between
    ranks."""


class JobPolicy(ApiModel):
    """Peers that may reach the pods of a job, beside its own: as in `from` of a NetworkPolicy."""

    operator_from: tuple[dict[str, Any], ...] = Field(min_length=1)
    """Our operators. Not empty: that would be everybody."""
    metrics_from: tuple[dict[str, Any], ...] = ()
    """Prometheus. Empty: everybody, on the ports of metrics."""


class Defaults(ApiModel):
    """The part of the operator's settings that decisions depend on."""

    operator_image: str = "ropeteam:latest"
    """Image of coordinators."""
    agent_secret: str = "ropeteam-agent"
    """Secret with our agent, which worker pods mount."""
    image_pull_policy: str = ""
    """Of that image. Empty: the API server decides."""
    jobs: JobDefaults = JobDefaults()
    policy: JobPolicy | None = None
    """None: jobs get no NetworkPolicy."""
