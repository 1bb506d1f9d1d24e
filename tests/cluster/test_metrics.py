"""A real Prometheus finds operators, coordinators and agents in a real cluster, and forgets a deleted job."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.kube.site import Site
from lab.waiting import wait_until
from tests.cluster.test_core import served_job, step, tiny
from tests.metrics.prometheus import ENDPOINTS, META, Object, Prometheus, scrape, wait_for_data

pytestmark = pytest.mark.nodes

WORKERS = 2


def discovery(site: Site, role: str, **more: object) -> Object:
    config = {"role": role, "kubeconfig_file": str(site.lab.control.kubeconfig), **more}
    return {"kubernetes_sd_configs": [config]}


@pytest.fixture
def prometheus(site: Site, tmp_path: Path) -> Iterator[Prometheus]:
    keep = {
        f"{META}service_label_app_kubernetes_io_component": "operator",
        f"{META}endpointslice_port_name": "http",
    }
    operators = {
        "job_name": "operator",
        "scrape_interval": "1s",
        "scrape_timeout": "1s",
        "relabel_configs": [
            {"source_labels": [label], "action": "keep", "regex": value} for label, value in keep.items()
        ],
        **discovery(site, "endpointslice"),
    }
    pods = discovery(site, "pod")
    running = Prometheus(tmp_path, [operators, *(scrape(role, pods) for role in ENDPOINTS)])
    yield running
    running.stop()


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


@pytest.mark.timeout(900)
def test_prometheus_sees_a_job_while_it_lives(site: Site, name: str, prometheus: Prometheus) -> None:
    site.apply(tiny(site, name, steps=1_000_000))
    served = f"{name}-served"
    site.apply(served_job(site, served))
    site.wait(name, "Running")
    site.wait(served, "Running")
    wait_until("a checkpoint", lambda: step(site, name) > 0)

    def all_up() -> bool:
        targets = prometheus.targets()
        pods = [site.pods(job, role) for job in (name, served) for role in ENDPOINTS]
        assert sum(map(len, pods)) == 2 * (1 + WORKERS) + 1
        return len(targets) == len(site.operators()) + sum(map(len, pods)) and not any(targets.values())

    wait_until("every target scraped", all_up)
    signals = 'sum(ropeteam_incidents_total{cause="Signal"})'
    before = sum(prometheus.query(signals).values())
    os.kill(site.rank(name, 1), 9)
    wait_until("the incident counted", lambda: sum(prometheus.query(signals).values()) > before)
    wait_for_data(prometheus)
    site.delete(served)

    selector = f'{{namespace="default", job_name="{name}"}}'
    assert prometheus.query(f"ropeteam_job_step{selector}")
    site.delete(name)
    operators = [url for url in prometheus.targets() if ":8080/" in url]
    assert operators
    assert all(name not in read(url) for url in operators), "not a moment longer"
    wait_until("Prometheus to forget", lambda: not prometheus.query(selector), 300)
