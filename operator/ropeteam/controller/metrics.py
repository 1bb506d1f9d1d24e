"""What the operator tells Prometheus. Queue and reconcile metrics bear controller-runtime's names, so that
dashboards fit.

Labels are closed sets; no job's name is ever one. Limits: nothing is kept over a restart, as usual for
counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ropeteam.api.status import IncidentStatus, JobStatus

REGISTRY = CollectorRegistry()
_QUEUE = {"name": "trainingjob"}
_FAST = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)
_RECOVERY = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)


def _queue_counter(name: str, text: str) -> Counter:
    return Counter(name, text, ["name"], registry=REGISTRY).labels(**_QUEUE)


QUEUE_ADDS = _queue_counter(
    "workqueue_adds_total", "Keys added; a key that was queued already is not counted."
)
QUEUE_RETRIES = _queue_counter("workqueue_retries_total", "Keys added again after a failed round.")
QUEUE_DEPTH = Gauge("workqueue_depth", "Keys that are due.", ["name"], registry=REGISTRY).labels(**_QUEUE)
QUEUE_WAIT = Histogram(
    "workqueue_queue_duration_seconds", "From add to get.", ["name"], buckets=_FAST, registry=REGISTRY
).labels(**_QUEUE)
QUEUE_WORK = Histogram(
    "workqueue_work_duration_seconds", "From get to done.", ["name"], buckets=_FAST, registry=REGISTRY
).labels(**_QUEUE)
RECONCILES = Counter(
    "controller_runtime_reconcile_total",
    "Rounds that ended well, by what follows.",
    ["controller", "result"],
    registry=REGISTRY,
)
RECONCILE_ERRORS = Counter(
    "controller_runtime_reconcile_errors_total",
    "Rounds that failed.",
    ["controller"],
    registry=REGISTRY,
).labels(controller="trainingjob")
RECONCILE_SECONDS = Histogram(
    "controller_runtime_reconcile_time_seconds",
    "Time of a round.",
    ["controller"],
    buckets=_FAST,
    registry=REGISTRY,
).labels(controller="trainingjob")
INCIDENTS = Counter(
    "ropeteam_incidents_total",
    "Incidents, by cause. Counted once, when the cause has settled and is saved.",
    ["cause"],
    registry=REGISTRY,
)
RECOVERY = Histogram(
    "ropeteam_recovery_seconds",
    "From the fault to each stage of the recovery. Counted with the incident.",
    ["cause", "stage"],
    buckets=_RECOVERY,
    registry=REGISTRY,
)
STEPS_LOST = Counter(
    "ropeteam_steps_lost_total",
    "Steps that had to be repeated. Counted with the incident.",
    ["cause"],
    registry=REGISTRY,
)


LEADER = Gauge("ropeteam_leader", "1 while this operator holds the lease.", registry=REGISTRY)


def count_settled(before: JobStatus, after: JobStatus) -> None:
    """Count the incidents that `after`, which has just been saved, settles."""
    known = {incident.id for incident in before.incidents if incident.settled}
    for incident in after.incidents:
        if incident.settled and incident.id not in known:
            _count(incident)


def _count(incident: IncidentStatus) -> None:
    INCIDENTS.labels(cause=incident.cause).inc()
    STEPS_LOST.labels(cause=incident.cause).inc(incident.steps_lost or 0)
    for stage, milliseconds in incident.stages:
        if milliseconds is not None:
            RECOVERY.labels(cause=incident.cause, stage=stage).observe(milliseconds / 1000)


class JobsByState(Collector):
    """`ropeteam_jobs{state}`, counted when asked."""

    def __init__(self, states: Callable[[], Iterable[str]]) -> None:
        self._states = states

    def collect(self) -> Iterator[GaugeMetricFamily]:
        counts: dict[str, int] = {}
        for state in self._states():
            counts[state] = counts.get(state, 0) + 1
        family = GaugeMetricFamily("ropeteam_jobs", "TrainingJobs, by state.", labels=["state"])
        for state, count in sorted(counts.items()):
            family.add_metric([state], count)
        yield family
