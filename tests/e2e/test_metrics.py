"""A real Prometheus looks at a job that loses a rank: every panel of every dashboard shows something."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.local.cluster import Cluster
from lab.waiting import wait_until
from tests.e2e.test_strategy import recipe
from tests.e2e.test_training import tiny, wait_step
from tests.metrics.prometheus import ENDPOINTS, META, Prometheus, scrape, wait_for_data

WORKERS = 2
SERVED = {"sync": {"type": "ParameterServer", "parameterServer": {"mode": "Asynchronous"}}}


def discovered(pod: dict[str, Any], port: int) -> dict[str, Any]:
    """Labels that Prometheus' discovery gives to a port of this pod."""
    ports = [each for c in pod["spec"]["containers"] for each in c.get("ports", ())]
    (declared,) = [each for each in ports if each["containerPort"] == port]
    labels = {"namespace": "default", "pod_container_port_name": declared["name"]}
    labels |= {"pod_container_port_number": str(port)}
    for key in ("job", "role"):
        labels[f"pod_label_ropeteam_dev_{key}"] = pod["metadata"]["labels"][f"ropeteam.dev/{key}"]
    address = f"{pod['status']['podIP']}:{port}"
    return {"targets": [address], "labels": {META + key: value for key, value in labels.items()}}


def discovery(file: Path, targets: list[dict[str, Any]]) -> dict[str, Any]:
    """Prometheus sees at once what is put into the file later."""
    draft = file.with_suffix(".new")
    draft.write_text(json.dumps(targets))
    draft.rename(file)
    return {"file_sd_configs": [{"files": [str(file)]}]}


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    """Prometheus; `scrape_all` sets its targets."""
    operator = {"job_name": "operator", "scrape_interval": "1s", "scrape_timeout": "1s"}
    pods = discovery(tmp_path / "pods.json", [])
    scrapes = [operator | discovery(tmp_path / "operator.json", [])]
    running = Prometheus(tmp_path / "prometheus", scrapes + [scrape(role, pods) for role in ENDPOINTS])
    yield running
    running.stop()


def operator_address(cluster: Cluster) -> str:
    return (cluster.home / "operator.address").read_text().strip()


def scrape_all(cluster: Cluster, names: list[str], prometheus: Prometheus, folder: Path) -> None:
    """Add the operator and the jobs' pods to Prometheus' targets, and wait until it has read each target."""
    pods = [(role, pod) for name in names for role in ENDPOINTS for pod in cluster.pods(name, role)]
    found = [discovered(pod, ENDPOINTS[role].number) for role, pod in pods]
    assert {role for role, _ in pods} == ENDPOINTS.keys()
    discovery(folder / "operator.json", [{"targets": [operator_address(cluster)]}])
    discovery(folder / "pods.json", found)

    def all_up() -> bool:
        targets = prometheus.targets()
        return len(targets) == len(found) + 1 and not any(targets.values())

    wait_until("every target scraped", all_up)


@pytest.mark.timeout(400)
def test_every_panel_shows_something(cluster: Cluster, name: str, prometheus: Prometheus, tmp_path: Path):
    cluster.create(tiny(name, tmp_path, "1000000", "0.05", workers=WORKERS))
    served = recipe(f"{name}-served", tmp_path / "served", SERVED)
    served["spec"]["command"] += ["--epochs", "1000000"]
    cluster.create(served)
    wait_step(tmp_path, 15)
    wait_step(tmp_path / "served", 15)
    scrape_all(cluster, [name, f"{name}-served"], prometheus, tmp_path)
    before = sum(prometheus.query('ropeteam_incidents_total{cause="Signal"}').values())
    os.kill(cluster.wait_rank(name, 1), signal.SIGKILL)
    wait_step(tmp_path, 40, world_number=2)

    def counted() -> bool:
        return sum(prometheus.query('ropeteam_incidents_total{cause="Signal"}').values()) > before

    wait_until("the incident is counted", counted)
    wait_for_data(prometheus)
    (labels,) = wait_until(
        "its step", lambda: prometheus.query(f'ropeteam_job_step{{job_name="{name}"}} > 40')
    )
    assert json.loads(labels).keys() == {"__name__", "instance", "job", "job_name", "namespace"}
    starts = f'ropeteam_rank_starts_total{{namespace="default", job_name="{name}"}}'
    # A scrape that takes longer than its second, on a busy machine, hides a worker until the next one.
    wait_until("two starts", lambda: list(prometheus.query(starts).values()) == [2.0] * WORKERS)
    with urllib.request.urlopen(f"http://{operator_address(cluster)}/metrics", timeout=30) as answer:
        assert name not in answer.read().decode(), "the operator tells nothing of a single job"
