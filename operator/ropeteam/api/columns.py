"""Texts for the columns of `kubectl get`, made from the rest of status. Pure: the same status, the same
texts."""

from __future__ import annotations

from ropeteam.api.conditions import Condition, ConditionType
from ropeteam.api.status import JobStatus, ProgressStatus

_EXPLANATIONS = (
    ConditionType.STALLED,
    ConditionType.RECOVERING,
    ConditionType.SUSPENDED,
    ConditionType.DEGRADED,
)
"""Most important first."""


def explaining_condition(status: JobStatus) -> Condition | None:
    """The condition that explains the state of a job. First match wins: the end (Complete, Failed); Accepted,
    if the spec is refused; the first of _EXPLANATIONS that is True; else Running, True or not, whose message
    says what the job waits for. None: that one is not set yet."""
    for kind in (ConditionType.COMPLETE, ConditionType.FAILED):
        if status.holds(kind):
            return status.condition(kind)
    if is_refused(status):
        return status.condition(ConditionType.ACCEPTED)
    kind = next((kind for kind in _EXPLANATIONS if status.holds(kind)), ConditionType.RUNNING)
    return status.condition(kind)


def is_refused(status: JobStatus) -> bool:
    """Whether the spec was not accepted."""
    accepted = status.condition(ConditionType.ACCEPTED)
    return accepted is not None and accepted.status == "False"


def with_columns(status: JobStatus) -> JobStatus:
    """`status` with the text fields that printer columns need: reason, lastIncident, eta and the
    summaries."""
    explains = explaining_condition(status)
    newest = status.incidents[-1] if status.incidents else None
    failures, workers = status.failures, status.workers
    return status.model_copy(
        update={
            "reason": explains.reason if explains else "",
            "last_incident": f"{newest.cause} in slot {newest.slot}" if newest else "",
            "failures": failures.model_copy(update={"summary": f"{failures.charged}/{failures.allowed}"}),
            "workers": workers.model_copy(update={"summary": f"{workers.ready}/{workers.desired}"}),
            "progress": _with_progress_texts(status.progress) if status.progress else None,
        }
    )


def _with_progress_texts(progress: ProgressStatus) -> ProgressStatus:
    """`progress` with summary and eta; each is empty where its number is unknown."""
    percent = "" if progress.percent is None else f"{progress.percent}%"
    eta = "" if progress.eta_seconds is None else duration(progress.eta_seconds)
    return progress.model_copy(update={"summary": percent, "eta": eta})


def duration(seconds: int) -> str:
    """Text of a duration in its two largest units: 45s, 3m20s, 2h5m, 4d3h; the smaller unit is left out when
    it is 0. `seconds`: 0 or more."""
    for unit, smaller, size, part in (("d", "h", 86_400, 3600), ("h", "m", 3600, 60), ("m", "s", 60, 1)):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size}{unit}{rest}{smaller}" if rest else f"{seconds // size}{unit}"
    return f"{seconds}s"
