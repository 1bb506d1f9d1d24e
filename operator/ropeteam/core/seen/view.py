"""One observation, read once: the spec parsed, every pod in its bucket, the report checked for being ours.

All other files of `core` look at this instead of the raw observation. Nothing is decided here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ropeteam.api import strategy
from ropeteam.api.conditions import ConditionType
from ropeteam.api.job import MOST_WORKERS, Metadata, TrainingJobSpec
from ropeteam.api.rules import validate as rules
from ropeteam.api.status import JobStatus, SlotStatus
from ropeteam.core.seen.classify import Bucket, bucket
from ropeteam.core.seen.observation import Observation, PodSeen, Role
from ropeteam_trainer.contract.desired import JobReport

M = TypeVar("M", bound=BaseModel)
Judgement = tuple[TrainingJobSpec | None, tuple[str, ...]]
"""A spec, and what is wrong with it."""
_SPECS_REMEMBERED, _LONGEST_REMEMBERED = 2048, 4096


def with_changes(model: M, **updates: Any) -> M:
    """`model` with some fields replaced."""
    return model.model_copy(update=updates)


def clamp_timestamp(unix_ms: int, now: datetime) -> datetime:
    """A time told by another machine: never later than ours, and a broken clock is not believed."""
    try:
        return min(now, datetime.fromtimestamp(unix_ms / 1000, UTC)) if unix_ms > 0 else now
    except (OverflowError, ValueError, OSError):
        return now


def one_line(text: str) -> str:
    """The first that says something. What a script wrote comes after it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


@dataclass(frozen=True)
class View:
    """What `decide` looks at."""

    seen: Observation
    status: JobStatus
    """As saved; but what waits since some time does not do so since the future."""
    spec: TrainingJobSpec
    """Defaults and the saved number of workers, if `problems` is not empty."""
    problems: tuple[str, ...]
    """Why the spec cannot be used."""
    pods: dict[Bucket, tuple[PodSeen, ...]]
    workers: dict[int, PodSeen]
    """The pod that holds each slot now, those of parameter servers too."""
    coordinator: PodSeen | None
    """The pod of the current term."""
    report: JobReport | None
    """The coordinator's answer, if it is of this job and term."""

    @property
    def now(self) -> datetime:
        return self.seen.now

    @property
    def job_time(self) -> datetime:
        """By the job's clock, which does not step."""
        return self.seen.job_time or self.now

    def at(self, job_time: datetime) -> datetime:
        """When, by `now`, the job's clock says that."""
        return self.now + (job_time - self.job_time)

    @property
    def job(self) -> Metadata:
        return self.seen.metadata

    @property
    def suspended(self) -> bool:
        """The stop has been carried out and saved."""
        return self.status.holds(ConditionType.SUSPENDED)

    @property
    def all_workers(self) -> tuple[PodSeen, ...]:
        """Every pod of a slot, of whichever incarnation: workers and parameter servers."""
        return tuple(pod for pod in self._ours if pod.role is not Role.COORDINATOR)

    @property
    def all_coordinators(self) -> tuple[PodSeen, ...]:
        return tuple(pod for pod in self._ours if pod.role is Role.COORDINATOR)

    @property
    def _ours(self) -> Iterable[PodSeen]:
        return (pod for kind, pods in self.pods.items() if kind is not Bucket.FOREIGN for pod in pods)

    def registered(self, slot: SlotStatus) -> bool:
        """The coordinator hears the agent of this very incarnation."""
        told = self.report.slots.get(str(slot.slot)) if self.report else None
        return told is not None and told.registered and told.incarnation == slot.incarnation

    def held(self, slot: SlotStatus) -> float:
        """For how many seconds of our own clock the former pods of this slot have had no answer for sure."""
        found = (each for each in self.seen.held if each.slot == slot.slot)
        return next((each.seconds for each in found if each.incarnation == slot.incarnation), 0.0)

    def unheard(self, term: int) -> float:
        """For how many seconds of our own clock no operator can have heard of this term's coordinator."""
        return next((each.seconds for each in self.seen.unheard if each.term == term), 0.0)

    def passed(self, since: datetime | None, seconds: float) -> bool:
        """Whether `seconds` have gone by since then. Never, if there was no `then`."""
        return since is not None and self.now >= since + timedelta(seconds=seconds)

    def seconds_until(self, since: datetime, seconds: float) -> float:
        return (since + timedelta(seconds=seconds) - self.now).total_seconds()


def build_view(seen: Observation) -> View:
    """Read an observation. Never raises."""
    spec, problems = _parse(seen)
    incarnations = {slot.slot: slot.incarnation for slot in seen.status.slots}
    pods: dict[Bucket, list[PodSeen]] = {kind: [] for kind in Bucket}
    for pod in sorted(seen.pods, key=lambda pod: (pod.role, pod.slot, pod.incarnation, pod.term, pod.uid)):
        kind = bucket(pod, seen.metadata.name, incarnations, seen.status.coordinator.term)
        pods[kind].append(pod)
    current = pods[Bucket.CURRENT]
    return View(
        seen=seen,
        status=_not_ahead(seen.status, seen.now),
        spec=spec,
        problems=problems,
        pods={kind: tuple(found) for kind, found in pods.items()},
        workers={pod.slot: pod for pod in current if pod.role is not Role.COORDINATOR},
        coordinator=next((pod for pod in current if pod.role is Role.COORDINATOR), None),
        report=_our_report(seen),
    )


def _not_ahead(status: JobStatus, now: datetime) -> JobStatus:
    """What waits begins to wait now if its time is still to come: the wall clock has stepped back since, or
    is another operator's. Else it would wait for as long as the step was."""
    names = ("drain_since", "coordinator_fault_since")
    times = {name: time for name in names if (time := getattr(status, name)) is not None}
    since = status.coordinator.since
    waits = [*times.values(), *([since] if since else [])]
    if not status.finished and any(time > now for time in waits):
        coordinator = with_changes(status.coordinator, since=min(since, now) if since else None)
        return with_changes(status, coordinator=coordinator, **{n: min(times[n], now) for n in times})
    return status


def _parse(seen: Observation) -> tuple[TrainingJobSpec, tuple[str, ...]]:
    spec, problems = (None, (seen.spec_fault,)) if seen.spec_fault else _judgement(seen.spec)
    if spec is not None:
        problems = (*rules.validate_name(seen.metadata.name), *problems)
    if problems or spec is None:
        return TrainingJobSpec(workers=len(seen.status.slots) or _workers(seen.spec)), problems
    return spec, ()


def _workers(spec: dict[str, Any]) -> int:
    """As a spec says that cannot be used otherwise."""
    wanted = spec.get("workers")
    return wanted if type(wanted) is int and 0 < wanted <= MOST_WORKERS else 1


def _judgement(spec: dict[str, Any]) -> Judgement:
    """Of a short one found out once, since a job is looked at thousands of times. Long ones would fill the
    memory: parsed they are some ten times as large."""
    text = json.dumps(spec, sort_keys=True)
    return _remembered(text) if len(text) <= _LONGEST_REMEMBERED else _judged(text)


def _judged(text: str) -> Judgement:
    written = json.loads(text)
    try:
        spec = TrainingJobSpec.model_validate(written)
    except ValidationError as error:
        told = tuple(f"spec.{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        return None, rules.validate(written) or told
    return spec, rules.validate(written) or strategy.problems(spec.strategy, spec.workers * spec.processes)


_remembered = lru_cache(_SPECS_REMEMBERED)(_judged)


def _our_report(seen: Observation) -> JobReport | None:
    report = seen.report
    ours = (
        report is not None
        and report.job_uid == seen.metadata.uid
        and report.term == seen.status.coordinator.term
    )
    return report if ours else None
