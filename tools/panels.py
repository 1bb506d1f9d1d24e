"""Panels of the Grafana dashboards: a title, a unit and queries each. dashboards.py writes them.

Every panel describes why one would look at it. Limit: counters that have not grown show 0, not nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

_PICKED = 'namespace=~"$namespace", job_name=~"$job"'
_BY_JOB = "by (namespace, job_name)"
_BY_RANK = "by (namespace, job_name, rank)"


@dataclass(frozen=True)
class Panel:
    title: str
    why: str
    queries: dict[str, str]
    """Legend -> PromQL."""
    unit: str = "short"
    kind: str = "timeseries"


@dataclass(frozen=True)
class Dashboard:
    name: str
    title: str
    variables: dict[str, str]
    """Name -> the query for its values."""
    rows: dict[str, tuple[Panel, ...]]

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows.values() for panel in row)


def _job(metric: str, function: str = "max") -> str:
    return f"{function} {_BY_JOB} ({metric}{{{_PICKED}}})"


def _max(metric: str, label: str) -> str:
    return f"max by (namespace, job_name, {label}) ({metric}{{{_PICKED}}})"


def _rate(counter: str, by: str) -> str:
    return f"sum {by} (rate({counter}{{{_PICKED}}}[$__rate_interval]))"


def _quantile(share: float, histogram: str) -> str:
    """Of the operator: other operators have metrics of the same names."""
    rate = f'rate({histogram}_bucket{{controller="trainingjob"}}[$__rate_interval])'
    return f"histogram_quantile({share}, sum by (le) ({rate}))"


def _recovery(share: float) -> str:
    rate = "rate(ropeteam_recovery_seconds_bucket[1h])"
    return f"histogram_quantile({share}, sum by (stage, le) ({rate}))"


_TIME = "ropeteam_rank_step_seconds"
_STEP_SECONDS = f"{_rate(f'{_TIME}_sum', _BY_RANK)} / {_rate(f'{_TIME}_count', _BY_RANK)}"
_SHARE = f"rate({_TIME}_sum{{{_PICKED}}}[10m]) and {_TIME}_count{{{_PICKED}}} > 0"
"""Of a rank's time; a script that reports no steps has none."""
_JOB, _RANK = "{{namespace}}/{{job_name}}", "{{namespace}}/{{job_name}} rank {{rank}}"

PROGRESS = (
    Panel("Step", "Does it move?", {_JOB: _job("ropeteam_job_step")}),
    Panel(
        "Done",
        "How far, if the script has reported its total steps.",
        {_JOB: f"{_job('ropeteam_job_step')} / {_job('ropeteam_job_total_steps')}"},
        unit="percentunit",
    ),
    Panel("Loss", "Of rank 0, as the script reports it.", {_JOB: _job("ropeteam_job_loss")}),
    Panel("Samples per second", "Of the whole job.", {_JOB: _job("ropeteam_job_samples_per_second")}),
    Panel(
        "World",
        "Ranks that train, workers that are there, that should be; ranks by the size of their process group.",
        {
            f"{_JOB} ranks": _job("ropeteam_job_world_size"),
            f"{_JOB} registered slots": _job("ropeteam_job_registered_slots"),
            f"{_JOB} slots": _job("ropeteam_job_slots"),
            f"{_JOB} group of {{{{size}}}}": _max("ropeteam_job_process_group_ranks", "size"),
        },
    ),
    Panel(
        "Phase",
        "What the coordinator does with the world.",
        {f"{_JOB} {{{{phase}}}}": f"{_max('ropeteam_job_phase', 'phase')} == 1"},
    ),
)
FAULT_PANELS = (
    Panel(
        "Worlds",
        "Each fault costs one; a new coordinator counts from 1 again.",
        {_JOB: _job("ropeteam_job_worlds")},
    ),
    Panel(
        "Recent incidents",
        "Among the job's last ten, by cause.",
        {f"{_JOB} {{{{cause}}}}": f"{_max('ropeteam_job_recent_incidents', 'cause')} > 0"},
    ),
    Panel(
        "Age of the checkpoint",
        "What a fault now would cost, in time.",
        {_JOB: f"time() - {_job('ropeteam_job_checkpoint_timestamp_seconds')}"},
        unit="s",
    ),
    Panel(
        "Steps not saved",
        "What a fault now would cost, in steps.",
        {_JOB: f"{_job('ropeteam_job_step')} - {_job('ropeteam_job_checkpoint_step')}"},
    ),
    Panel(
        "Agents",
        "Connected to their coordinator, and terminating.",
        {
            f"{_JOB} connected": _job("ropeteam_agent_connected", "sum"),
            f"{_JOB} terminating": _job("ropeteam_agent_terminating", "sum"),
        },
    ),
    Panel(
        "Lag of the coordinator",
        "0: it keeps up. Otherwise recovery begins as much later.",
        {_JOB: _job("ropeteam_job_coordinator_lag_seconds")},
        unit="s",
    ),
    Panel(
        "Incarnations",
        "Which pod it is in its slot: 1 was never replaced.",
        {f"{_JOB} slot {{{{slot}}}}": _max("ropeteam_agent_incarnation", "slot")},
    ),
)
RANKS = (
    Panel(
        "Time in steps",
        "Of the last ten minutes, mean of ranks. The rest went into starts, faults and waiting for them.",
        {_JOB: f"clamp_max(avg {_BY_JOB} ({_SHARE}), 1)"},
        unit="percentunit",
    ),
    Panel(
        "Time of a step",
        "Between two reports of a rank, whatever it does there.",
        {_RANK: _STEP_SECONDS},
        "s",
    ),
    Panel(
        "Slowest to median rank",
        "Well above 1: one rank holds up the others.",
        {_JOB: f"max {_BY_JOB} ({_STEP_SECONDS}) / quantile {_BY_JOB} (0.5, {_STEP_SECONDS})"},
    ),
    Panel(
        "Steps between first and last rank",
        "Pods are not scraped at the same moment: what grows is stuck, what stays is not.",
        {_JOB: f"{_job('ropeteam_rank_step')} - {_job('ropeteam_rank_step', 'min')}"},
    ),
    Panel(
        "Since the last step",
        "How long each rank has reported no step.",
        {_RANK: f"time() - {_max('ropeteam_rank_last_step_timestamp_seconds', 'rank')}"},
        unit="s",
    ),
    Panel(
        "Ranks by phase",
        "From start to exit.",
        {f"{_JOB} {{{{phase}}}}": f"sum by (namespace, job_name, phase) (ropeteam_rank_phase{{{_PICKED}}})"},
    ),
    Panel(
        "Starts of ranks",
        "By the agent of the pod that lives.",
        {_RANK: _max("ropeteam_rank_starts_total", "rank")},
    ),
)
_STALE = "ropeteam_rank_gradient_staleness"
SERVERS = (
    Panel(
        "Gradients applied",
        "By each parameter server, in a second.",
        {_RANK: _rate(f"{_STALE}_count", _BY_RANK)},
        unit="ops",
    ),
    Panel(
        "Staleness of a gradient",
        "Steps of others between its pull of the weights and its push; synchronous ones have none.",
        {_RANK: f"{_rate(f'{_STALE}_sum', _BY_RANK)} / {_rate(f'{_STALE}_count', _BY_RANK)}"},
    ),
    Panel(
        "Gradients dropped",
        "Steps completed without them, because of backup workers.",
        {_JOB: _job("ropeteam_rank_gradients_dropped_total")},
    ),
)
STATES = (
    Panel("Acting operators", "Must be 1.", {"acting": "sum(ropeteam_leader)"}, kind="stat"),
    Panel(
        "Versions",
        "More than one: an upgrade is on its way.",
        {"{{version}}": "sum by (version) (ropeteam_build_info)"},
        kind="stat",
    ),
    Panel("Stalled jobs", "They wait for a person.", {"stalled": "max(ropeteam_jobs_stalled)"}, kind="stat"),
    Panel(
        "Jobs by state",
        "Standby operators count the same jobs.",
        {"{{state}}": "max by (state) (ropeteam_jobs)"},
    ),
    Panel(
        "Incidents by cause",
        "In an hour.",
        {"{{cause}}": "sum by (cause) (increase(ropeteam_incidents_total[1h]))"},
    ),
    Panel(
        "Steps lost by cause",
        "In an hour.",
        {"{{cause}}": "sum by (cause) (increase(ropeteam_steps_lost_total[1h]))"},
    ),
    Panel(
        "Recovery by stage, median",
        "From the fault on; where the time goes is the difference of two lines.",
        {"{{stage}}": _recovery(0.5)},
        unit="s",
    ),
    Panel(
        "Recovery by stage, slowest of 20",
        "From the fault on.",
        {"{{stage}}": _recovery(0.95)},
        unit="s",
    ),
)
_QUEUE = '{controller="trainingjob"}'
_WINDOW = "[$__rate_interval]"
_OURS = "and on (instance) ropeteam_leader"
RECONCILES = (
    Panel(
        "Reconciles by result",
        "A reconcile handles one job.",
        {"{{result}}": f"sum by (result) (rate(controller_runtime_reconcile_total{_QUEUE}{_WINDOW}))"},
        unit="ops",
    ),
    Panel(
        "Failed reconciles, unreadable objects",
        "A failed reconcile is retried, an unreadable object skipped; the log has name and reason.",
        {
            "failed": f"sum(rate(controller_runtime_reconcile_errors_total{_QUEUE}{_WINDOW}))",
            "unreadable {{kind}}": f"sum by (kind) (rate(ropeteam_unreadable_objects_total{_WINDOW}))",
            "missed changes": f"sum(rate(ropeteam_cache_missed_changes_total{_WINDOW}))",
        },
        unit="ops",
    ),
    Panel(
        "Duration of a reconcile",
        "Half of them, and all but one in a hundred.",
        {
            "p50": _quantile(0.5, "controller_runtime_reconcile_time_seconds"),
            "p99": _quantile(0.99, "controller_runtime_reconcile_time_seconds"),
        },
        unit="s",
    ),
    Panel(
        "Running reconciles",
        "At the limit: raise `maxConcurrentReconciles` of the chart.",
        {
            "running": f"sum(controller_runtime_active_workers{_QUEUE})",
            "limit": f"max(controller_runtime_max_concurrent_reconciles{_QUEUE})",
        },
    ),
    Panel(
        "Requests to the API server",
        "By method and status.",
        {
            "{{method}} {{code}}": "sum by (method, code)"
            f" (rate(rest_client_requests_total{_WINDOW}) {_OURS})",
        },
        unit="reqps",
    ),
)
QUEUE = (
    Panel("Jobs in the queue", "Should be near 0.", {"depth": f"sum(workqueue_depth{_QUEUE})"}),
    Panel(
        "Added and tried again",
        "Per second.",
        {
            "added": f"sum(rate(workqueue_adds_total{_QUEUE}[$__rate_interval]))",
            "tried again": f"sum(rate(workqueue_retries_total{_QUEUE}[$__rate_interval]))",
        },
        unit="ops",
    ),
    Panel(
        "Wait and work",
        "All but one in a hundred.",
        {
            "wait": _quantile(0.99, "workqueue_queue_duration_seconds"),
            "work": _quantile(0.99, "workqueue_work_duration_seconds"),
        },
        unit="s",
    ),
    Panel(
        "Reconciles that do not end",
        "The longest, and the sum of all that run.",
        {
            "longest": f"max(workqueue_longest_running_processor_seconds{_QUEUE})",
            "sum": f"sum(workqueue_unfinished_work_seconds{_QUEUE})",
        },
        unit="s",
    ),
    Panel(
        "CPU of the operator",
        "Cores.",
        {"{{instance}}": f"rate(process_cpu_seconds_total{_WINDOW}) {_OURS}"},
    ),
    Panel(
        "Memory of the operator",
        "Resident.",
        {"{{instance}}": f"process_resident_memory_bytes {_OURS}"},
        unit="bytes",
    ),
)
JOBS = Dashboard(
    "jobs",
    "Ropeteam / Jobs",
    {
        "namespace": "label_values(ropeteam_job_step, namespace)",
        "job": 'label_values(ropeteam_job_step{namespace=~"$namespace"}, job_name)',
    },
    {
        "Progress": PROGRESS,
        "Faults and checkpoints": FAULT_PANELS,
        "Ranks": RANKS,
        "Parameter servers": SERVERS,
    },
)
OPERATOR = Dashboard(
    "operator",
    "Ropeteam / Operator",
    {},
    {"Jobs and incidents": STATES, "Reconciles": RECONCILES, "Queue and process": QUEUE},
)
DASHBOARDS = (JOBS, OPERATOR)
