"""Texts for the columns of `kubectl get`, made from the rest of status. Pure: the same status, the same
texts."""

from __future__ import annotations

from ropeteam.api.conditions import ConditionType
from ropeteam.api.status import JobStatus, ProgressStatus

_CONDITION_OF_STATE = {
    "Complete": ConditionType.COMPLETE,
    "Failed": ConditionType.FAILED,
    "Invalid": ConditionType.ACCEPTED,
    "Suspended": ConditionType.SUSPENDED,
    "Recovering": ConditionType.RECOVERING,
    "Restarting": ConditionType.RECOVERING,
}
"""The condition that explains a state. Any other: Running, with what is waited for."""


def with_columns(status: JobStatus) -> JobStatus:
    """`status` with the texts that only the columns need."""
    kind = _CONDITION_OF_STATE.get(status.state, ConditionType.RUNNING)
    if status.state in ("Starting", "Running") and status.holds(ConditionType.DEGRADED):
        kind = ConditionType.DEGRADED  # the column STATE shows the rest
    explains = status.condition(kind)
    newest = status.incidents[-1] if status.incidents else None
    failures, workers = status.failures, status.workers
    return status.model_copy(
        update={
            "reason": explains.reason if explains else "",
            "last_incident": f"{newest.cause} in slot {newest.slot}" if newest else "",
            "failures": failures.model_copy(update={"summary": f"{failures.charged}/{failures.allowed}"}),
            "workers": workers.model_copy(update={"summary": f"{workers.ready}/{workers.desired}"}),
            "progress": _progress(status.progress) if status.progress else None,
        }
    )


def _progress(progress: ProgressStatus) -> ProgressStatus:
    percent = "" if progress.percent is None else f"{progress.percent}%"
    eta = "" if progress.eta_seconds is None else duration(progress.eta_seconds)
    return progress.model_copy(update={"summary": percent, "eta": eta})


def duration(seconds: int) -> str:
    """In the two largest units, as kubectl writes an age: 45s, 3m20s, 2h5m, 4d3h."""
    for unit, smaller, size, part in (("d", "h", 86_400, 3600), ("h", "m", 3600, 60), ("m", "s", 60, 1)):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size}{unit}{rest}{smaller}" if rest else f"{seconds // size}{unit}"
    return f"{seconds}s"
