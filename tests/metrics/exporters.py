"""Output of our three exporters, made by their own code with everything in it that they may have."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lab.coordinator.reports import config
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.agent.life import Life

from ropeteam.controller import metrics as operator
from ropeteam_trainer.agent.machine import metrics as agent
from ropeteam_trainer.contract.desired import JobReport, WorldPhase
from ropeteam_trainer.contract.local import Served
from ropeteam_trainer.contract.messages import ProcessGroup, Progress
from ropeteam_trainer.contract.world import CheckpointRef, WorldId
from ropeteam_trainer.coordinator.metrics import render


@dataclass(frozen=True)
class Family:
    name: str
    kind: str
    labels: frozenset[str]

    @property
    def series(self) -> frozenset[str]:
        """Names that a query may use."""
        suffixes = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
        return frozenset(self.name + suffix for suffix in suffixes.get(self.kind, ("",)))


def texts() -> dict[str, str]:
    """By exporter."""
    per_scrape = CollectorRegistry()
    per_scrape.register(
        operator.ScrapeCollector(lambda: [("Running", False)], lambda: [1.0], lambda: {"Pod": 1.0})
    )
    operator.count_request("GET", 200)
    report = JobReport(
        "u", 1, 0, WorldPhase.RUNNING, "why", feature_level=2, lineage=(CheckpointRef(1, WorldId(1, 0, 1)),),
        checkpoint_unix_ms=1, progress=Progress(loss="1", total_steps=9),
        process_groups=(ProcessGroup(2, 2, (0, 1), "train.py"),),
    )  # fmt: skip
    life = Life().running().heartbeats(0, 1).rank_sends(0, served=Served(applied=2, staleness=1, dropped=1))
    return {
        "operator": (generate_latest(operator.REGISTRY) + generate_latest(per_scrape)).decode(),
        "coordinator": render(report, config())[0].decode(),
        "agent": agent.render(life.state, agent.updated_counts({}, life.state), 0.0),
    }


def families(text: str) -> dict[str, Family]:
    """By name, as in the text."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    found = {}
    for each in text_string_to_metric_families(text):
        name = each.name if each.name in kinds else f"{each.name}_total"
        assert each.samples, f"{name} has no sample: its labels cannot be seen"
        labels = frozenset(label for sample in each.samples for label in sample.labels)
        found[name] = Family(name, kinds[name], labels - {"le"})
    assert found.keys() == kinds.keys()
    return found


def all_families() -> dict[str, dict[str, Family]]:
    """By exporter."""
    return {exporter: families(text) for exporter, text in texts().items()}
