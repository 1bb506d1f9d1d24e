"""A real Prometheus for tests, configured with our targets as the chart's monitors configure the user's.

The program is built once by `python -m lab.kube.programs prometheus promtool` (Go; 6 minutes), or taken
from PATH; without it the tests that need it are skipped, and say so.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from lab.kube import programs
from lab.waiting import NotYet, wait_until
from tools.panels import DASHBOARDS

Object = dict[str, Any]
META = "__meta_kubernetes_"


def program(name: str) -> Path:
    """Skips the test if there is none."""
    built = programs.folder() / name
    found = str(built) if built.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"NO {name.upper()} HERE: python -m lab.kube.programs prometheus promtool builds it")
    return Path(found)


class Endpoint(NamedTuple):
    """One kind of pod, as its PodMonitor describes it."""

    port: str
    number: int
    keep: str
    """Names of metrics."""


ENDPOINTS = {
    "coordinator": Endpoint("http", 29402, "(ropeteam_job|process)_.*"),
    "worker": Endpoint("metrics", 29403, "ropeteam_(agent|rank)_.*"),
    "server": Endpoint("metrics", 29403, "ropeteam_(agent|rank)_.*"),
}


def scrape(role: str, discovery: Object, seconds: float = 1.0) -> Object:
    """The scrape of all pods of a role: what the Prometheus Operator makes of the chart's PodMonitor."""
    endpoint = ENDPOINTS[role]
    return {
        "job_name": role,
        "scrape_interval": f"{seconds:g}s",
        "scrape_timeout": f"{seconds:g}s",
        "sample_limit": 2000,
        "relabel_configs": [
            {"source_labels": [f"{META}pod_label_ropeteam_dev_role"], "action": "keep", "regex": role},
            {"source_labels": [f"{META}pod_container_port_name"], "action": "keep", "regex": endpoint.port},
            {
                "source_labels": [f"{META}pod_container_port_number"],
                "action": "keep",
                "regex": str(endpoint.number),
            },
            {"source_labels": [f"{META}namespace"], "target_label": "namespace"},
            {"source_labels": [f"{META}pod_label_ropeteam_dev_job"], "target_label": "job_name"},
        ],
        "metric_relabel_configs": [
            {"source_labels": ["__name__"], "action": "keep", "regex": endpoint.keep},
            {"action": "labeldrop", "regex": "exported_(job|job_name|namespace)"},
        ],
        **discovery,
    }


class Prometheus:
    """A process of its own, with its data in `folder`. `scrapes`: its scrape_configs."""

    def __init__(self, folder: Path, scrapes: list[Object]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config, self._log = folder / "prometheus.yaml", folder / "prometheus.log"
        config.write_text(yaml.safe_dump({"scrape_configs": scrapes}))
        argv = (
            program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
            "--web.listen-address=127.0.0.1:0", "--log.format=json",
        )  # fmt: skip
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder)
        self.address = wait_until("Prometheus", self._listening)

    def _listening(self) -> str | None:
        assert self._process.poll() is None, self._log.read_text()
        found = re.search(r'"msg":"Listening on","[^}]*"address":"([^"]+)"', self._log.read_text())
        return found[1] if found else None

    def get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{query}", timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from None

    def query(self, expression: str) -> dict[str, float]:
        """Values by their labels, as text."""
        result = self.get("query", query=expression)["result"]
        return {json.dumps(each["metric"], sort_keys=True): float(each["value"][1]) for each in result}

    def targets(self) -> dict[str, str]:
        """URL -> what is wrong with it; empty: it was scraped."""
        active = self.get("targets", state="active")["activeTargets"]
        return {a["scrapeUrl"]: "" if a["health"] == "up" else str(a["lastError"]) for a in active}

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def queries() -> dict[str, str]:
    """Every query of every panel, by where it is, with Grafana's variables filled in."""
    filled = {"$__rate_interval": "1m", '"$namespace"': '".+"', '"$job"': '".+"'}
    found = {}
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            for legend, query in panel.queries.items():
                for variable, value in filled.items():
                    query = query.replace(variable, value)
                found[f"{dashboard.name} / {panel.title} / {legend}"] = query
    return found


def without_data(prometheus: Prometheus) -> dict[str, str]:
    """The queries that return nothing, or nothing but NaN."""
    return {
        place: query
        for place, query in queries().items()
        if not any(not math.isnan(value) for value in prometheus.query(query).values())
    }


def wait_for_data(prometheus: Prometheus) -> None:
    """Until no query of a panel is without data; says which are."""

    def all_have_some() -> bool:
        time.sleep(0.5)  # each look is some fifty queries
        return not without_data(prometheus)

    try:
        wait_until("data in every panel", all_have_some)
    except NotYet as error:
        raise NotYet(f"{error}; nothing from {json.dumps(without_data(prometheus), indent=1)}") from None
