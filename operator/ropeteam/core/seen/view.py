"""View of one observation: the spec parsed, every pod in its class, the report checked for job and term.

Files of `core` that decide read this instead of the raw observation. Nothing is decided here. Beside it:
small functions on values that many of these files need.
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
from ropeteam.core.seen.classify import PodClass, pod_class
from ropeteam.core.seen.observation import Observation, PodSeen, Role
from ropeteam_trainer.contract.desired import JobReport, SlotReport

M = TypeVar("M", bound=BaseModel)
ValidatedSpec = tuple[TrainingJobSpec | None, tuple[str, ...]]
"""A parsed spec (None: it cannot be parsed), and its problems (empty: none)."""
_CACHED_SPECS, _LONGEST_CACHED = 2048, 4096
"""Entries of the cache of parsed specs, and the characters of the longest spec that it stores."""


def with_changes(model: M, **updates: Any) -> M:
    """Copy of `model` with some fields replaced. The values are not validated."""
    return model.model_copy(update=updates)


def clamp_timestamp(unix_ms: int, now: datetime) -> datetime:
    """Time that another machine has reported, in UTC, but not later than `now`. `now` itself, if it is 0,
    negative or no time."""
    try:
        return min(now, datetime.fromtimestamp(unix_ms / 1000, UTC)) if unix_ms > 0 else now
    except (OverflowError, ValueError, OSError):
        return now


def one_line(text: str) -> str:
    """The first line that is not blank, stripped; empty, if all are. In an incident's message the output of
    the script comes after it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


@dataclass(frozen=True)
class View:
    """Input of all questions of `decide`."""

    seen: Observation
    status: JobStatus
    """Status as saved, but without times of waits in the future (`_without_future_waits`)."""
    spec: TrainingJobSpec
    """The parsed spec. If `problems` is not empty: defaults, with as many workers as status has slots."""
    problems: tuple[str, ...]
    """Reasons why the spec cannot be used."""
    pods: dict[PodClass, tuple[PodSeen, ...]]
    workers: dict[int, PodSeen]
    """The pod that holds each slot now, those of parameter servers too."""
    coordinator: PodSeen | None
    """The pod of the current term; None: it does not exist."""
    report: JobReport | None
    """The coordinator's report; None: there is none of this job and term."""

    @property
    def now(self) -> datetime:
        return self.seen.now

    @property
    def job_time(self) -> datetime:
        """Now, by the job's clock, which does not step and measures windows and deadlines."""
        return self.seen.job_time or self.now

    def wall_time(self, job_time: datetime) -> datetime:
        """Time by the clock of `now` at which the job's clock will show `job_time`."""
        return self.now + (job_time - self.job_time)

    @property
    def job(self) -> Metadata:
        return self.seen.metadata

    @property
    def suspended(self) -> bool:
        """Whether the suspension has been carried out and saved."""
        return self.status.holds(ConditionType.SUSPENDED)

    @property
    def all_workers(self) -> tuple[PodSeen, ...]:
        """Every pod of a slot, of any incarnation: workers and parameter servers."""
        return tuple(pod for pod in self._our_pods if pod.role is not Role.COORDINATOR)

    @property
    def all_coordinators(self) -> tuple[PodSeen, ...]:
        """Every coordinator's pod, of any term."""
        return tuple(pod for pod in self._our_pods if pod.role is Role.COORDINATOR)

    @property
    def _our_pods(self) -> Iterable[PodSeen]:
        """All pods that the operator has created for this job."""
        return (pod for kind, pods in self.pods.items() if kind is not PodClass.FOREIGN for pod in pods)

    def is_registered(self, slot: SlotStatus) -> bool:
        """Whether the agent of the slot's current incarnation is registered with the coordinator. False
        without a report."""
        agent = self._agent_of(slot)
        return agent is not None and agent.registered

    def is_preserved(self, slot: SlotStatus) -> bool:
        """Whether ranks of the slot's current incarnation live on although their world has ended. False
        without a report."""
        agent = self._agent_of(slot)
        return agent is not None and agent.preserved

    def _agent_of(self, slot: SlotStatus) -> SlotReport | None:
        agent = self.report.slots.get(str(slot.slot)) if self.report else None
        return agent if agent and agent.incarnation == slot.incarnation else None

    def seconds_held(self, slot: SlotStatus) -> float:
        """Seconds, by this process' clock, for which older incarnations of the slot have certainly received
        no answer from the coordinator. 0: unknown."""
        found = (each for each in self.seen.held_slots if each.slot == slot.slot)
        return next((each.seconds for each in found if each.incarnation == slot.incarnation), 0.0)

    def seconds_silent(self, term: int) -> float:
        """Seconds, by this process' clock, for which no operator can have acknowledged a report of the
        coordinator of this term. 0: unknown."""
        return next((each.seconds for each in self.seen.silent_coordinators if each.term == term), 0.0)

    def has_passed(self, since: datetime | None, seconds: float) -> bool:
        """Whether `seconds` have passed since `since`, by the wall clock. False, if that is None."""
        return since is not None and self.now >= since + timedelta(seconds=seconds)

    def seconds_until(self, since: datetime, seconds: float) -> float:
        """Seconds until `has_passed` becomes true. Negative, if it is."""
        return (since + timedelta(seconds=seconds) - self.now).total_seconds()


def build_view(seen: Observation) -> View:
    """The view of an observation. Never raises. Pods are sorted first, so that their order at the API server
    changes no decision."""
    spec, problems = _spec_and_problems(seen)
    incarnations = {slot.slot: slot.incarnation for slot in seen.status.slots}
    pods: dict[PodClass, list[PodSeen]] = {kind: [] for kind in PodClass}
    for pod in sorted(seen.pods, key=lambda pod: (pod.role, pod.slot, pod.incarnation, pod.term, pod.uid)):
        kind = pod_class(pod, seen.metadata.name, incarnations, seen.status.coordinator.term)
        pods[kind].append(pod)
    current = pods[PodClass.CURRENT]
    return View(
        seen=seen,
        status=_without_future_waits(seen.status, seen.now),
        spec=spec,
        problems=problems,
        pods={kind: tuple(found) for kind, found in pods.items()},
        workers={pod.slot: pod for pod in current if pod.role is not Role.COORDINATOR},
        coordinator=next((pod for pod in current if pod.role is Role.COORDINATOR), None),
        report=_our_report(seen),
    )


def _without_future_waits(status: JobStatus, now: datetime) -> JobStatus:
    """Status in which drain, unreachability and backoff of the coordinator begin at `now` at the latest. A
    later time is of a clock that has stepped back, or of another operator's, and would prolong the wait.
    Unchanged, if none is later, or the job has finished."""
    names = ("drain_start_time", "coordinator_unreachable_start_time")
    times = {name: time for name in names if (time := getattr(status, name)) is not None}
    since = status.coordinator.start_time
    waits = [*times.values(), *([since] if since else [])]
    if not status.finished and any(time > now for time in waits):
        coordinator = with_changes(status.coordinator, start_time=min(since, now) if since else None)
        return with_changes(status, coordinator=coordinator, **{n: min(times[n], now) for n in times})
    return status


def _spec_and_problems(seen: Observation) -> tuple[TrainingJobSpec, tuple[str, ...]]:
    """The parsed spec and no problems, or a stand-in spec and the problems of the job's name and spec."""
    spec, problems = (None, (seen.spec_error,)) if seen.spec_error else _validated(seen.spec)
    if spec is not None:
        problems = (*rules.validate_name(seen.metadata.name), *problems)
    if problems or spec is None:
        return TrainingJobSpec(workers=len(seen.status.slots) or _worker_count(seen.spec)), problems
    return spec, ()


def _worker_count(spec: dict[str, Any]) -> int:
    """Number of workers of an unparsed spec; 1, if it is not valid."""
    wanted = spec.get("workers")
    return wanted if type(wanted) is int and 0 < wanted <= MOST_WORKERS else 1


def _validated(spec: dict[str, Any]) -> ValidatedSpec:
    """The spec, parsed and validated. Results of short ones are cached, since a job is observed thousands of
    times. Long ones would fill the memory: parsed they are some ten times as large."""
    text = json.dumps(spec, sort_keys=True)
    return _validated_cached(text) if len(text) <= _LONGEST_CACHED else _validated_text(text)


def _validated_text(text: str) -> ValidatedSpec:
    """As `_validated`, of JSON text, which is hashable. Our rules' messages come before those of pydantic,
    which are used only where no rule explains why parsing failed."""
    raw = json.loads(text)
    try:
        spec = TrainingJobSpec.model_validate(raw)
    except ValidationError as error:
        errors = tuple(f"spec.{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        return None, rules.validate(raw) or errors
    return spec, rules.validate(raw) or strategy.problems(spec.strategy, spec.workers * spec.processes)


_validated_cached = lru_cache(_CACHED_SPECS)(_validated_text)


def _our_report(seen: Observation) -> JobReport | None:
    """The report, if it is of this job and of the current term; a Service may lead to another coordinator."""
    report = seen.report
    ours = (
        report is not None
        and report.job_uid == seen.metadata.uid
        and report.term == seen.status.coordinator.term
    )
    return report if ours else None
