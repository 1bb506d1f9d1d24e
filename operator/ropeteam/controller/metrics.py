"""Metrics of the operator for Prometheus. Queue, reconcile and API metrics bear the names and labels of
controller-runtime and client-go, so that dashboards and alerts made for those fit.

Labels are closed sets, all there from the start (a counter that appears with its first event hides that event
from `rate`); no job's name is ever one, so a deleted job leaves nothing behind. A standby operator exports
the number of jobs as well: take the maximum, not the sum.
Limits: nothing is kept over a restart, as usual for counters.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ropeteam.api.status import IncidentStatus, JobStatus, RecoveryTimesStatus
from ropeteam_trainer.contract.world import Cause

disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
STATES = (
    "Pending",
    "Starting",
    "Running",
    "Recovering",
    "Restarting",
    "Suspending",
    "Suspended",
    "Complete",
    "Failed",
    "Invalid",
)
"""States of TrainingJobs; each has a series from the start."""
_CONTROLLER = {"controller": "trainingjob"}
_QUEUE = {"name": "trainingjob", **_CONTROLLER}
_RESULTS = ("success", "requeue", "requeue_after", "error")
"""Results of a reconcile in controller-runtime."""
_RECONCILE_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)
_RECOVERY_BUCKETS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)


def _queue_counter(name: str, text: str) -> Counter:
    """A counter of the work queue, registered, with the queue's labels."""
    return Counter(name, text, list(_QUEUE), registry=REGISTRY).labels(**_QUEUE)


def _queue_seconds_histogram(name: str, text: str) -> Histogram:
    """A histogram of the work queue, in seconds, registered, with the queue's labels."""
    return Histogram(name, text, list(_QUEUE), buckets=_RECONCILE_BUCKETS, registry=REGISTRY).labels(**_QUEUE)


QUEUE_ADDS = _queue_counter(
    "workqueue_adds_total", "Keys added; keys that were queued already are not counted."
)
QUEUE_RETRIES = _queue_counter("workqueue_retries_total", "Keys added again after a failed reconcile.")
QUEUE_DEPTH = Gauge(
    "workqueue_depth", "Jobs in the queue, to be reconciled.", list(_QUEUE), registry=REGISTRY
).labels(**_QUEUE)
QUEUE_WAIT = _queue_seconds_histogram(
    "workqueue_queue_duration_seconds", "Seconds that a key waits in the queue."
)
QUEUE_WORK = _queue_seconds_histogram(
    "workqueue_work_duration_seconds", "Seconds that processing a key takes."
)
RECONCILES = Counter(
    "controller_runtime_reconcile_total",
    "Reconciles, by result.",
    ["controller", "result"],
    registry=REGISTRY,
)
RECONCILE_ERRORS = Counter(
    "controller_runtime_reconcile_errors_total", "Failed reconciles.", list(_CONTROLLER), registry=REGISTRY
).labels(**_CONTROLLER)
RECONCILE_SECONDS = Histogram(
    "controller_runtime_reconcile_time_seconds",
    "Duration of a reconcile, including failed ones.",
    list(_CONTROLLER),
    buckets=_RECONCILE_BUCKETS,
    registry=REGISTRY,
).labels(**_CONTROLLER)
MAX_CONCURRENT_RECONCILES = Gauge(
    "controller_runtime_max_concurrent_reconciles",
    "Maximum number of concurrent reconciles.",
    list(_CONTROLLER),
    registry=REGISTRY,
).labels(**_CONTROLLER)
REQUESTS = Counter(
    "rest_client_requests_total",
    "Responses of the API server, by method and status; a watch counts once.",
    ["code", "method"],
    registry=REGISTRY,
)
INCIDENTS = Counter(
    "ropeteam_incidents_total",
    "Incidents, by cause. Counted once, when the cause is final and saved.",
    ["cause"],
    registry=REGISTRY,
)
RECOVERY = Histogram(
    "ropeteam_recovery_seconds",
    "Seconds from the fault until all ranks have stopped, and the next world is planned, started, and has "
    "made a step (label stage). Observed once, when the incident is final.",
    ["stage"],
    buckets=_RECOVERY_BUCKETS,
    registry=REGISTRY,
)
STEPS_LOST = Counter(
    "ropeteam_steps_lost_total",
    "Steps that were repeated, by cause. Counted with the incident.",
    ["cause"],
    registry=REGISTRY,
)
UNREADABLE = Counter(
    "ropeteam_unreadable_objects_total",
    "Objects that were skipped because their content cannot be read; counted on each occurrence.",
    ["kind"],
    registry=REGISTRY,
)
MISSED_CHANGES = Counter(
    "ropeteam_cache_missed_changes_total",
    "Changes of jobs that kopf's watch had and the cache did not have 10 s later; jobs were listed again.",
    registry=REGISTRY,
)
LEADER = Gauge("ropeteam_leader", "1: this operator is the leader; 0: it is on standby.", registry=REGISTRY)
BUILD = Gauge("ropeteam_build_info", "1, with the version of the operator.", ["version"], registry=REGISTRY)


def _create_series() -> None:
    """Create the series of all labels, at 0, and set the one of this build to 1."""
    for cause in Cause:
        INCIDENTS.labels(cause=cause.value)
        STEPS_LOST.labels(cause=cause.value)
    for stage in RecoveryTimesStatus.model_fields:
        RECOVERY.labels(stage=stage)
    for kind in ("TrainingJob", "Pod", "Service", "Node"):
        UNREADABLE.labels(kind=kind)
    for result in _RESULTS:
        RECONCILES.labels(result=result, **_CONTROLLER)
    try:
        BUILD.labels(version=version("ropeteam")).set(1)
    except PackageNotFoundError:  # run from its sources
        BUILD.labels(version="unknown").set(1)


_create_series()


def count_reconcile(result: str, seconds: float) -> None:
    """Count a reconcile. `result`: one of `_RESULTS`. The counter of errors is the work queue's."""
    RECONCILES.labels(result=result, **_CONTROLLER).inc()
    RECONCILE_SECONDS.observe(seconds)


def count_request(method: str, status: int) -> None:
    """Count an answer of the API server."""
    REQUESTS.labels(code=str(status), method=method).inc()


def count_final_incidents(before: JobStatus, after: JobStatus) -> None:
    """Count the incidents that `after`, which has just been saved, makes final."""
    known = {incident.id for incident in before.incidents if incident.final}
    for incident in after.incidents:
        if incident.final and incident.id not in known:
            _count_incident(incident)


def _count_incident(incident: IncidentStatus) -> None:
    """Count one incident, its lost steps and its stages, with those that it never reached left out."""
    INCIDENTS.labels(cause=incident.cause).inc()
    STEPS_LOST.labels(cause=incident.cause).inc(incident.steps_lost or 0)
    for stage, milliseconds in incident.recovery_milliseconds:
        if milliseconds is not None:
            RECOVERY.labels(stage=stage).observe(milliseconds / 1000)


class ScrapeCollector(Collector):
    """Metrics computed at each scrape. `jobs`: state of each job, and whether it is stalled;
    `running_seconds`: since the start of each running reconcile; `cache_ages`: seconds without data from the
    API server, by kind."""

    def __init__(
        self,
        jobs: Callable[[], Iterable[tuple[str, bool]]],
        running_seconds: Callable[[], Iterable[float]],
        cache_ages: Callable[[], dict[str, float]],
    ) -> None:
        self._jobs, self._running_seconds, self._cache_ages = jobs, running_seconds, cache_ages

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The families: jobs by state, stalled jobs, ages of the caches, running reconciles."""
        jobs = list(self._jobs())
        counts = Tally(state for state, _ in jobs)
        family = GaugeMetricFamily("ropeteam_jobs", "TrainingJobs, by state.", labels=["state"])
        for state in (*STATES, *sorted(counts.keys() - set(STATES))):
            family.add_metric([state], counts[state])
        yield family
        stalled = sum(is_stalled for _, is_stalled in jobs)
        yield GaugeMetricFamily("ropeteam_jobs_stalled", "TrainingJobs with condition Stalled=True.", stalled)
        age = GaugeMetricFamily(
            "ropeteam_cache_age_seconds",
            "Seconds since the last list, or the last message of a watch: later changes may be unknown.",
            labels=["kind"],
        )
        for kind, seconds in self._cache_ages().items():
            age.add_metric([kind], seconds)
        yield age
        running_seconds = list(self._running_seconds())
        running = "controller_runtime_active_workers"
        yield _gauge_family(running, "Running reconciles.", _CONTROLLER, len(running_seconds))
        unfinished = "workqueue_unfinished_work_seconds"
        yield _gauge_family(unfinished, "Seconds of all running reconciles.", _QUEUE, sum(running_seconds))
        longest = "workqueue_longest_running_processor_seconds"
        yield _gauge_family(
            longest, "Seconds of the longest running reconcile.", _QUEUE, max(running_seconds, default=0.0)
        )


def _gauge_family(name: str, text: str, labels: dict[str, str], value: float) -> GaugeMetricFamily:
    """A family of one sample."""
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family
