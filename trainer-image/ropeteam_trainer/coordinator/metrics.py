"""GET /metrics: one job's state as Prometheus text, made from the JobReport.

Labels: the job's namespace and name (one target per job, gone with it) and closed sets. Anyone may read them
(docs/decisions/0006), so they expose nothing confidential: no token, path, message, node.
Limits: no history here. An unknown value has no series, rather than a 0 that would draw a wrong line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from ropeteam_trainer.contract.config import CoordinatorConfig
from ropeteam_trainer.contract.desired import JobReport, WorldPhase
from ropeteam_trainer.contract.featurelevel import FeatureLevel
from ropeteam_trainer.contract.world import Cause


class _JobCollector(Collector):
    """Collector of one report, made for one rendering."""

    def __init__(self, report: JobReport, config: CoordinatorConfig) -> None:
        self._report, self._labels = report, {"namespace": config.namespace, "job_name": config.job}
        self._workers, self._may_save = config.slots, config.checkpoint

    def collect(self) -> Iterable[Metric]:
        """The metric families, as prometheus_client requests from a Collector."""
        report = self._report
        registered = sum(slot.registered for slot in report.slots.values())
        progress = report.progress
        yield self._gauge("step", "Last step that rank 0 reported.", progress.step)
        if progress.total_steps is not None:
            yield self._gauge("total_steps", "Steps of the whole training.", progress.total_steps)
        yield self._gauge("samples_per_second", "Samples/s of the whole job.", progress.samples_per_second)
        if (loss := _parsed_number(progress.loss)) is not None:
            yield self._gauge("loss", "Last loss that rank 0 reported.", loss)
        yield self._gauge(
            "worlds",
            "Worlds (starts of all ranks together) since the start of the coordinator's container.",
            report.world_id.n if report.world_id else 0,
        )
        yield self._gauge("world_size", "Ranks of the running world; 0: none.", report.world_size)
        yield self._gauge_by_label(
            "process_group_ranks",
            "Ranks known to have formed default process groups of this size in the current world.",
            [(str(size), ranks) for size, ranks in _ranks_by_size(report).items()],
            "size",
        )
        yield self._gauge("slots", "Workers and parameter servers of the job.", self._workers)
        yield self._gauge("registered_slots", "Slots whose agent is registered and has a lease.", registered)
        yield self._gauge(
            "coordinator_lag_seconds",
            "Maximum recent lag of the coordinator's event loop; 0: it keeps up.",
            report.lag_seconds,
        )
        yield from self._checkpoint()
        yield self._gauge_by_label(
            "phase",
            "1 for the current phase, 0 for the others.",
            [(p.value, p is report.phase) for p in WorldPhase],
        )
        causes = Counter(incident.cause for incident in report.incidents)
        yield self._gauge_by_label(
            "recent_incidents",
            "Of the last 10 incidents, those of this cause.",
            [(c.value, causes[c]) for c in Cause],
            "cause",
        )

    def _checkpoint(self) -> Iterator[Metric]:
        """Metrics of checkpoints. `checkpoint_enabled` is for alerts: where it is 0, none is missing."""
        report = self._report
        wanted = self._may_save and report.feature_level >= FeatureLevel.CHECKPOINTS
        yield self._gauge("checkpoint_enabled", "1 if spec.checkpoint is set and the script saves.", wanted)
        if report.lineage:
            yield self._gauge(
                "checkpoint_step", "Step of the newest committed checkpoint.", report.lineage[0].step
            )
        if report.checkpoint_unix_ms:  # unknown after a restart
            committed = report.checkpoint_unix_ms / 1000
            yield self._gauge(
                "checkpoint_timestamp_seconds",
                "Unix time of the newest commit, if by this boot of the coordinator.",
                committed,
            )

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        """The family of one gauge, `ropeteam_job_<name>`, with one series. `text`: its help."""
        family = GaugeMetricFamily(f"ropeteam_job_{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _gauge_by_label(
        self, name: str, text: str, values: list[tuple[str, float]], label: str = "phase"
    ) -> Metric:
        """A family with one series for each (value of `label`, value of the gauge)."""
        family = GaugeMetricFamily(f"ropeteam_job_{name}", text, labels=[*self._labels, label])
        for member, value in values:
            family.add_metric([*self._labels.values(), member], value)
        return family


def _ranks_by_size(report: JobReport) -> dict[int, int]:
    """Ranks in default process groups, by the size of the group."""
    found: Counter[int] = Counter()
    for group in report.process_groups:
        found[group.size] += group.members
    return found


def _parsed_number(text: str) -> float | None:
    """The number that a script reported as text, NaN and infinity included; None: it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def render(report: JobReport, config: CoordinatorConfig) -> tuple[bytes, str]:
    """The Prometheus text of the job and of this process (CPU, memory), and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_JobCollector(report, config))
    ProcessCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE_LATEST
